"""Closed forms of ggml's types without a codebook (formats, section 10, and ggml's published block layouts).

Each function takes the bytes of blocks [B, type_size] as int64 and returns their values [B, block]. ggml computes in
fp32; here every step is float64 of exactly decoded metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from quantfarm.reference.stored import Floats, Integers

_Number = TypeVar("_Number", np.int64, np.float64)

E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float64)
"""Twice the value of each E2M1 code."""


def half(blocks: Integers, place: int) -> Floats:
    """Return the fp16 number at a byte as [B, 1]."""
    pattern = (blocks[:, place] + 256 * blocks[:, place + 1]).astype(np.uint16)
    return pattern.view(np.float16).astype(np.float64)[:, None]


def signed(values: Integers) -> Integers:
    """Return bytes as int8."""
    return np.where(values >= 128, values - 256, values)


def joined(parts: Sequence[npt.NDArray[_Number]]) -> npt.NDArray[_Number]:
    """Return the parts [B, ...] side by side."""
    whole: npt.NDArray[_Number] = np.concatenate(parts, axis=1)
    return whole


def low_then_high(qs: Integers) -> Integers:
    """Return the nibbles of bytes [B, c]: every low one, then every high one [B, 2c]."""
    return joined([qs % 16, qs // 16])


def f32(blocks: Integers) -> Floats:
    """4 bytes, little-endian."""
    return blocks.astype(np.uint8).view(np.float32).astype(np.float64)


def f16(blocks: Integers) -> Floats:
    """2 bytes, little-endian."""
    return half(blocks, 0)


def bf16(blocks: Integers) -> Floats:
    """The upper half of an fp32 number."""
    pattern = ((blocks[:, 0] + 256 * blocks[:, 1]) << 16).astype(np.uint32)
    return pattern.view(np.float32).astype(np.float64)[:, None]


def q4_0(blocks: Integers) -> Floats:
    """Fp16 d, 16 bytes of two codes; d * (q - 8)."""
    return half(blocks, 0) * (low_then_high(blocks[:, 2:18]) - 8)


def q4_1(blocks: Integers) -> Floats:
    """Fp16 d, fp16 m, 16 bytes of two codes; d * q + m."""
    return half(blocks, 0) * low_then_high(blocks[:, 4:20]) + half(blocks, 2)


def q5_0(blocks: Integers) -> Floats:
    """Fp16 d, 32 fifth bits, 16 bytes; d * (q - 16)."""
    return half(blocks, 0) * (low_then_high(blocks[:, 6:22]) + 16 * bits_of(blocks[:, 2:6]) - 16)


def q5_1(blocks: Integers) -> Floats:
    """Fp16 d, fp16 m, 32 fifth bits, 16 bytes; d * q + m."""
    return half(blocks, 0) * (low_then_high(blocks[:, 8:24]) + 16 * bits_of(blocks[:, 4:8])) + half(blocks, 2)


def q8_0(blocks: Integers) -> Floats:
    """Fp16 d, 32 int8; d * q."""
    return half(blocks, 0) * signed(blocks[:, 2:34])


def q1_0(blocks: Integers) -> Floats:
    """Fp16 d, sign bits; 1 is +d, 0 is -d."""
    return half(blocks, 0) * (2 * bits_of(blocks[:, 2:]) - 1)


def q2_0(blocks: Integers) -> Floats:
    """Fp16 d, four codes a byte; d * (q - 1)."""
    qs = blocks[:, 2:]
    q = np.stack([qs // 4**j % 4 for j in range(4)], axis=2).reshape(len(qs), -1)
    values: Floats = half(blocks, 0) * (q - 1)
    return values


def tq1_0(blocks: Integers) -> Floats:
    """48 bytes of five and 4 bytes of four base-3 digits, fp16 d; d * (digit - 1).

    Digit n of a byte b is the top base-3 digit of the fraction (b * 3^n mod 256) / 256.
    """
    parts: list[Integers] = []
    for first, stop, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        parts += [blocks[:, first:stop] * 3**n % 256 * 3 // 256 for n in range(digits)]
    return half(blocks, 52) * (joined(parts) - 1)


def tq2_0(blocks: Integers) -> Floats:
    """Two halves of 32 bytes, in each four times 32 codes of 2 bits, low ones first; fp16 d; d * (q - 1)."""
    parts = [blocks[:, first : first + 32] // 4**i % 4 for first in (0, 32) for i in range(4)]
    values: Floats = half(blocks, 64) * (joined(parts) - 1)
    return values


def mxfp4(blocks: Integers) -> Floats:
    """A power of two, 16 bytes of two E2M1 codes; the table is doubled, so the scale is 2^(e - 128)."""
    scale = np.ldexp(1.0, blocks[:, :1] - 128)
    return scale * E2M1_DOUBLED[low_then_high(blocks[:, 1:17])]


def nvfp4(blocks: Integers) -> Floats:
    """Four scales in unsigned e4m3, byte 127 being 0, then 8 bytes of E2M1 codes for each 16 elements."""
    # The table is doubled, so a scale counts half.
    code = blocks[:, :4] % 128
    exponent, mantissa = code // 8, code % 8
    scale = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8.0 + mantissa, exponent - 10))
    scale[blocks[:, :4] == 127] = 0.0
    parts = [scale[:, i : i + 1] / 2 * E2M1_DOUBLED[low_then_high(blocks[:, 4 + 8 * i : 12 + 8 * i])] for i in range(4)]
    return joined(parts)


def bits_of(stored: Integers) -> Integers:
    """Return the bits of bytes [B, c], least significant first, as [B, 8c]."""
    return np.stack([stored // 2**j % 2 for j in range(8)], axis=2).reshape(len(stored), -1)
