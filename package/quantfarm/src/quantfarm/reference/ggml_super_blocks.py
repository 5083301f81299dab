"""Closed forms of ggml's K types: 256 elements with scales of their own (formats, section 10, and ggml's layouts)."""

from __future__ import annotations

import numpy as np

from quantfarm.reference.ggml_blocks import half, joined, signed
from quantfarm.reference.stored import Floats, Integers


def q2_k(blocks: Integers) -> Floats:
    """16 scale bytes, 64 bytes of codes, fp16 d, fp16 dmin; sub-blocks of 16: d * (s % 16) * q - dmin * (s // 16)."""
    scales, q = blocks[:, :16], _twos(blocks[:, 16:80])
    return half(blocks, 80) * _spread(scales % 16, 16) * q - half(blocks, 82) * _spread(scales // 16, 16)


def q3_k(blocks: Integers) -> Floats:
    """32 bytes of third bits, 64 bytes of codes, 12 bytes of 16 six-bit scales, fp16 d; d * (s - 32) * (q - 4)."""
    high = joined([blocks[:, :32] // 2**j % 2 for j in range(8)])
    q = _twos(blocks[:, 32:96]) + 4 * high - 4
    packed = blocks[:, 96:108]
    low = joined([packed[:, :8] % 16, packed[:, :8] // 16])
    top = joined([packed[:, 8:] // 4**j % 4 for j in range(4)])
    values: Floats = half(blocks, 108) * _spread(low + 16 * top - 32, 16) * q
    return values


def q4_k(blocks: Integers) -> Floats:
    """Fp16 d, fp16 dmin, 12 scale bytes, 128 bytes of codes; sub-blocks of 32: d * sc * q - dmin * m."""
    return _scaled_by_six_bits(blocks, _nibbles(blocks[:, 16:144]))


def q5_k(blocks: Integers) -> Floats:
    """Fp16 d, fp16 dmin, 12 scale bytes, 32 bytes of fifth bits (bit = sub-block), 128 bytes of codes."""
    fifth = joined([blocks[:, 16:48] // 2**j % 2 for j in range(8)])
    return _scaled_by_six_bits(blocks, _nibbles(blocks[:, 48:176]) + 16 * fifth)


def q6_k(blocks: Integers) -> Floats:
    """128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 int8 scales, fp16 d; d * scale * (q - 32)."""
    parts = []
    for side in range(2):
        ql, qh = blocks[:, 64 * side : 64 * side + 64], blocks[:, 128 + 32 * side : 160 + 32 * side]
        low = [ql[:, :32] % 16, ql[:, 32:] % 16, ql[:, :32] // 16, ql[:, 32:] // 16]
        parts += [low[g] + 16 * (qh // 4**g % 4) for g in range(4)]
    q = joined(parts) - 32
    values: Floats = half(blocks, 208) * _spread(signed(blocks[:, 192:208]), 16) * q
    return values


def _scaled_by_six_bits(blocks: Integers, q: Integers) -> Floats:
    scales, minima = np.zeros((2, len(blocks), 8), dtype=np.int64)
    s = blocks[:, 4:16]
    for j in range(8):
        if j < 4:
            scales[:, j], minima[:, j] = s[:, j] & 63, s[:, j + 4] & 63
        else:
            scales[:, j] = (s[:, j + 4] & 15) | ((s[:, j - 4] >> 6) << 4)
            minima[:, j] = (s[:, j + 4] >> 4) | ((s[:, j] >> 6) << 4)
    return half(blocks, 0) * _spread(scales, 32) * q - half(blocks, 2) * _spread(minima, 32)


def _nibbles(qs: Integers) -> Integers:
    """Decode chunks of 32 bytes: the low nibbles are one sub-block of 32, the high ones the next."""
    parts = [qs[:, first : first + 32] // 16**side % 16 for first in range(0, qs.shape[1], 32) for side in range(2)]
    return joined(parts)


def _twos(qs: Integers) -> Integers:
    """Decode chunks of 32 bytes, each of which holds four times 32 codes of 2 bits, low ones first."""
    parts = [qs[:, first : first + 32] // 4**i % 4 for first in range(0, qs.shape[1], 32) for i in range(4)]
    return joined(parts)


def _spread(of_sub_block: Integers, size: int) -> Integers:
    return np.repeat(of_sub_block, size, axis=1)
