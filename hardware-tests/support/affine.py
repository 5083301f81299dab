"""Random weights of affine codes: codes, zero points, scales, packed as the formats demand, and W in float64.

Own arithmetic from the closed forms of the formats: nothing of the product is used, so a mistake in a reader can
not hide here. Bits are laid out one by one instead of by shifts of words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from support import words
from support.recipe import Recipe

Codes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]
FLOAT_OFFSETS = ("gemv_fast", "llm-awq")
"""Formats that store minus scale times zero, rounded to fp16, in place of a zero point."""


@dataclass(frozen=True, eq=False)
class AffineWeight:
    """One weight of K inputs and N outputs, before packing.

    Attributes:
        method, format, bits, group_size, sym, act_order: the scheme; group_size -1 is one group.
        codes: [K, N]; zeros: [G, N], true zero points; scales: [G, N] in fp16; groups: [K], the group of each input.
        bias: [N] in any float dtype, or None.
    """

    method: str
    format: str
    bits: int
    group_size: int
    sym: bool
    act_order: bool
    codes: Codes
    zeros: Codes
    scales: npt.NDArray[np.float16]
    groups: npt.NDArray[np.int64]
    bias: torch.Tensor | None = field(default=None)

    @property
    def recipe(self) -> Recipe:
        """What it was made from."""
        return Recipe(self.method, self.format, self.bits, self.group_size, self.sym, self.act_order, self.n, self.k)

    def ulps(self, dtype: str) -> float:
        """Return how many units of the last place a one-hot row may be off: float offsets are a second rounding."""
        return 2.0 if dtype == "float32" and self.format in FLOAT_OFFSETS else 1.0

    @property
    def exact(self) -> bool:
        """A one-hot row gives the decoded column without any sum."""
        return True

    @property
    def k(self) -> int:
        """Inputs."""
        return int(self.codes.shape[0])

    @property
    def n(self) -> int:
        """Outputs."""
        return int(self.codes.shape[1])

    def dense(self) -> Doubles:
        """Return W [N, K] in float64: (code - zero) * scale of the input's group, or code * scale + stored offset."""
        wide = self.codes.astype(np.float64)
        scales = self.scales.astype(np.float64)[self.groups]
        if self.format in FLOAT_OFFSETS:
            return np.ascontiguousarray((wide * scales + self.offsets().astype(np.float64)[self.groups]).T)
        return np.ascontiguousarray(((wide - self.zeros.astype(np.float64)[self.groups]) * scales).T)

    def offsets(self) -> npt.NDArray[np.float16]:
        """Return minus scale times zero [G, N], rounded to fp16 as such formats store it."""
        return (-(self.scales.astype(np.float32) * self.zeros.astype(np.float32))).astype(np.float16)

    def inputs(self, x: torch.Tensor) -> torch.Tensor:
        """Return what W is multiplied by: x itself."""
        return x

    def settings(self) -> dict[str, Any]:
        """Return the quantization settings that a checkpoint with this weight would carry."""
        if self.method == "awq":
            scheme = {"bits": self.bits, "group_size": self.group_size, "zero_point": not self.sym}
            named = {"backend": "llm-awq"} if self.format == "llm-awq" else {"version": self.format}
            return {"quant_method": "awq", **named, **scheme}
        return {
            "quant_method": self.method,
            "checkpoint_format": self.format,
            "bits": self.bits,
            "group_size": self.group_size,
            "desc_act": self.act_order,
            "sym": self.sym,
            "meta": {"quantizer": ["gptqmodel:7.7.0"]},
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the packed tensors under their checkpoint suffixes."""
        packed = _PACKERS.get(self.format, _gptq)(self)
        packed.setdefault("scales", torch.from_numpy(self.scales.copy()))
        if self.bias is not None:
            packed["bias"] = self.bias.clone()
        return packed

    def packed(self, pack: Callable[[Codes], torch.Tensor]) -> torch.Tensor:
        """Return the packed codes; weights that share them and differ elsewhere share the work."""
        if not _LAST or _LAST[0] is not self.codes or _LAST[1] != self.format:
            _LAST[:] = [self.codes, self.format, pack(self.codes)]
        found: torch.Tensor = _LAST[2].clone()
        return found


_LAST: list[Any] = []


def _gptq(weight: AffineWeight) -> dict[str, torch.Tensor]:
    bits, true = weight.bits, weight.format != "gptq"
    stored = weight.zeros if true else (weight.zeros - 1) & ((1 << bits) - 1)
    pack = words.planar if weight.format == "gptq_p" else words.stream
    return {
        "qweight": weight.packed(lambda codes: pack(codes, bits)),
        "qzeros": pack(np.ascontiguousarray(stored.T), bits).T.contiguous(),
        "g_idx": torch.from_numpy(weight.groups.astype(np.int32)),
    }


def _gemm(weight: AffineWeight) -> dict[str, torch.Tensor]:
    return {"qweight": weight.packed(words.awq), "qzeros": words.awq(weight.zeros)}


def _gemv(weight: AffineWeight) -> dict[str, torch.Tensor]:
    padded = _padded(weight)
    return {
        "qweight": weight.packed(lambda codes: words.stream(codes, 4).T.contiguous()),
        "qzeros": words.stream(padded(weight.zeros), 4).T.contiguous(),
        "scales": torch.from_numpy(padded(weight.scales).T.copy()),
    }


def _gemv_fast(weight: AffineWeight) -> dict[str, torch.Tensor]:
    padded = _padded(weight)
    zeros = "qzeros" if weight.format == "gemv_fast" else "scaled_zeros"
    return {
        "qweight": weight.packed(words.interleaved),
        "scales": torch.from_numpy(padded(weight.scales)),
        zeros: torch.from_numpy(padded(weight.offsets())),
    }


def _padded(weight: AffineWeight) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """Return what pads [G, N] with zero rows to the width that the row formats demand (formats, section 5)."""
    size = weight.k if weight.group_size == -1 else weight.group_size
    multiple = 1 if size >= 128 else {64: 2, 32: 4}[size]
    groups = weight.zeros.shape[0]
    words_needed = math.ceil(groups / 8)
    rows = math.ceil(words_needed / multiple) * multiple * 8
    return lambda array: np.pad(array, ((0, rows - groups), (0, 0)))


_PACKERS: dict[str, Callable[[AffineWeight], dict[str, torch.Tensor]]] = {
    "gemm": _gemm,
    "gemv": _gemv,
    "gemv_fast": _gemv_fast,
    "llm-awq": _gemv_fast,
}


def random_affine(recipe: Recipe, seed: int, bias: torch.Tensor | None = None) -> AffineWeight:
    """Return a weight with uniform codes and log-normal scales; zero points of v1 are at least 1."""
    rng = np.random.default_rng(seed)
    size = recipe.k if recipe.group_size == -1 else recipe.group_size
    count = -(-recipe.k // size)
    groups = np.arange(recipe.k, dtype=np.int64) // size
    if recipe.act_order:
        groups = rng.permutation(groups)
    top = 1 << recipe.bits
    lowest = 1 if recipe.format == "gptq" else 0
    zeros = rng.integers(lowest, top, size=(count, recipe.n), dtype=np.uint8)
    if recipe.sym:
        zeros = np.full_like(zeros, top // 2)
    scales = np.exp(rng.normal(0.0, 0.5, size=(count, recipe.n))) * (0.2 / top)
    return AffineWeight(
        method=recipe.method,
        format=recipe.format,
        bits=recipe.bits,
        group_size=recipe.group_size,
        sym=recipe.sym,
        act_order=recipe.act_order,
        codes=rng.integers(0, top, size=(recipe.k, recipe.n), dtype=np.uint8),
        zeros=zeros,
        scales=scales.astype(np.float16),
        groups=groups,
        bias=bias,
    )


def fits(recipe: Recipe) -> bool:
    """Say whether the format holds the recipe's shape and groups beyond what the record's divisors say."""
    size = recipe.k if recipe.group_size == -1 else recipe.group_size
    if recipe.format in ("gemv", *FLOAT_OFFSETS):
        whole = recipe.k % size == 0 and (size in (32, 64) or size >= 128)
        return whole and (recipe.k % 8 == 0 if recipe.format == "gemv" else recipe.k % 64 == 0 and recipe.n % 4 == 0)
    if recipe.format == "gptq_p":
        return recipe.k % 32 == 0 and recipe.n % 32 == 0
    return True
