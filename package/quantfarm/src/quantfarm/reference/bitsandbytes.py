"""Closed forms of bitsandbytes: NF4 and FP4 by blocks of flat elements, int8 by rows (formats, section 17)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from quantfarm.reference.stored import Arrays, Floats, Integers, Stored

_NF4 = (
    *(-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.091050036, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)
"""The published decimals; code 6 has one digit more, without which it is the neighbouring fp32 value."""
_FP4_TWELFTHS = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)


def bitsandbytes(arrays: Arrays, says: Stored) -> Floats:
    """Decode a 4-bit weight by table and absmax of its block, an int8 weight by the scale of its row."""
    scales = _named(arrays, "weight_scb", "SCB")
    if scales is not None:
        decoded: Floats = arrays["weight"].astype(np.float64) * scales.astype(np.float64).reshape(-1, 1) / 127
        return decoded
    state = _state(arrays)
    n, k = state.get("shape") or (says.n or 0, says.k or 0)
    size = int(n) * int(k)
    codes = _flat_codes(arrays["weight"])[:size]
    block = int(state.get("blocksize") or says.details.get("block_size") or 64)
    absmax = _absmax(arrays, state)[np.arange(size) // block]
    flat: Floats = _table(arrays, str(state.get("quant_type") or says.code_type))[codes] * absmax
    return flat.reshape(n, k)


def _flat_codes(stored: npt.NDArray[Any]) -> Integers:
    """Return the codes of W in row-major order; element 2i lies in the high nibble."""
    pairs = stored.view(np.uint8).reshape(-1).astype(np.int64)
    codes = np.zeros(2 * len(pairs), dtype=np.int64)
    codes[0::2], codes[1::2] = pairs // 16, pairs % 16
    return codes


def _table(arrays: Arrays, quant_type: str) -> Floats:
    """Return the 16 values of the codes: those of the file, or the published ones in fp32."""
    stored = _named(arrays, "weight_quant_map", "weight.quant_map")
    if stored is not None:
        return stored.astype(np.float64)
    if quant_type == "nf4":
        return np.array(_NF4, dtype=np.float32).astype(np.float64)
    if quant_type == "fp4":
        positive = [twelfths / 12 for twelfths in _FP4_TWELFTHS]
        return np.array([*positive, *(-value for value in positive)], dtype=np.float32).astype(np.float64)
    raise ValueError(f"no closed form for bitsandbytes type {quant_type!r}")


def _absmax(arrays: Arrays, state: Mapping[str, Any]) -> Floats:
    """Return the absmax of every block; where it is nested, from codes in blocks of their own."""
    stored = _named(arrays, "weight_absmax", "weight.absmax")
    if stored is None:
        raise ValueError("no closed form for bitsandbytes without absmax")
    nested = _named(arrays, "weight_nested_absmax", "weight.nested_absmax")
    values = _named(arrays, "weight_nested_quant_map", "weight.nested_quant_map")
    if nested is None or values is None:
        return stored.astype(np.float64).reshape(-1)
    codes = stored.reshape(-1).astype(np.int64)
    scale = nested.astype(np.float64).reshape(-1)[np.arange(len(codes)) // int(state.get("nested_blocksize", 256))]
    absmax: Floats = values.astype(np.float64)[codes] * scale + float(state.get("nested_offset", 0.0))
    return absmax


def _state(arrays: Arrays) -> Mapping[str, Any]:
    """Return the JSON object that the bytes of quant_state spell; empty without one."""
    for name, stored in arrays.items():
        if name == "weight_quant_state" or name.startswith("weight.quant_state."):
            state: Mapping[str, Any] = json.loads(stored.astype(np.uint8).tobytes())
            return state
    return {}


def _named(arrays: Arrays, *names: str) -> npt.NDArray[Any] | None:
    return next((arrays[name] for name in names if name in arrays), None)
