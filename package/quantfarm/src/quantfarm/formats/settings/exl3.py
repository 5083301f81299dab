"""The settings of EXL3 checkpoints, and a layer's facts from its header (formats, sections 13 and 18)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from quantfarm.declare.scheme import Scheme, WeightKind
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.dialects import wrong
from quantfarm.formats.facts import LayerFacts, TensorFact

KEYS = ("bits", "head_bits", "out_scales", "codebook", "tensor_storage", "calibration", "version")
"""What a checkpoint says of its own; kept word for word, so that it is written back as it was."""

_TILE = 16
_HEAD = "lm_head"
_WIDEST = 8


class Codebook(str, Enum):
    """How a 16-bit state becomes a number: the three formulas, by the name that settings give them."""

    THREE_INST = "3inst"
    MCG = "mcg"
    MUL1 = "mul1"


MULTIPLIERS: Mapping[Codebook, int] = {
    Codebook.THREE_INST: 89226354,
    Codebook.MCG: 0xCBAC1FED,
    Codebook.MUL1: 0x83DCD12D,
}
"""What each formula multiplies the state by; files store it for the latter two, in a tensor of the codebook's name."""


def settings(raw: Mapping[str, Any], stated: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return the fields of QuantConfig that follow from the settings.

    ``bits`` is the mean width of a checkpoint and may be a fraction; each tensor has its own whole one. The field gets
    the nearest whole width, the details keep the mean.

    Raises:
        ConfigError: ``bits``, ``codebook`` or ``tensor_storage`` has no usable value.
    """
    mean = _mean(raw.get("bits", raw.get("w_bit")), source)
    codebook, storage = raw.get("codebook"), raw.get("tensor_storage")
    if codebook is not None and codebook not in [entry.value for entry in Codebook]:
        raise wrong("codebook", " or ".join(entry.value for entry in Codebook), codebook, source)
    if storage is not None and not isinstance(storage, Mapping):
        raise wrong("tensor_storage", "an object of modules", storage, source)
    return {
        "bits": min(max(round(mean), 1), _WIDEST),
        "group_size": -1,
        "sym": True,
        "lm_head": stated.get("lm_head", _head_is_packed(raw)),
        "details": {key: raw[key] for key in KEYS if raw.get(key) is not None} | {"bits": _plain(mean)},
    }


def facts(tensors: Mapping[str, TensorFact], config: QuantConfig) -> LayerFacts:
    """Return K, N and the scheme of a layer from the shape of its trellis [K/16, N/16, 16 * bits].

    Raises:
        ConfigError: the trellis has not three sides.
    """
    shape = tensors["trellis"].shape
    if len(shape) != 3:
        raise wrong("trellis", "shape [K/16, N/16, 16 * bits]", list(shape), config.source)
    return LayerFacts(k=shape[0] * _TILE, n=shape[1] * _TILE, scheme=scheme(shape[2] // _TILE))


def scheme(bits: int) -> Scheme:
    """Return the scheme of trellis codes of one width: no groups, no zero points."""
    return Scheme(weight_kind=WeightKind.TRELLIS, bits=bits, group_size=-1, sym=True)


def storage_of(details: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """Return what the settings say about one module: suffix to ``{shape, dtype}``; empty where they say nothing."""
    entry = details.get("tensor_storage", {}).get(module, {})
    stored = entry.get("stored_tensors", {}) if isinstance(entry, Mapping) else {}
    return {name.removeprefix(f"{module}."): facts for name, facts in stored.items()}


def multiplier_of(details: Mapping[str, Any], module: str) -> Any:
    """Return the multiplier of the mcg codebook as the settings state it for a module, or None."""
    entry = details.get("tensor_storage", {}).get(module, {})
    return entry.get("mcg_multiplier") if isinstance(entry, Mapping) else None


def _mean(value: Any, source: str) -> float:
    try:
        mean = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else 0.0
    except ValueError:
        mean = 0.0
    if not 1 <= mean <= _WIDEST:
        raise wrong("bits", f"the mean width of the weights, 1 to {_WIDEST}", value, source)
    return mean


def _plain(mean: float) -> int | float:
    return int(mean) if mean.is_integer() else mean


def _head_is_packed(raw: Mapping[str, Any]) -> bool:
    """The list of tensors tells it; without one a stated width of the head does."""
    storage = raw.get("tensor_storage")
    if storage:
        return "trellis" in storage_of(raw, _HEAD)
    return raw.get("head_bits") is not None
