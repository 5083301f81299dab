"""Random weights of the other kinds: stored tensors made at random, W in float64 by the oracle that reads the bytes.

The oracle (``quantfarm.reference``) shares no code with the readers and kernels that are under test.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from quantfarm.reference import decode
from support.recipe import Recipe

Doubles = npt.NDArray[np.float64]
Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """One weight [N, K] as its checkpoint tensors.

    Attributes:
        recipe: what it was made from.
        stored: tensor by suffix, without a bias.
        told: what the oracle is told beside method and format: bits, group_size, code_type, details.
        config: the quantization settings that a checkpoint with this weight would carry.
        scale: the tensor that an injected error multiplies, and along which of its axes the groups of inputs run.
        codes: the tensor in which an injected error changes a bit.
        bias: [N] in any float dtype, or None.
        exact: whether a one-hot row gives the decoded column without any sum; a transform of x or y is a sum.
        roundings: how often decoding a value rounds in fp32.
        inputs: what W is multiplied by: x itself, or x quantized as the method says.
        groups: int64 [K], inputs that share something, so that a spread of one-hot rows meets every part.
    """

    recipe: Recipe
    stored: Mapping[str, torch.Tensor]
    told: Mapping[str, Any]
    config: Mapping[str, Any]
    scale: str
    codes: str
    bias: torch.Tensor | None = None
    exact: bool = True
    roundings: int = 1
    inputs: Callable[[torch.Tensor], torch.Tensor] = field(default=lambda x: x)

    @property
    def method(self) -> str:
        """The method's value."""
        return self.recipe.method

    @property
    def format(self) -> str:
        """The format's value."""
        return self.recipe.format

    @property
    def k(self) -> int:
        """Inputs."""
        return self.recipe.k

    @property
    def n(self) -> int:
        """Outputs."""
        return self.recipe.n

    @property
    def groups(self) -> npt.NDArray[np.int64]:
        """Runs of 32 inputs, the smallest group that any of these formats has but NVFP4's 16."""
        return np.arange(self.k, dtype=np.int64) // 32

    def dense(self) -> Doubles:
        """Return the effective W [N, K] in float64."""
        return _decoded(self)

    def settings(self) -> dict[str, Any]:
        """Return the quantization settings."""
        return dict(self.config)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors under their checkpoint suffixes."""
        found = {name: tensor.clone() for name, tensor in self.stored.items()}
        return found if self.bias is None else found | {"bias": self.bias.clone()}

    def ulps(self, dtype: str) -> float:
        """Return how many units of the last place a one-hot row may be off in a dtype."""
        return float(self.roundings) if dtype == "float32" else 1.0

    def with_tensor(self, name: str, tensor: torch.Tensor) -> StoredWeight:
        """Return the weight with one tensor replaced."""
        return replace(self, stored={**self.stored, name: tensor})


@functools.lru_cache(maxsize=4)
def _decoded(weight: StoredWeight) -> Doubles:
    recipe = weight.recipe
    told = {"bits": recipe.bits, "group_size": recipe.group_size, "k": recipe.k, "n": recipe.n, **weight.told}
    return np.ascontiguousarray(decode(weight.stored, method=recipe.method, format=recipe.format, **told))


def octets(rng: Rng, *shape: int) -> npt.NDArray[np.uint8]:
    """Return random bytes."""
    return rng.integers(0, 256, size=shape, dtype=np.uint8)


def words(rng: Rng, *shape: int, dtype: Any = np.int32) -> torch.Tensor:
    """Return random words, the top bit included."""
    info = np.iinfo(dtype)
    return torch.from_numpy(rng.integers(info.min, info.max, size=shape, dtype=dtype, endpoint=True))


def scales(rng: Rng, *shape: int, size: float = 0.02, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Return log-normal scales around ``size``."""
    return torch.from_numpy(np.asarray(np.exp(rng.normal(0.0, 0.5, size=shape)) * size)).to(dtype)
