"""ParoQuant: AWQ words behind a rotation of pairs of inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from support.affine import random_affine
from support.recipe import Recipe
from support.stored import Rng, StoredWeight


def variants(bits: int) -> Sequence[str]:
    """Return the numbers of rounds."""
    return ["1", "8"]


def fits(recipe: Recipe) -> bool:
    """Whole groups, an even number of channels in each."""
    size = recipe.k if recipe.group_size == -1 else recipe.group_size
    return recipe.k % size == 0 and size % 2 == 0 and recipe.n % 8 == 0


def make(recipe: Recipe, rng: Rng) -> StoredWeight:
    """Return random angles over random pairs."""
    n, k, rounds = recipe.n, recipe.k, int(recipe.variant)
    size = k if recipe.group_size == -1 else recipe.group_size
    inner = Recipe("awq", "gemm", 4, recipe.group_size, True, False, n, k)
    pairs = np.stack([np.concatenate([rng.permutation(size) for _ in range(k // size)]) for _ in range(rounds)])
    stored = random_affine(inner, int(rng.integers(1 << 30))).tensors()
    stored["theta"] = torch.from_numpy(rng.uniform(-1, 1, (rounds, k // 2))).to(torch.float16)
    stored["pairs"] = torch.from_numpy(pairs.astype(np.int16))
    stored["channel_scales"] = torch.from_numpy(np.exp(rng.normal(0, 0.3, (1, k)))).to(torch.float16)
    config = {"quant_method": "paroquant", "format": "paroquant", "bits": 4, "group_size": recipe.group_size}
    return StoredWeight(
        recipe=recipe,
        stored=stored,
        told={"sym": True, "details": {"krot": rounds}},
        config={**config, "krot": rounds, "sym": True},
        scale="scales",
        codes="qweight",
        exact=False,
    )
