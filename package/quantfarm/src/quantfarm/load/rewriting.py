"""The work of writing a quantized checkpoint in another format without changing a weight."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from quantfarm.declare.scheme import Scheme
from quantfarm.errors import InexactConversion
from quantfarm.formats.config import DynamicRule, QuantConfig
from quantfarm.formats.packed import packed_modules
from quantfarm.formats.relayout import relayout
from quantfarm.formats.settings_files import has_settings
from quantfarm.formats.table import find
from quantfarm.formats.weights.base import Weight
from quantfarm.load.checkpoint import Checkpoint
from quantfarm.load.dense_source import rest_of
from quantfarm.load.work import Made, Unit, Work, about_layer, plain

_AGAIN = "leave these options out, or round the decoded values again: pass requantize"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The parts of a scheme that a caller stated; None for what may be as it is."""

    bits: int | None = None
    group_size: int | None = None
    sym: bool | None = None
    desc_act: bool | None = None

    def or_else(self, usual: Mapping[str, Any]) -> Asked:
        """Return the stated parts, and the usual ones for the rest."""
        return Asked(**{f.name: usual[f.name] if (v := getattr(self, f.name)) is None else v for f in fields(self)})

    def check(self, scheme: Scheme) -> None:
        """Raise InexactConversion with a line for each stated part that the scheme of a weight does not have."""
        found = dict(_overrides(scheme))
        stated = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        lines = [f"  {name}: needs {found[name]}, got {v}" for name, v in stated.items() if found[name] != v]
        if lines:
            raise InexactConversion("\n".join(["cannot convert without rounding again", *lines, _AGAIN]))


def is_quantized(path: Path) -> bool:
    """Say whether a source is quantized already: a folder with such settings, or a GGUF file."""
    if path.is_file():
        return path.suffix == ".gguf"
    return path.is_dir() and has_settings(path)


def rewriting(checkpoint: Checkpoint, config: QuantConfig, target: QuantConfig, *, asked: Asked, force: bool) -> Work:
    """Return the units that write every packed module of a checkpoint in the target's format.

    Args:
        checkpoint: the source.
        config: its settings.
        target: method and format to write; each module keeps its own scheme.
        asked: what the caller wants of the scheme; a module that has another is refused.
        force: write what readers of the format decode in different ways.
    """
    packed = packed_modules(checkpoint.where, config)
    way = _Way(config, target, asked, force)
    taken = {name for names in packed.values() for name in names.values()}
    units = [_unit(checkpoint, module, names, way) for module, names in packed.items()]
    units += [plain(name, checkpoint.tensor) for name in checkpoint.where if name not in taken]
    path = checkpoint.folder / "config.json"
    return Work(
        label=str(checkpoint.folder),
        verb="rewriting",
        units=tuple(units),
        model_config=json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {},
        dense=config.modules_to_not_convert,
        notes=(),
        copy_rest=lambda folder: rest_of(checkpoint.folder, folder),
    )


def with_schemes(target: QuantConfig, schemes: Mapping[str, Scheme]) -> QuantConfig:
    """Return the settings that describe the modules: the commonest scheme, and one rule for each other module."""
    if not schemes:
        return target
    common = Counter(schemes.values()).most_common(1)[0][0]
    rules = tuple(
        DynamicRule(pattern=f"{_literally(name)}$", exclude=False, overrides=_overrides(scheme))
        for name, scheme in schemes.items()
        if scheme != common
    )
    return replace(target, **dict(_overrides(common)), dynamic=rules)


def _literally(name: str) -> str:
    return name.replace(".", r"\.")


def _overrides(scheme: Scheme) -> tuple[tuple[str, Any], ...]:
    return (
        ("bits", scheme.bits),
        ("group_size", scheme.group_size),
        ("sym", scheme.sym),
        ("desc_act", scheme.act_order),
    )


class _Way:
    """How each module is rewritten."""

    def __init__(self, config: QuantConfig, target: QuantConfig, asked: Asked, force: bool) -> None:
        self.config, self.target, self.asked, self.force = config, target, asked, force

    def rewrite(self, weight: Weight, module: str) -> Made:
        """Return a module's tensors in the target's format; raise InexactConversion with its name."""
        try:
            tensors, scheme = relayout(weight, self.target, force=self.force)
            self.asked.check(scheme)
        except InexactConversion as error:
            raise about_layer(error, module) from error
        return Made(
            tensors={f"{module}.{part}": t for part, t in tensors.items()}, scheme=scheme, notes=tuple(weight.notes)
        )


def _unit(checkpoint: Checkpoint, module: str, names: Mapping[str, str], way: _Way) -> Unit:
    def make() -> Made:
        settings = way.config.for_module(module) or way.config
        row = find(settings.method, settings.format, settings.dialect)
        tensors = {suffix: checkpoint.tensor(name) for suffix, name in names.items() if suffix in row.suffixes}
        weight: Weight = row.read()(tensors, settings, module=module)
        return way.rewrite(weight, module)

    return Unit(name=module, packs=True, make=make)
