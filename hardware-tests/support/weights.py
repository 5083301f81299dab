"""Random quantized weights: codes, zero points, scales, packed as the formats demand, and W in float64.

Own arithmetic from the closed forms of the formats: nothing of the product is used, so a mistake in a reader can
not hide here. Bits are laid out one by one instead of by shifts of words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Codes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of a word holds output 8c + AWQ_ORDER[i]."""


@dataclass(frozen=True, eq=False)
class Weight:
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
    def k(self) -> int:
        """Inputs."""
        return int(self.codes.shape[0])

    @property
    def n(self) -> int:
        """Outputs."""
        return int(self.codes.shape[1])

    def dense(self) -> Doubles:
        """Return W [N, K] in float64: (code - zero) * scale of the input's group."""
        difference = self.codes.astype(np.float64) - self.zeros.astype(np.float64)[self.groups]
        return np.ascontiguousarray((difference * self.scales.astype(np.float64)[self.groups]).T)

    def settings(self) -> dict[str, Any]:
        """Return the quantization settings that a checkpoint with this weight would carry."""
        if self.method == "awq":
            scheme = {"bits": self.bits, "group_size": self.group_size, "zero_point": not self.sym}
            return {"quant_method": "awq", "version": self.format, **scheme}
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
        packed = self._awq() if self.method == "awq" else self._gptq()
        packed["scales"] = torch.from_numpy(self.scales.copy())
        if self.bias is not None:
            packed["bias"] = self.bias.clone()
        return packed

    def _packed(self, pack: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the packed codes; weights that share them and differ elsewhere share the work."""
        if not _LAST or _LAST[0] is not self.codes:
            _LAST[:] = [self.codes, pack()]
        words: torch.Tensor = _LAST[1].clone()
        return words

    def _gptq(self) -> dict[str, torch.Tensor]:
        stored = self.zeros if self.format.endswith("v2") else (self.zeros - 1) & ((1 << self.bits) - 1)
        return {
            "qweight": self._packed(lambda: _words(self.codes, self.bits)),
            "qzeros": _words(np.ascontiguousarray(stored.T), self.bits).T.contiguous(),
            "g_idx": torch.from_numpy(self.groups.astype(np.int32)),
        }

    def _awq(self) -> dict[str, torch.Tensor]:
        qweight = self._packed(lambda: _awq_words(self.codes))
        return {"qweight": qweight, "qzeros": _awq_words(self.zeros)}


_LAST: list[Any] = []


def _words(fields: Codes, bits: int) -> torch.Tensor:
    """Pack along the first axis as one little-endian stream of ``bits`` wide fields a column; int32 words."""
    rows, columns = fields.shape
    stream = ((fields[:, None, :] >> np.arange(bits, dtype=np.uint8)[None, :, None]) & 1).reshape(rows * bits, columns)
    stream = np.pad(stream, ((0, -stream.shape[0] % 32), (0, 0)))
    octets = np.packbits(stream, axis=0, bitorder="little")
    by_word = np.ascontiguousarray(octets.reshape(-1, 4, columns).transpose(0, 2, 1))
    return torch.from_numpy(np.frombuffer(by_word.tobytes(), dtype="<i4").reshape(-1, columns).copy())


def _awq_words(fields: Codes) -> torch.Tensor:
    """Pack eight outputs a word along the second axis, in AWQ's order."""
    rows, columns = fields.shape
    ordered = fields.reshape(rows, columns // 8, 8)[..., AWQ_ORDER].reshape(rows, columns)
    return _words(np.ascontiguousarray(ordered.T), 4).T.contiguous()


@dataclass(frozen=True)
class Recipe:
    """What a random weight is to be: scheme and shape."""

    method: str
    format: str
    bits: int
    group_size: int
    sym: bool
    act_order: bool
    n: int
    k: int


def random_weight(recipe: Recipe, seed: int, bias: torch.Tensor | None = None) -> Weight:
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
    return Weight(
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


def with_scales(weight: Weight, scales: npt.NDArray[np.float16]) -> Weight:
    """Return a copy with other scales."""
    return replace(weight, scales=scales)
