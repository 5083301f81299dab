"""VPTQ: centroid indices, packed or not, with residual codebook, outliers, order and norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from support import words as orders
from support.recipe import Recipe
from support.stored import Rng, StoredWeight, scales

V = 8
LOG_MAIN = 4


def variants(bits: int) -> Sequence[str]:
    """Return what is present; a width of b bits is (log2 C + log2 R) / v, so a few widths only."""
    return {1: ["plain", "norm-perm"], 2: ["residual", "residual-norm-perm", "residual-groups"]}.get(bits, [])


def fits(recipe: Recipe) -> bool:
    """Whole vectors along N, and halves of K where there are two groups."""
    return recipe.n % V == 0 and recipe.k % 2 == 0


def make(recipe: Recipe, rng: Rng) -> StoredWeight:
    """Return random indices into random codebooks."""
    parts = recipe.variant.split("-")
    n, k = recipe.n, recipe.k
    books = 2 if "groups" in parts else 1
    log_main = 8 if "residual" not in parts else LOG_MAIN
    log_residual = 2 * V - LOG_MAIN if "residual" in parts else 0
    stored: dict[str, torch.Tensor] = {"centroids.weight": _centroids(rng, books, log_main)}
    if log_residual:
        stored["res_centroids.weight"] = _centroids(rng, books, log_residual, size=0.1)
    width = log_main + log_residual
    entries = rng.integers(0, 1 << width, (books, n // V, k // books), dtype=np.uint32)
    stored["indices"] = torch.stack([_packed(book, width) for book in entries])
    if "perm" in parts:
        stored["perm"] = torch.from_numpy(rng.permutation(k).astype(np.uint16).view(np.int16))
    if "norm" in parts:
        stored["weight_scale"] = scales(rng, k, size=1.0)
        stored["weight_bias"] = torch.from_numpy(rng.normal(0, 0.01, k)).to(torch.float16)
    layer: dict[str, Any] = {
        "in_features": k,
        "out_features": n,
        "vector_lens": [-1, V],
        "num_centroids": [-1, 1 << log_main],
        "num_res_centroids": [-1, 1 << log_residual if log_residual else -1],
        "group_num": books,
        "group_size": k // books,
        "outlier_size": 0,
        "indices_as_float": False,
        "enable_norm": "norm" in parts,
        "enable_perm": "perm" in parts,
        "is_indice_packed": True,
        "bias": False,
        "vector_quant_dim": "out",
    }
    return StoredWeight(
        recipe=recipe,
        stored=stored,
        told={"details": layer},
        config={"quant_method": "vptq", "config_for_layers": {"case": layer}},
        scale="weight_scale" if "norm" in parts else "centroids.weight",
        codes="indices",
        # A residual vector and a norm are added, so that a small value is the rest of larger ones.
        exact=len(parts) == 1 and parts[0] == "plain",
    )


def _centroids(rng: Rng, books: int, log_count: int, size: float = 1.0) -> torch.Tensor:
    return torch.from_numpy(rng.normal(0, 0.02 * size, (books, (1 << log_count) * V))).to(torch.float16)


def _packed(entries: Any, width: int) -> torch.Tensor:
    """Pack [M, group] entries of up to 16 bits to one little-endian stream a row, padded to words."""
    low, high = (entries & 0xFF).astype(np.uint8), (entries >> 8).astype(np.uint8)
    bits = np.concatenate([np.unpackbits(part[:, :, None], axis=2, bitorder="little") for part in (low, high)], axis=2)
    laid = bits[:, :, :width].reshape(entries.shape[0], -1)
    return orders.as_words(np.pad(laid, ((0, 0), (0, -laid.shape[1] % 32))).T).T.contiguous()
