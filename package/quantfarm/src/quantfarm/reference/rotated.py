"""Closed form of ParoQuant: AWQ tensors behind scaled and pairwise rotated inputs (formats, section 15)."""

from __future__ import annotations

import numpy as np

from quantfarm.reference.closed_forms import affine, awq_fields, group_of_inputs
from quantfarm.reference.stored import Arrays, Floats, Stored, unsigned


def paroquant(arrays: Arrays, says: Stored) -> Floats:
    """Decode ParoQuant: with the transform T of the inputs and the decoded weight D, y = D T x, so W = D T."""
    q = awq_fields(unsigned(arrays["qweight"]), says.bits)
    if "qzeros" in arrays:
        z = awq_fields(unsigned(arrays["qzeros"]), says.bits)
    else:
        z = np.full(arrays["scales"].shape, 2 ** (says.bits - 1), dtype=np.int64)
    dequantized = affine(q, z, group_of_inputs(arrays, says, q.shape[0]), arrays["scales"])
    k = dequantized.shape[1]
    rows = transformed(np.eye(k), arrays, k if says.group_size == -1 else says.group_size)
    effective: Floats = dequantized @ rows.T
    return effective


def transformed(x: Floats, arrays: Arrays, group_size: int) -> Floats:
    """Return the transformed inputs of x [rows, K]: times the channel scales, then round after round of rotations."""
    x = x * arrays["channel_scales"].astype(np.float64).reshape(1, -1)
    theta, pairs = arrays["theta"].astype(np.float64), arrays["pairs"].astype(np.int64)
    for angles, places in zip(theta, pairs, strict=True):
        before, x = x, x.copy()
        for p, angle in enumerate(angles):
            first = 2 * p // group_size * group_size
            i, j = first + places[2 * p], first + places[2 * p + 1]
            x[:, i] = before[:, i] * np.cos(angle) + before[:, j] * np.sin(angle)
            x[:, j] = -before[:, i] * np.sin(angle) + before[:, j] * np.cos(angle)
    return x
