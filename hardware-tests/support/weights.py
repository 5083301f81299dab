"""Random weights of every format: which variants there are, which shapes fit, and how one is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from support import affine
from support.affine import AffineWeight
from support.families import floats, ggml, qqq, rotated, tables, trellis, vectors
from support.recipe import Recipe
from support.stored import Rng, StoredWeight

__all__ = ["AffineWeight", "Recipe", "StoredWeight", "Weight", "family_of", "random_weight"]

Weight = AffineWeight | StoredWeight


@dataclass(frozen=True)
class Family:
    """How the weights of some formats are made.

    Attributes:
        variants: what else there is for a code width.
        fits: whether a recipe's shape and groups can be.
        make: a random weight; None for affine codes, which have their own form.
        shapes: (N, K) that are tested beside the tier's, few of which fit.
    """

    variants: Callable[[int], Sequence[str]]
    fits: Callable[[Recipe], bool]
    make: Callable[[Recipe, Rng], StoredWeight] | None
    shapes: tuple[tuple[int, int], ...] = ()


def _of(module: object, *shapes: tuple[int, int]) -> Family:
    """Return the family that a module describes by its three functions."""
    return Family(module.variants, module.fits, module.make, shapes)  # type: ignore[attr-defined]


AFFINE = Family(lambda _: [""], affine.fits, None)
FAMILIES: Mapping[str, Family] = {
    "gguf": _of(ggml, (48, 512)),
    "fp8": _of(floats),
    "mxfp4": _of(floats),
    "nvfp4": _of(floats),
    "bitsandbytes": _of(tables),
    "exl3": _of(trellis, (256, 384)),
    "vptq": _of(vectors),
    "paroquant": _of(rotated),
    "qqq": _of(qqq, (192, 256)),
}
"""Format to family, for everything but affine codes."""


def family_of(format_name: str) -> Family:
    """Return the family of a format."""
    return FAMILIES.get(format_name, AFFINE)


def random_weight(recipe: Recipe, seed: int, bias: torch.Tensor | None = None) -> Weight:
    """Return a random weight; the same recipe and seed give the same one."""
    make = family_of(recipe.format).make
    if make is None:
        return affine.random_affine(recipe, seed, bias)
    return replace(make(recipe, np.random.default_rng(seed)), bias=bias)
