"""EXL3: any words are a valid trellis; signs and scales of inputs and outputs around one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from support.recipe import Recipe
from support.stored import Rng, StoredWeight, words

CODEBOOKS = {"3inst": {}, "mcg": {"mcg": 0xCBAC1FED}, "mul1": {"mul1": 0x83DCD12D}}


def variants(bits: int) -> Sequence[str]:
    """Return the codebooks; each width meets one, so that all widths and all codebooks are met."""
    return [list(CODEBOOKS)[bits % len(CODEBOOKS)]]


def fits(recipe: Recipe) -> bool:
    """Blocks of 128 in both directions."""
    return recipe.k % 128 == 0 and recipe.n % 128 == 0


def make(recipe: Recipe, rng: Rng) -> StoredWeight:
    """Return a random trellis."""
    n, k, bits = recipe.n, recipe.k, recipe.bits
    stored = {
        "trellis": words(rng, k // 16, n // 16, 16 * bits, dtype=np.int16),
        "suh": _signed(rng, k),
        "svh": _signed(rng, n, size=0.02),
    }
    for name, value in CODEBOOKS[recipe.variant].items():
        stored[name] = torch.tensor(np.array(value, dtype=np.uint32).view(np.int32).item(), dtype=torch.int32)
    return StoredWeight(
        recipe=recipe,
        stored=stored,
        told={},
        config={"quant_method": "exl3", "bits": bits, "codebook": recipe.variant},
        scale="suh",
        codes="trellis",
        exact=False,
    )


def _signed(rng: Rng, count: int, size: float = 1.0) -> torch.Tensor:
    """Return signed scales in fp16."""
    values = rng.choice([-1.0, 1.0], count) * np.exp(rng.normal(0.0, 0.3, count)) * size
    return torch.from_numpy(values).to(torch.float16)
