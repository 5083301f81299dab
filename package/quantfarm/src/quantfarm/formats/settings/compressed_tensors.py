"""The settings dialect of compressed-tensors, whose ``config_groups`` describe layers by target.

What a group says becomes this project's keys: the group of the class ``Linear`` the settings of the whole, every other
group a rule of ``dynamic``, ``ignore`` rules that exclude. Activations stay in their dtype, which a note says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme
from quantfarm.errors import ConfigError, UnknownFormat
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.dialects import COMPRESSED_TENSORS, wrong
from quantfarm.formats.facts import LayerFacts, TensorFact
from quantfarm.formats.table import known_lines

_INT, _FLOAT = ("pack-quantized",), ("float-quantized", "naive-quantized")
_FOUR = {"nvfp4-pack-quantized": FORMAT.NVFP4, "mxfp4-pack-quantized": FORMAT.MXFP4}
_READ = (*_INT, *_FLOAT, *_FOUR)
_REGEX = "re:"
_BY_INDEX = ("group", "dynamic", True)
"""Values of ``actorder`` with an index of groups; the others only changed the order in which weights were rounded."""

Group = Mapping[str, Any]


def translate(settings: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return the settings in this project's keys.

    Raises:
        UnknownFormat: a format, strategy, sparsity or transform that nothing here reads; names it.
        ConfigError: groups that contradict each other, or that need two methods.
    """
    _refuse_foreign(settings, source)
    listed = settings.get("config_groups") or {}
    if not isinstance(listed, Mapping) or not all(isinstance(group, Mapping) for group in listed.values()):
        raise wrong("config_groups", "an object of groups", listed, source)
    groups = [(name, g) for name, g in listed.items() if g.get("weights")]
    schemes = [(_targets(group), _scheme(settings, name, group, source)) for name, group in groups]
    if not schemes:
        raise ConfigError(
            f"cannot read {source}: no group of config_groups has weights",
            lines=(f"config_groups: got {sorted(settings.get('config_groups') or {})}",),
            remedy="load the checkpoint as an unquantized one",
        )
    notes = [f"{source}: {note}" for note in _notes(settings, groups)]
    base = _base(schemes, source)
    dynamic: dict[str, Any] = {f"-:{_pattern(name)}": {} for name in settings.get("ignore") or ()}
    # An exact name goes before a pattern, and both before the class.
    named = sorted(
        ((target, scheme) for targets, scheme in schemes for target in targets if not _is_class(target)),
        key=lambda pair: pair[0].startswith(_REGEX),
    )
    if not any(_is_class(target) for targets, _ in schemes for target in targets):
        dynamic["-:(?!" + "|".join(f"(?:{_pattern(target)})" for target, _ in named) + ")"] = {}
    keys = ("bits", "group_size", "sym", "desc_act", "format")
    dynamic |= {_pattern(target): {key: scheme[key] for key in keys} for target, scheme in named}
    shared: dict[str, Any] = {"lm_head": True, "dynamic": dynamic, "dialect_notes": notes}
    return base | _details(schemes, source) | shared | {"dialect": COMPRESSED_TENSORS}


def settings(raw: Mapping[str, Any], stated: Mapping[str, Any], source: str) -> Mapping[str, Any]:  # noqa: ARG001 - every such function takes all three
    """Return the notes of the translation; the rest is in canonical keys already."""
    return {"pack_dtype": "int32", "notes": tuple(raw.get("dialect_notes") or ())}


def facts(tensors: Mapping[str, TensorFact], config: QuantConfig) -> LayerFacts:
    """Return K, N and the scheme of a packed layer from the shape of its words."""
    n, words = tensors["weight_packed"].shape
    index = tensors.get("weight_g_idx")
    k = index.shape[0] if index else words * 32 // config.bits
    scheme = Scheme(bits=config.bits, group_size=config.group_size, sym=config.sym, act_order=config.desc_act)
    return LayerFacts(k=k, n=n, scheme=scheme)


