"""Deliberate errors, one for each way a kernel or reader goes wrong. Every one must be detected.

Affine codes get them before packing; the other kinds in their stored tensors, where the error changes something at
the wanted input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from support.families.ggml import TYPES
from support.weights import AffineWeight, StoredWeight, Weight


def swapped_nibbles(weight: AffineWeight, k: int, n: int) -> AffineWeight:
    """E1: the code at (k, n) and its neighbour within the word change places; equal ones differ in one bit instead."""
    codes = weight.codes.copy()
    other = k ^ 1
    if codes[k, n] == codes[other, n]:
        codes[k, n] ^= 1
        return replace(weight, codes=codes)
    codes[[k, other], n] = codes[[other, k], n]
    return replace(weight, codes=codes)


def scaled_group(weight: AffineWeight, k: int, n: int) -> AffineWeight:
    """E2: the scales of one group are 1.01 times too large."""
    scales = weight.scales.copy()
    scales[weight.groups[k]] *= np.float16(1.01)
    return replace(weight, scales=scales)


def neighbour_scale(weight: AffineWeight, k: int, n: int) -> AffineWeight:
    """E2: one scale is that of the next output."""
    scales = weight.scales.copy()
    scales[weight.groups[k], n] = scales[weight.groups[k], (n + 1) % weight.n]
    return replace(weight, scales=scales)


def dropped_group(weight: AffineWeight, k: int, n: int) -> AffineWeight:
    """E3: one group contributes nothing."""
    scales = weight.scales.copy()
    scales[weight.groups[k]] = 0
    return replace(weight, scales=scales)


def shifted_zero(weight: AffineWeight, k: int, n: int) -> AffineWeight:
    """E4: the zero points of one group are off by one, downwards for v1 and upwards for all others.

    The other way, a symmetric file becomes one whose words are those of v2 or v1, which readers take for what it is.
    """
    zeros = weight.zeros.copy()
    row = zeros[weight.groups[k]].astype(np.int64)
    top = (1 << weight.bits) - 1
    moved = np.where(row > 1, row - 1, row + 1) if weight.format == "gptq" else np.where(row < top, row + 1, row - 1)
    zeros[weight.groups[k]] = moved.astype(np.uint8)
    return replace(weight, zeros=zeros)


def forgotten_order(weight: AffineWeight, k: int, n: int) -> AffineWeight:
    """E5: the order of activations is not applied."""
    return replace(weight, groups=np.sort(weight.groups))


def changed_code(weight: StoredWeight, k: int, n: int) -> StoredWeight:
    """E1: one bit of one stored code is another; the place lies as far into the tensor as (k, n) into the weight."""
    flat, width = _bytes(weight.stored[weight.codes])
    part = (n * weight.k + k) / (weight.n * weight.k)
    flat[_code_byte(weight, int(part * flat.size) // width * width)] ^= 1 << 2
    return weight.with_tensor(weight.codes, _back(flat, weight.stored[weight.codes]))


def larger_scale(weight: StoredWeight, k: int, n: int) -> StoredWeight:
    """E2: the scale at (k, n) is an eighth too large, the least that every stored dtype of a scale can hold."""
    return _scaled(weight, k, n, 1.125)


def dropped_scale(weight: StoredWeight, k: int, n: int) -> StoredWeight:
    """E3: what the scale at (k, n) belongs to contributes nothing."""
    return _scaled(weight, k, n, 0.0)


def inverted_scale(weight: StoredWeight, k: int, n: int) -> StoredWeight:
    """E9: the other direction of an fp8 scale."""
    other = {"inverse": "multiply", "multiply": "inverse"}[weight.config["weight_scale_semantics"]]
    return replace(weight, config={**weight.config, "weight_scale_semantics": other})


def _scaled(weight: StoredWeight, k: int, n: int, factor: float) -> StoredWeight:
    if not weight.scale:
        return _scaled_block(weight, k, n, factor)
    old = weight.stored[weight.scale]
    flat = old.clone().reshape(-1)
    part = (n * weight.k + k) / (weight.n * weight.k) if old.dim() != 1 or old.shape[0] != weight.k else k / weight.k
    at = int(part * flat.numel())
    if flat.dtype is torch.uint8:
        # Bytes of an exponent: the next one stands for twice the scale, the lowest for nothing.
        flat[at] = flat[at] + 1 if factor else 0
    else:
        flat[at] = (flat[at].to(torch.float32) * factor).to(flat.dtype)
    return weight.with_tensor(weight.scale, flat.reshape(old.shape))


def _scaled_block(weight: StoredWeight, k: int, n: int, factor: float) -> StoredWeight:
    """Change the first fp16 field of the ggml block that holds input k of output n."""
    _, block, size, (offset, *_) = TYPES[weight.recipe.variant]
    rows = weight.stored["qweight"].clone().numpy()
    at = k // block * size + offset
    value = rows[n, at : at + 2].view("<f2") * np.float16(factor)
    rows[n, at : at + 2] = value.astype("<f2").view(np.uint8)
    return weight.with_tensor("qweight", torch.from_numpy(rows))


def _code_byte(weight: StoredWeight, at: int) -> int:
    """Return the byte itself; in ggml rows the nearest one of the same block that is no part of a scale."""
    if weight.recipe.variant not in TYPES:
        return at
    _, _, size, fields = TYPES[weight.recipe.variant]
    taken = {offset + i for offset in fields for i in (0, 1)}
    inside = max((place for place in range(size) if place not in taken), key=lambda place: -abs(place - size * 2 // 3))
    return at // size * size + inside


def _bytes(tensor: torch.Tensor) -> tuple[np.ndarray, int]:
    """Return a tensor's bytes, copied, and how many one element has."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().copy()
    return raw, tensor.element_size()


def _back(flat: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(flat).view(like.dtype).reshape(like.shape)


AFFINE: dict[str, Callable[[AffineWeight, int, int], AffineWeight]] = {
    "E1-swapped-nibbles": swapped_nibbles,
    "E2-scaled-group": scaled_group,
    "E2-neighbour-scale": neighbour_scale,
    "E3-dropped-group": dropped_group,
    "E4-shifted-zero": shifted_zero,
    "E5-forgotten-order": forgotten_order,
}

STORED: dict[str, Callable[[StoredWeight, int, int], StoredWeight]] = {
    "E1-changed-code": changed_code,
    "E2-larger-scale": larger_scale,
    "E3-dropped-scale": dropped_scale,
    "E9-inverted-scale": inverted_scale,
}


def injections(weight: Weight) -> dict[str, Callable[[int, int], Weight]]:
    """Return the errors that exist for a weight, each as a function of the input and output it happens at."""
    if isinstance(weight, AffineWeight):
        affine = weight
        return {name: lambda k, n, f=f: f(affine, k, n) for name, f in AFFINE.items()}
    stored = weight
    directed = "weight_scale_semantics" in weight.config
    return {
        name: lambda k, n, f=f: f(stored, k, n) for name, f in STORED.items() if directed or not name.startswith("E9")
    }
