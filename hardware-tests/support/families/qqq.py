"""QQQ: any words are valid codes; the product is judged against the same int8 activations."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from support.recipe import Recipe
from support.stored import Rng, StoredWeight, scales, words


def variants(bits: int) -> Sequence[str]:
    """Return the one way."""
    return [""]


def fits(recipe: Recipe) -> bool:
    """Tiles of 64 outputs, groups of 128 inputs."""
    whole = recipe.group_size == -1 or recipe.k % recipe.group_size == 0
    return whole and recipe.k % 64 == 0 and recipe.n % 64 == 0 and (recipe.k % 128 == 0 or recipe.n % 128 == 0)


def make(recipe: Recipe, rng: Rng) -> StoredWeight:
    """Return both levels of scales, or one."""
    n, k = recipe.n, recipe.k
    grouped = recipe.group_size != -1
    fine = scales(rng, k // 128, n, size=12.0) if grouped else torch.empty(0, dtype=torch.float16)
    return StoredWeight(
        recipe=recipe,
        stored={
            "B": words(rng, k // 16, n * 2),
            "s_channel": scales(rng, 1, n, size=0.001, dtype=torch.float32),
            "s_group": fine,
        },
        told={},
        config={"quant_method": "qqq", "bits": 4, "group_size": recipe.group_size, "sym": True},
        scale="s_channel",
        codes="B",
        exact=False,
        inputs=as_int8,
    )


def as_int8(x: torch.Tensor) -> torch.Tensor:
    """Return x [M, K] as its int8 codes stand for it: scale amax/127 in fp32 per row, codes rounded half to even."""
    wide = x.to(torch.float32)
    scale = wide.abs().amax(dim=1, keepdim=True) / 127
    codes = torch.where(scale > 0, (wide / scale).round().clamp(-128, 127), torch.zeros_like(wide))
    return codes.to(torch.float64) * scale.to(torch.float64)
