"""Closed forms of weights stored as narrow floats: FP8 in all its kinds, MXFP4, NVFP4 (formats, sections 11 and 12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from quantfarm.reference.stored import Arrays, Floats, Stored

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SCALE_NAMES = ("weight_scale_inv", "weight_scale", "scale")


def fp8(arrays: Arrays, says: Stored) -> Floats:
    """Decode a float8 weight [N, K] with one scale, one a row, or one a block.

    ``details["weight_scale_semantics"]`` decides the direction: ``inverse`` divides, ``multiply`` multiplies.
    """
    q = _values(arrays["weight"], says.code_type or "float8_e4m3fn")
    scale = _spread(_scale(arrays), q.shape, says.details)
    semantics = says.details.get("weight_scale_semantics")
    if semantics == "inverse":
        return q / scale
    if semantics == "multiply":
        return q * scale
    raise ValueError(f"no closed form for the scale direction {semantics!r}")


def mxfp4(arrays: Arrays, says: Stored) -> Floats:  # noqa: ARG001 - every closed form takes both
    """Decode E2M1 codes with one power of two for every 32 inputs."""
    scale = e8m0(arrays["weight_scale"])
    return e2m1(arrays["weight_packed"]) * np.repeat(scale, 32, axis=1)


def nvfp4(arrays: Arrays, says: Stored) -> Floats:
    """Decode E2M1 codes with an e4m3 scale for every 16 inputs and one fp32 scale over all."""
    scale = np.repeat(_scale_values(arrays["weight_scale"], e4m3fn), 16, axis=1)
    over_all = float(arrays["weight_global_scale"].astype(np.float64).reshape(-1)[0])
    semantics = says.details.get("weight_global_scale_semantics")
    if semantics == "divide":
        return e2m1(arrays["weight_packed"]) * scale / over_all
    if semantics == "multiply":
        return e2m1(arrays["weight_packed"]) * scale * over_all
    raise ValueError(f"no closed form for the direction {semantics!r} of the scale over all")


def e2m1(packed: npt.NDArray[Any]) -> Floats:
    """Return the values of packed codes [N, K/2] as [N, K]; element 2i lies in the low nibble, the sign in bit 3."""
    table = np.array([*_E2M1, *(-value for value in _E2M1)])
    pairs = packed.view(np.uint8).astype(np.int64)
    values = np.zeros((pairs.shape[0], 2 * pairs.shape[1]))
    values[:, 0::2], values[:, 1::2] = table[pairs % 16], table[pairs // 16]
    return values


def e4m3fn(codes: npt.NDArray[Any]) -> Floats:
    """4 exponent bits, bias 7; no infinities, NaN where all other bits are one."""
    return _ieee_like(codes, mantissa_bits=3, bias=7, nans=(0x7F, 0xFF))


def e4m3fnuz(codes: npt.NDArray[Any]) -> Floats:
    """4 exponent bits, bias 8; one zero, NaN in the place of the negative zero."""
    return _ieee_like(codes, mantissa_bits=3, bias=8, nans=(0x80,))


def e5m2(codes: npt.NDArray[Any]) -> Floats:
    """5 exponent bits, bias 15; infinities and NaN as in IEEE 754."""
    values = _ieee_like(codes, mantissa_bits=2, bias=15, nans=(0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF))
    values[codes == 0x7C], values[codes == 0xFC] = np.inf, -np.inf
    return values


def e5m2fnuz(codes: npt.NDArray[Any]) -> Floats:
    """5 exponent bits, bias 16; one zero, NaN in the place of the negative zero."""
    return _ieee_like(codes, mantissa_bits=2, bias=16, nans=(0x80,))


def e8m0(codes: npt.NDArray[Any]) -> Floats:
    """2^(code - 127); 255 is NaN."""
    values: Floats = np.ldexp(1.0, codes.astype(np.int64) - 127)
    values[codes == 255] = np.nan
    return values


_KINDS: Mapping[str, Callable[[npt.NDArray[Any]], Floats]] = {
    "float8_e4m3fn": e4m3fn,
    "float8_e4m3fnuz": e4m3fnuz,
    "float8_e5m2": e5m2,
    "float8_e5m2fnuz": e5m2fnuz,
    "float8_e8m0fnu": e8m0,
}


def _values(stored: npt.NDArray[Any], kind: str) -> Floats:
    if kind not in _KINDS:
        raise ValueError(f"no closed form for {kind!r}")
    return _KINDS[kind](stored.view(np.uint8))


def _ieee_like(codes: npt.NDArray[Any], *, mantissa_bits: int, bias: int, nans: tuple[int, ...]) -> Floats:
    """Sign in bit 7, then exponent, then mantissa; exponent 0 is subnormal."""
    number = codes.astype(np.int64)
    exponent, mantissa = number % 128 >> mantissa_bits, number % 2**mantissa_bits
    fraction = mantissa / 2**mantissa_bits
    magnitude = np.where(
        exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, (exponent - bias).astype(np.int64))
    )
    values: Floats = np.where(number >= 128, -magnitude, magnitude)
    values[np.isin(number, nans)] = np.nan
    return values


def _scale(arrays: Arrays) -> Floats:
    for name in _SCALE_NAMES:
        if name in arrays:
            return _scale_values(arrays[name], e8m0)
    raise ValueError(f"no closed form without one of {', '.join(_SCALE_NAMES)}")


def _scale_values(stored: npt.NDArray[Any], of_bytes: Callable[[npt.NDArray[Any]], Floats]) -> Floats:
    """Widen stored scales; bytes are narrow floats of the kind that the format has there."""
    return of_bytes(stored) if stored.dtype == np.uint8 else stored.astype(np.float64)


def _spread(scale: Floats, shape: tuple[int, ...], details: Mapping[str, Any]) -> Floats:
    """Return the scale of every weight [N, K]; a block at the edge may be partial."""
    n, k = shape
    method = details.get("weight_scale_method", "row")
    if method == "tensor":
        return np.full((n, k), scale.reshape(-1)[0])
    if method == "row":
        return np.broadcast_to(scale.reshape(n, 1), (n, k))
    if method == "block":
        rows, columns = details["weight_block_size"]
        spread: Floats = scale[np.arange(n)[:, None] // rows, np.arange(k)[None, :] // columns]
        return spread
    raise ValueError(f"no closed form for the scale method {method!r}")