def _refuse_foreign(settings: Mapping[str, Any], source: str) -> None:
    sparsity = (settings.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise _unknown(source, "sparsity_config", f"format: needs dense, got {sparsity!r}")
    if (settings.get("transform_config") or {}).get("config_groups"):
        raise _unknown(source, "transform_config", "config_groups: needs none (weights without rotations), got some")


def _scheme(settings: Mapping[str, Any], name: str, group: Group, source: str) -> dict[str, Any]:
    """Return method, format and scheme of one group in canonical keys."""
    weights, form = group["weights"], str(group.get("format") or settings.get("format"))
    label = f"config_groups[{name!r}]"
    bits, kind, strategy = weights.get("num_bits"), weights.get("type", "int"), weights.get("strategy")
    size = weights.get("group_size") or -1
    found: dict[str, Any] = {"method": METHOD.FP8.value, "sym": weights.get("symmetric", True), "desc_act": False}
    if form in _INT and kind == "int" and bits in (4, 8) and strategy in ("group", "channel", "tensor"):
        ordered = weights.get("actorder") in _BY_INDEX
        size = size if strategy == "group" else -1
        return found | {
            "method": METHOD.GPTQ.value,
            "format": FORMAT.GPTQ_V2.value,
            "bits": bits,
            "group_size": size,
            "desc_act": ordered and size != -1,
        }
    if form in _FLOAT and (kind, bits) == ("float", 8) and strategy in ("tensor", "channel", "block", "group"):
        block = {"block": _sides(weights.get("block_structure")), "group": [1, size]}.get(strategy)
        return found | {"format": FORMAT.FP8.value, "bits": 8, "group_size": -1, "block": block}
    if form in _FOUR and (kind, bits) == ("float", 4):
        needed = {FORMAT.NVFP4: 16, FORMAT.MXFP4: 32}[_FOUR[form]]
        if size == needed:
            return found | {"format": _FOUR[form].value, "bits": 4, "group_size": needed}
    told = f"{form}: {kind}{bits}, strategy {strategy}, group_size {size}, symmetric {found['sym']}"
    raise _unknown(source, label, f"{label}: needs one of {', '.join(_READ)} with a scheme of theirs, got {told}")


def _sides(block: Any) -> list[int] | None:
    """Read a block: a list, or the older text ``128x128``."""
    parts = block.split("x") if isinstance(block, str) else block
    return [int(side) for side in parts] if parts else None


def _details(schemes: list[tuple[list[str], dict[str, Any]]], source: str) -> dict[str, Any]:
    """Return what all groups share: one method, one block size, and the directions of this dialect's scales."""
    methods = {scheme["method"] for _, scheme in schemes}
    blocks = [scheme["block"] for _, scheme in schemes if scheme.get("block")]
    if len(methods) > 1 or any(block != blocks[0] for block in blocks):
        raise ConfigError(
            f"cannot read {source}: the groups of config_groups need different readers",
            lines=(
                f"methods: needs one, got {', '.join(sorted(methods))}",
                f"block sizes: needs at most one, got {blocks}",
            ),
            remedy="quantize integers and floats into separate checkpoints",
        )
    if methods == {METHOD.GPTQ.value}:
        return {}
    found: dict[str, Any] = {"weight_scale_semantics": "multiply", "weight_global_scale_semantics": "divide"}
    return found | ({"weight_block_size": blocks[0]} if blocks else {})


def _base(schemes: list[tuple[list[str], dict[str, Any]]], source: str) -> dict[str, Any]:
    """Return the scheme of the class of linear layers; without such a group, that of the first."""
    general = [scheme for targets, scheme in schemes if any(_is_class(target) for target in targets)]
    if any(scheme != general[0] for scheme in general):
        raise ConfigError(
            f"cannot read {source}: two groups of config_groups describe the same class",
            lines=tuple(f"targets {targets}: {scheme}" for targets, scheme in schemes),
            remedy=f"name the modules of one of them in {source}",
        )
    chosen = general[0] if general else schemes[0][1]
    return {key: value for key, value in chosen.items() if key != "block"}


def _targets(group: Group) -> list[str]:
    return [str(target) for target in group.get("targets") or ("Linear",)]


def _is_class(target: str) -> bool:
    """Say whether a target is a class: module names hold a dot or start with a small letter."""
    return not target.startswith(_REGEX) and target[:1].isupper() and "." not in target


def _pattern(target: str) -> str:
    """Return a regular expression that matches from the start of a module name, as this dialect means it."""
    return target.removeprefix(_REGEX) if target.startswith(_REGEX) else f"{re.escape(target)}$"


def _notes(settings: Mapping[str, Any], groups: list[tuple[str, Group]]) -> list[str]:
    notes = []
    if any(group.get("input_activations") for _, group in groups):
        notes.append("activations keep their dtype; input_activations and input scales are not used")
    if settings.get("kv_cache_scheme"):
        notes.append("kv_cache_scheme is not used")
    foreign = {t for _, g in groups for t in _targets(g) if _is_class(t) and not t.endswith("Linear")}
    if foreign:
        notes.append(f"targets that are no linear class are left to their tensors: {', '.join(sorted(foreign))}")
    return notes


def _unknown(source: str, part: str, line: str) -> UnknownFormat:
    return UnknownFormat(
        f"cannot read {source}: {part} of {COMPRESSED_TENSORS} is not read here",
        lines=(line, *known_lines()),
        remedy="use a checkpoint in one of these formats",
    )
