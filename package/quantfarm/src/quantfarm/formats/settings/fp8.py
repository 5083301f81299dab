"""Settings and header facts of weights stored as narrow floats (formats, sections 11, 12 and 18).

**Which way a scale goes.** A scale is a multiplier for some writers and a divisor for others, under one name, and no
value tells which: the first of these that speaks decides.

1. ``weight_scale_semantics``: ``inverse`` (W = q / scale) or ``multiply`` (W = q * scale), for every tensor name.
2. The producer: ``meta.quantizer`` names gptqmodel: inverse.
3. The keys of transformers' fine-grained FP8 (``activation_scheme`` or ``fmt``), and compressed-tensors: multiply.
4. The tensor name, at the reader: ``weight_scale`` and ``scale`` multiply; ``weight_scale_inv`` alone is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantfarm.declare.names import FORMAT
from quantfarm.declare.scheme import Scheme, WeightKind
from quantfarm.errors import ConfigError
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.dialects import integer, text, wrong
from quantfarm.formats.facts import LayerFacts, TensorFact

SEMANTICS = ("inverse", "multiply")
METHODS = ("tensor", "row", "block")
GROUPS: Mapping[FORMAT, int] = {FORMAT.FP8: -1, FORMAT.MXFP4: 32, FORMAT.NVFP4: 16}
"""The inputs that share a scale of the row, by format; the blocks of FP8 are apart, in ``weight_block_size``."""

_TYPES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
_SHORT = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
_STORED = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
_FINE_GRAINED = ("activation_scheme", "fmt")
_INVERSE_PRODUCER = "gptqmodel"


def settings(raw: Mapping[str, Any], stated: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return the fields of QuantConfig that the keys of the method state.

    Raises:
        ConfigError: a value that nothing here can mean; names key and value.
    """
    form = stated.get("format", FORMAT.FP8)
    group = GROUPS[form]
    if stated.get("group_size", group) not in (group, -1):
        raise wrong("group_size", f"{group} for {form.value}", stated["group_size"], source)
    details: dict[str, Any] = {}
    method = _choice(raw, "weight_scale_method", METHODS, source)
    if method:
        details["weight_scale_method"] = method
    if (block := raw.get("weight_block_size")) is not None:
        details["weight_block_size"] = _block(block, source)
    elif method == "block":
        raise wrong("weight_block_size", "[rows, columns] with weight_scale_method block", None, source)
    semantics, notes = _semantics(raw, stated, source)
    if semantics:
        details["weight_scale_semantics"] = semantics
    if whole := _choice(raw, "weight_global_scale_semantics", ("divide", "multiply"), source):
        details["weight_global_scale_semantics"] = whole
    if raw.get("activation_scheme") is not None:
        notes.append(f"{source}: activations keep their dtype; activation_scheme and input_scale are not used")
    if raw.get("kv_cache_scheme") is not None:
        notes.append(f"{source}: kv_cache_scheme is not used")
    found: dict[str, Any] = {"sym": True, "desc_act": False, "lm_head": False, "pack_dtype": "int32"}
    found["bits"] = 8 if form is FORMAT.FP8 else 4
    found |= {key: stated[key] for key in ("bits", "lm_head", "pack_dtype") if key in stated}
    found |= {"group_size": group, "code_type": _code_type(raw, source), "details": details}
    if ignored := raw.get("ignored_layers"):
        found["modules_to_not_convert"] = (*stated.get("modules_to_not_convert", ()), *ignored)
    return found | {"notes": (*raw.get("dialect_notes", ()), *notes)}


def facts(tensors: Mapping[str, TensorFact], config: QuantConfig) -> LayerFacts:
    """Return K, N and the scheme of a layer from the shape of its codes."""
    scheme = Scheme(weight_kind=WeightKind.FLOAT, bits=config.bits, group_size=config.group_size, sym=True)
    codes = tensors["weight_packed"] if "weight_packed" in tensors else tensors["weight"]
    n, k = codes.shape
    if config.format is not FORMAT.FP8:
        return LayerFacts(k=2 * k, n=n, scheme=scheme)
    return LayerFacts(k=k, n=n, scheme=scheme, code_type=_STORED.get(codes.dtype, ""))


def refused_direction(module: str, source: str) -> ConfigError:
    """Return the error for a weight_scale_inv of which nothing says whether it divides or multiplies."""
    return ConfigError(
        f"cannot read {module}: nothing says which way its scale goes",
        lines=("weight_scale_semantics: needs inverse (W = q / scale) or multiply (W = q * scale), got none",),
        remedy=f"state weight_scale_semantics in {source or 'the settings'}, as the writer of the file meant it",
    )


def refused_whole(module: str, source: str) -> ConfigError:
    """Return the error for a weight_global_scale of which nothing says whether it divides or multiplies."""
    return ConfigError(
        f"cannot read {module}: nothing says which way its scale over all goes",
        lines=("weight_global_scale_semantics: needs divide or multiply, got none",),
        remedy=f"state weight_global_scale_semantics in {source or 'the settings'}, as the writer of the file meant it",
    )


def _semantics(raw: Mapping[str, Any], stated: Mapping[str, Any], source: str) -> tuple[str, list[str]]:
    if said := _choice(raw, "weight_scale_semantics", SEMANTICS, source):
        return said, []
    producers = (stated.get("meta") or {}).get("quantizer") or ()
    entries = [producers] if isinstance(producers, str) else producers
    if any(str(entry).partition(":")[0] == _INVERSE_PRODUCER for entry in entries):
        return "inverse", [
            f"{source}: weights are codes divided by weight_scale_inv, as {_INVERSE_PRODUCER} writes them"
        ]
    if any(raw.get(key) is not None for key in _FINE_GRAINED):
        keys = " and ".join(key for key in _FINE_GRAINED if raw.get(key) is not None)
        return "multiply", [f"{source}: weights are codes times weight_scale_inv, as files with {keys} have them"]
    return "", []


def _choice(raw: Mapping[str, Any], key: str, known: tuple[str, ...], source: str) -> str:
    if raw.get(key) is None:
        return ""
    value = text(key, raw[key], source)
    if value not in known:
        raise wrong(key, " or ".join(known), raw[key], source)
    return value


def _block(value: Any, source: str) -> list[int]:
    sides = list(value) if isinstance(value, (list, tuple)) else []
    numbers = [integer("weight_block_size", side, source) for side in sides]
    if len(numbers) != 2 or min(numbers) < 1:
        raise wrong("weight_block_size", "two positive integers [rows, columns]", value, source)
    return numbers


def _code_type(raw: Mapping[str, Any], source: str) -> str:
    """Return the float8 type that the settings name, or nothing: then the dtype of the stored weight decides."""
    for key in ("format", "checkpoint_format", "fmt"):
        if raw.get(key) is None:
            continue
        name = str(getattr(raw[key], "value", raw[key])).lower().removeprefix("torch.")
        if _SHORT.get(name, name) in _TYPES:
            return _SHORT.get(name, name)
        if key == "fmt":
            raise wrong(key, " or ".join((*_SHORT, *_TYPES)), raw[key], source)
    return ""
