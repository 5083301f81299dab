"""Deliberate errors, one for each way a kernel or reader goes wrong. Every one must be detected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from support.weights import Weight


def swapped_nibbles(weight: Weight, k: int, n: int) -> Weight:
    """E1: the code at (k, n) and its neighbour within the word change places; equal ones differ in one bit instead."""
    codes = weight.codes.copy()
    other = k ^ 1
    if codes[k, n] == codes[other, n]:
        codes[k, n] ^= 1
        return replace(weight, codes=codes)
    codes[[k, other], n] = codes[[other, k], n]
    return replace(weight, codes=codes)


def scaled_group(weight: Weight, k: int, n: int) -> Weight:
    """E2: the scales of one group are 1.01 times too large."""
    scales = weight.scales.copy()
    scales[weight.groups[k]] *= np.float16(1.01)
    return replace(weight, scales=scales)


def neighbour_scale(weight: Weight, k: int, n: int) -> Weight:
    """E2: one scale is that of the next output."""
    scales = weight.scales.copy()
    scales[weight.groups[k], n] = scales[weight.groups[k], (n + 1) % weight.n]
    return replace(weight, scales=scales)


def dropped_group(weight: Weight, k: int, n: int) -> Weight:
    """E3: one group contributes nothing."""
    scales = weight.scales.copy()
    scales[weight.groups[k]] = 0
    return replace(weight, scales=scales)


def shifted_zero(weight: Weight, k: int, n: int) -> Weight:
    """E4: the zero points of one group are off by one, downwards.

    Upwards, a symmetric v1 file becomes one whose words are those of v2, which readers take for what it looks like.
    """
    zeros = weight.zeros.copy()
    row = zeros[weight.groups[k]].astype(np.int64)
    zeros[weight.groups[k]] = np.where(row > 1, row - 1, row + 1).astype(np.uint8)
    return replace(weight, zeros=zeros)


def forgotten_order(weight: Weight, k: int, n: int) -> Weight:
    """E5: the order of activations is not applied."""
    return replace(weight, groups=np.sort(weight.groups))


INJECTIONS: dict[str, Callable[[Weight, int, int], Weight]] = {
    "E1-swapped-nibbles": swapped_nibbles,
    "E2-scaled-group": scaled_group,
    "E2-neighbour-scale": neighbour_scale,
    "E3-dropped-group": dropped_group,
    "E4-shifted-zero": shifted_zero,
    "E5-forgotten-order": forgotten_order,
}
