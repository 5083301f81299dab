"""Closed forms of ggml's IQ types: codes are indices into published tables (ggml's block layouts)."""

from __future__ import annotations

import numpy as np

from quantfarm.reference.ggml_blocks import half, joined, low_then_high
from quantfarm.reference.stored import Floats, Integers

_NON_LINEAR = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    dtype=np.float64,
)


def iq4_nl(blocks: Integers) -> Floats:
    """Fp16 d, 16 bytes of two codes; d * table."""
    return half(blocks, 0) * _NON_LINEAR[low_then_high(blocks[:, 2:18])]


def iq4_xs(blocks: Integers) -> Floats:
    """Fp16 d, upper bits of 8 scales, 4 bytes of their lower nibbles, 128 bytes of codes; d * (s - 32) * table."""
    upper = _words(blocks[:, 2:4], 2)
    parts = []
    for j in range(8):
        low = blocks[:, 4 + j // 2] // 16 ** (j % 2) % 16
        scale = (low + 16 * (upper[:, 0] // 4**j % 4) - 32)[:, None]
        parts.append(scale * _NON_LINEAR[low_then_high(blocks[:, 8 + 16 * j : 24 + 16 * j])])
    values: Floats = half(blocks, 0) * joined(parts)
    return values


def _words(stored: Integers, size: int) -> Integers:
    """Return little-endian words of ``size`` bytes."""
    return sum((stored[:, i::size] << (8 * i) for i in range(size)), start=np.zeros(1, dtype=np.int64))
