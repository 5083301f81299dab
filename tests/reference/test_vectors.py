"""The closed form of VPTQ against weights put together one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from reference.stored_words import words_of

from quantfarm import reference


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A made-up layer; ``residuals`` is 0 for none."""

    n: int = 10
    length: int = 4
    count: int = 16
    residuals: int = 0
    books: int = 1
    group_size: int = 6
    outliers: int = 0
    perm: bool = False
    norm: bool = False
    packed: bool = True

    @property
    def k(self) -> int:
        """Inputs: the columns of every codebook and the outliers."""
        return self.books * self.group_size + self.outliers

    def details(self) -> dict[str, Any]:
        """Return the layer's own settings."""
        return {
            "in_features": self.k,
            "out_features": self.n,
            "vector_lens": [2 if self.outliers else -1, self.length],
            "num_centroids": [8 if self.outliers else -1, self.count],
            "num_res_centroids": [-1, self.residuals or -1],
            "group_num": self.books,
            "group_size": self.group_size,
            "outlier_size": self.outliers,
            "enable_norm": self.norm,
            "enable_perm": self.perm,
            "is_indice_packed": self.packed,
            "vector_quant_dim": "out",
        }


def made(layer: Layer) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the stored tensors of a layer and its weight, both from the same random numbers."""
    rng = np.random.default_rng(7)
    steps = -(-layer.n // layer.length)
    shape = (layer.books, steps, layer.group_size)
    main = rng.integers(0, layer.count, shape)
    residual = rng.integers(0, max(layer.residuals, 1), shape)
    main[0, 0, 0], residual[0, 0, 0] = layer.count - 1, max(layer.residuals - 1, 0)
    values = rng.standard_normal((layer.books, layer.count, layer.length)).astype(np.float16)
    corrections = rng.standard_normal((layer.books, max(layer.residuals, 1), layer.length)).astype(np.float16)
    tensors = {"centroids.weight": values.reshape(layer.books, -1)}
    if layer.residuals:
        tensors["res_centroids.weight"] = corrections.reshape(layer.books, -1)
    tensors |= stored_indices(layer, main, residual)
    w = np.zeros((layer.n, layer.k))
    for n in range(layer.n):
        step, inside = divmod(n, layer.length)
        for column in range(layer.books * layer.group_size):
            book, place = divmod(column, layer.group_size)
            value = float(values[book, main[book, step, place], inside])
            if layer.residuals:
                value += float(corrections[book, residual[book, step, place], inside])
            w[n, layer.outliers + column] = value
    if layer.outliers:
        apart = rng.standard_normal((8, 2)).astype(np.float16)
        index = rng.integers(0, 8, (1, -(-layer.n // 2), layer.outliers))
        tensors |= {"outlier_centroids.weight": apart.reshape(1, -1), "outlier_indices": index.astype(np.int16)}
        for n in range(layer.n):
            for column in range(layer.outliers):
                w[n, column] = float(apart[index[0, n // 2, column], n % 2])
    return finished(layer, tensors, w, rng)


def stored_indices(layer: Layer, main: np.ndarray, residual: np.ndarray) -> dict[str, np.ndarray]:
    """Pack both indices of an entry into one stream, or store each in 16 bits."""
    if not layer.packed:
        stored = {"indices": main.astype(np.uint16).view(np.int16)}
        return stored | ({"res_indices": residual.astype(np.uint16).view(np.int16)} if layer.residuals else {})
    low = layer.count.bit_length() - 1
    width = low + (layer.residuals.bit_length() - 1 if layer.residuals else 0)
    entries = (residual << low) | main if layer.residuals else main
    words = [[words_of(row.tolist(), width) for row in book] for book in entries]
    return {"indices": np.array(words, dtype=np.int32)}


def finished(
    layer: Layer, tensors: dict[str, np.ndarray], w: np.ndarray, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Apply permutation, then norm: column j of the stored order is input perm[j]."""
    if layer.perm:
        perm = rng.permutation(layer.k)
        tensors["perm"] = perm.astype(np.uint16).view(np.int16) if layer.packed else perm
        ordered = np.zeros_like(w)
        for column, target in enumerate(perm):
            ordered[:, target] = w[:, column]
        w = ordered
    if layer.norm:
        scale, bias = rng.standard_normal((2, layer.k)).astype(np.float16)
        tensors |= {"weight_scale": scale, "weight_bias": bias}
        w = w * scale.astype(float) + bias.astype(float)
    return tensors, w


@pytest.mark.parametrize(
    "layer",
    [
        Layer(),
        Layer(residuals=4),
        Layer(residuals=64, group_size=9),
        Layer(count=4096, residuals=256, n=8, packed=True),
        Layer(books=3, group_size=5),
        Layer(outliers=3, residuals=16),
        Layer(perm=True, norm=True, outliers=2, books=2),
        Layer(packed=False, perm=True, residuals=8),
        Layer(packed=False, count=65536, length=1, n=3),
    ],
    ids=lambda layer: f"C{layer.count}-R{layer.residuals}-books{layer.books}-out{layer.outliers}-packed{layer.packed}",
)
def test_every_corner_is_put_together_alike(layer: Layer) -> None:
    """Residuals wider than the main index, codebooks, outliers, permutation, norm, and outputs that are padding."""
    tensors, w = made(layer)
    decoded = reference.decode(
        tensors, method="vptq", format="vptq", bits=2, group_size=-1, k=layer.k, n=layer.n, details=layer.details()
    )
    assert np.array_equal(decoded, w)
