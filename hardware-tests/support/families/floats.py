"""FP8 with scales of a tensor, rows or blocks in both directions, and the 4-bit floats with block scales."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from support.recipe import Recipe
from support.stored import Rng, StoredWeight, octets, scales

BLOCK = (32, 64)


def variants(bits: int) -> Sequence[str]:
    """Return ``dtype-recipe-direction`` for FP8; the 4-bit formats have one each."""
    if bits != 8:
        return [""]
    ways = ("tensor-inverse", "row-inverse", "row-multiply", "block-inverse", "block-multiply")
    return [f"{dtype}-{way}" for dtype, way in zip(("float8_e4m3fn", "float8_e5m2") * 3, ways, strict=False)]


def fits(recipe: Recipe) -> bool:
    """Blocks must be whole."""
    if recipe.format == "fp8":
        return "block" not in recipe.variant or (recipe.n % BLOCK[0] == 0 and recipe.k % BLOCK[1] == 0)
    return recipe.k % {"mxfp4": 32, "nvfp4": 16}[recipe.format] == 0


def make(recipe: Recipe, rng: Rng) -> StoredWeight:
    """Return codes of every value but NaN and infinity."""
    if recipe.format != "fp8":
        return _four_bits(recipe, rng)
    dtype, way, direction = recipe.variant.split("-")
    # Two thirds of the exponents, so that one code does not outweigh all others.
    codes = octets(rng, recipe.n, recipe.k) & 0x80 | rng.integers(8, 0x58, (recipe.n, recipe.k)).astype(np.uint8)
    shape = {"tensor": (), "row": (recipe.n,), "block": (recipe.n // BLOCK[0], recipe.k // BLOCK[1])}[way]
    size = 0.01 if direction == "multiply" else 100.0
    details = {"weight_scale_method": way, "weight_scale_semantics": direction}
    if way == "block":
        details["weight_block_size"] = list(BLOCK)  # type: ignore[assignment]
    return StoredWeight(
        recipe=recipe,
        stored={
            "weight": torch.from_numpy(codes).view(getattr(torch, dtype)),
            "weight_scale_inv": scales(rng, *shape, size=size, dtype=torch.float32),
        },
        told={"code_type": dtype, "details": details},
        config={"quant_method": "fp8", "bits": 8, "format": dtype, "group_size": -1, **details},
        scale="weight_scale_inv",
        codes="weight",
    )


def _four_bits(recipe: Recipe, rng: Rng) -> StoredWeight:
    n, k = recipe.n, recipe.k
    stored = {"weight_packed": torch.from_numpy(octets(rng, n, k // 2))}
    details: dict[str, str] = {}
    if recipe.format == "mxfp4":
        stored["weight_scale"] = torch.from_numpy(rng.integers(116, 124, (n, k // 32)).astype(np.uint8))
    else:
        bytes_of = rng.integers(0x30, 0x50, (n, k // 16)).astype(np.uint8)
        stored["weight_scale"] = torch.from_numpy(bytes_of).view(torch.float8_e4m3fn)
        stored["weight_global_scale"] = torch.tensor([37.5])
        details = {"weight_global_scale_semantics": "divide"}
    return StoredWeight(
        recipe=recipe,
        stored=stored,
        told={"details": details},
        config={"quant_method": "fp8", "bits": 4, "format": recipe.format, "group_size": recipe.group_size, **details},
        scale="weight_scale",
        codes="weight_packed",
        roundings=1 if recipe.format == "mxfp4" else 2,
    )
