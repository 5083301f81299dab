"""GGUF blocks: random bytes whose fp16 scales are sane; a transposed scale or a mistaken block size must show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from support.recipe import Recipe
from support.stored import Rng, StoredWeight, octets

TYPES: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "q4_0": (4, 32, 18, (0,)),
    "q4_1": (4, 32, 20, (0, 2)),
    "q5_0": (5, 32, 22, (0,)),
    "q5_1": (5, 32, 24, (0, 2)),
    "q8_0": (8, 32, 34, (0,)),
    "q2_k": (2, 256, 84, (80, 82)),
    "q3_k": (3, 256, 110, (108,)),
    "q4_k": (4, 256, 144, (0, 2)),
    "q5_k": (5, 256, 176, (0, 2)),
    "q6_k": (6, 256, 210, (208,)),
    "iq2_xxs": (2, 256, 66, (0,)),
    "iq2_xs": (2, 256, 74, (0,)),
    "iq2_s": (2, 256, 82, (0,)),
    "iq3_xxs": (3, 256, 98, (0,)),
    "iq3_s": (3, 256, 110, (0,)),
    "iq1_s": (1, 256, 50, (0,)),
    "iq4_nl": (4, 32, 18, (0,)),
    "iq4_xs": (4, 256, 136, (0,)),
    "tq2_0": (2, 256, 66, (64,)),
    "q1_0": (1, 128, 18, (0,)),
    "q2_0": (2, 64, 18, (0,)),
}
"""Type: nominal bits, elements and bytes a block, and where its fp16 fields lie."""


def variants(bits: int) -> Sequence[str]:
    """Return the types of a nominal width."""
    return [name for name, (width, *_) in TYPES.items() if width == bits]


def fits(recipe: Recipe) -> bool:
    """Whole blocks only; a padded K is the business of the unit tests."""
    return recipe.k % TYPES[recipe.variant][1] == 0


def make(recipe: Recipe, rng: Rng) -> StoredWeight:
    """Return rows of random blocks."""
    _, block, size, at = TYPES[recipe.variant]
    rows = octets(rng, recipe.n, recipe.k // block, size)
    for offset in at:
        rows[..., offset : offset + 2] = _halves(rng, recipe.n, recipe.k // block)
    return StoredWeight(
        recipe=recipe,
        stored={"qweight": torch.from_numpy(rows.reshape(recipe.n, -1))},
        told={"code_type": recipe.variant},
        config={"quant_method": "gguf", "bits": recipe.variant},
        scale="",
        codes="qweight",
    )


def _halves(rng: Rng, *shape: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of positive fp16 numbers around 0.01."""
    values = (np.exp(rng.normal(0.0, 0.5, size=shape)) * 0.01).astype("<f2")
    return values.view(np.uint8).reshape(*shape, 2)
