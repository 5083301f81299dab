"""Closed form of VPTQ: indices of vectors of outputs, with residual and outlier codebooks (formats, section 14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from quantfarm.reference.stored import Arrays, Floats, Integers, Stored


def vptq(arrays: Arrays, says: Stored) -> Floats:
    """Decode VPTQ by the layer's own settings in ``details``; everything after the stored centroids is float64."""
    layer = says.details
    k, n = int(layer.get("in_features") or says.k or 0), int(layer.get("out_features") or says.n or 0)
    outliers = max(int(layer.get("outlier_size") or 0), 0)
    w = _main(arrays, layer, n)[:, : k - outliers]
    if outliers:
        w = np.concatenate([_outliers(arrays, layer, n), w], axis=1)
    if layer.get("enable_perm"):
        w = w[:, np.argsort(_indices(arrays["perm"]), kind="stable")]
    if layer.get("enable_norm"):
        w = w * arrays["weight_scale"].astype(np.float64) + arrays["weight_bias"].astype(np.float64)
    return w


def _main(arrays: Arrays, layer: Mapping[str, Any], n: int) -> Floats:
    """Return the columns of every codebook in their order, [N, group_num * group_size]."""
    length, count, residual_count = (
        int(layer[name][1]) for name in ("vector_lens", "num_centroids", "num_res_centroids")
    )
    main, residual = _main_and_residual(arrays, layer, count, residual_count)
    centroids = _centroids(arrays["centroids.weight"], length)
    columns = []
    for book, vectors in enumerate(centroids):
        decoded = vectors[main[book]]
        if residual_count > 0:
            decoded = decoded + _centroids(arrays["res_centroids.weight"], length)[book][residual[book]]
        columns.append(_stacked(decoded, n))
    return np.concatenate(columns, axis=1)


def _main_and_residual(
    arrays: Arrays, layer: Mapping[str, Any], count: int, residual_count: int
) -> tuple[Integers, Integers]:
    """Return both indices [books, M, group_size] of every vector; the residual one is 0 where there is none."""
    stored = arrays["indices"]
    if not layer.get("is_indice_packed"):
        main = _indices(stored)
        return main, _indices(arrays["res_indices"]) if residual_count > 0 else np.zeros_like(main)
    low = (count - 1).bit_length()
    high = (residual_count - 1).bit_length() if residual_count > 0 else 0
    entries = _stream(stored, low + high, int(layer["group_size"]))
    return entries % 2**low, entries >> low


def _stream(words: npt.NDArray[Any], bits: int, count: int) -> Integers:
    """Decode ``count`` fields of a little-endian bit stream in the last dimension of int32 words."""
    unsigned = words.astype(np.int64) % 2**32
    found = np.zeros((*words.shape[:-1], count), dtype=np.int64)
    for i in range(count):
        for j in range(bits):
            place = i * bits + j
            found[..., i] += ((unsigned[..., place // 32] >> (place % 32)) % 2) << j
    return found


def _outliers(arrays: Arrays, layer: Mapping[str, Any], n: int) -> Floats:
    """Return the outlier columns [N, outlier_size]."""
    (vectors,) = _centroids(arrays["outlier_centroids.weight"], int(layer["vector_lens"][0]))
    return _stacked(vectors[_indices(arrays["outlier_indices"])[0]], n)


def _stacked(decoded: Floats, n: int) -> Floats:
    """Return [N, columns] from vectors [M, columns, v]: vector m holds outputs m*v to m*v + v - 1.

    Outputs from N on are padding and fall off.
    """
    steps, columns, length = decoded.shape
    rows: Floats = decoded.transpose(0, 2, 1).reshape(steps * length, columns)
    return rows[:n]


def _centroids(stored: npt.NDArray[Any], length: int) -> Floats:
    return stored.astype(np.float64).reshape(len(stored), -1, length)


def _indices(stored: npt.NDArray[Any]) -> Integers:
    """Widen indices; those in 16 bits are unsigned, whatever the dtype says, a float's dtype included.

    A bfloat16 arrives as the float32 whose upper half it is.
    """
    if stored.dtype == np.float32:
        return (stored.view(np.uint32) >> 16).astype(np.int64)
    if stored.dtype.itemsize == 2:
        return stored.view(np.uint16).astype(np.int64)
    return stored.astype(np.int64)
