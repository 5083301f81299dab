"""bitsandbytes: flat blocks of table codes with plain or nested scales, and 8-bit rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from support.recipe import Recipe
from support.stored import Rng, StoredWeight, octets, scales

BLOCK, NESTED = 64, 256
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
FP4 = tuple(sign * m / 12 for sign in (1, -1) for m in (0, 0.0625, 8, 12, 4, 6, 2, 3))


def variants(bits: int) -> Sequence[str]:
    """Return the code tables, each plain and nested, or the 8-bit rows."""
    return ["int8"] if bits == 8 else ["nf4", "fp4-nested", "nf4-nested", "fp4"]


def fits(recipe: Recipe) -> bool:
    """Any shape."""
    return bool(recipe.k)


def make(recipe: Recipe, rng: Rng) -> StoredWeight:
    """Return tensors under the names with dots."""
    return _rows(recipe, rng) if recipe.variant == "int8" else _flat(recipe, rng)


def _rows(recipe: Recipe, rng: Rng) -> StoredWeight:
    codes = rng.integers(-127, 128, (recipe.n, recipe.k)).astype(np.int8)
    return StoredWeight(
        recipe=recipe,
        stored={
            "weight": torch.from_numpy(codes),
            "SCB": scales(rng, recipe.n, size=2.0, dtype=torch.float32),
            "weight_format": torch.tensor(0, dtype=torch.uint8),
        },
        told={"code_type": "int8"},
        config={"quant_method": "bitsandbytes", "load_in_8bit": True},
        scale="SCB",
        codes="weight",
    )


def _flat(recipe: Recipe, rng: Rng) -> StoredWeight:
    kind, nested = recipe.variant.partition("-")[0], recipe.variant.endswith("nested")
    count = recipe.n * recipe.k
    blocks = -(-count // BLOCK)
    state: dict[str, Any] = {
        "quant_type": kind,
        "blocksize": BLOCK,
        "dtype": "float16",
        "shape": [recipe.n, recipe.k],
    }
    stored = {
        "weight": torch.from_numpy(octets(rng, -(-count // 2), 1)),
        "weight.quant_map": torch.tensor(NF4 if kind == "nf4" else FP4, dtype=torch.float32),
    }
    if nested:
        stored["weight.absmax"] = torch.from_numpy(octets(rng, blocks))
        stored["weight.nested_absmax"] = scales(rng, -(-blocks // NESTED), size=0.05, dtype=torch.float32)
        stored["weight.nested_quant_map"] = torch.linspace(-1, 1, 256)
        state |= {"nested_blocksize": NESTED, "nested_dtype": "float32", "nested_offset": 0.25}
    else:
        stored["weight.absmax"] = scales(rng, blocks, size=0.2, dtype=torch.float32)
    name = f"weight.quant_state.bitsandbytes__{kind}"
    stored[name] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    return StoredWeight(
        recipe=recipe,
        stored=stored,
        told={"code_type": kind},
        config={**settings, "bnb_4bit_use_double_quant": nested},
        scale="weight.nested_absmax" if nested else "weight.absmax",
        roundings=3 if nested else 1,
        codes="weight",
    )
