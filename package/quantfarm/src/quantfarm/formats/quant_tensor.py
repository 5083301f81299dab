"""QuantTensor: the canonical form between a format and a kernel.

Whatever the file looks like, a reader produces this: codes packed along K as one little-endian bit stream per
output column, scales and integer zero points per (group, output), and an optional group index per input.
``W[n, k] = scales[g(k), n] * (q[k, n] - zeros[g(k), n])`` with ``g(k) = g_idx[k]`` or ``k // group_size``.
Formats that store ``-(scale * zero)`` as a float have ``offsets`` instead:
``W[n, k] = scales[g, n] * q[k, n] + offsets[g, n]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from quantfarm.formats.packing import unpack_codes
from quantfarm.formats.weights.base import Weight

ToSource = Callable[[torch.Tensor], Mapping[str, torch.Tensor]]
"""Turns canonical codes into the packed tensors of a checkpoint, by suffix."""


@dataclass(frozen=True, kw_only=True)
class QuantTensor(Weight):
    """One weight [N, K] of affine integer codes in canonical form. See ``Weight`` for the common attributes.

    Attributes:
        codes: int32 [ceil(K*bits/32), N], code k of column n in bits k*bits .. of the column's stream, words
            low to high; None once a kernel keeps only its own layout.
        scales: [G, N] in the stored dtype.
        zeros: int32 [G, N], the true zero point, 0 .. 2^bits - 1; all zero where there are ``offsets``.
        g_idx: int32 [K], the group of each input, or None for k // group_size.
        offsets: [G, N] in the stored dtype, added after the scale; None where zero points are integers.
        codes_to_source: turns ``codes`` back into the checkpoint's packed tensors, bit for bit; a module-level
            function, so that layers can be pickled.
    """

    codes: torch.Tensor | None
    scales: torch.Tensor
    zeros: torch.Tensor
    g_idx: torch.Tensor | None
    codes_to_source: ToSource
    offsets: torch.Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the tensors lie."""
        return self.scales.device

    @property
    def complete(self) -> bool:
        """Whether the codes are here and not only in a kernel's layout."""
        return self.codes is not None

    def without_codes(self) -> QuantTensor:
        """Return the weight without its codes."""
        return replace(self, codes=None)

    def with_codes(self, codes: torch.Tensor) -> QuantTensor:
        """Return the weight with these canonical codes, int32 [ceil(K*bits/32), N]."""
        return replace(self, codes=codes)

    def packed(self) -> Mapping[str, torch.Tensor]:
        """Return the stored form of the codes, bit for bit."""
        return self.codes_to_source(self.held_codes())

    def held_codes(self) -> torch.Tensor:
        """Return the canonical codes; raise ValueError when only a kernel's layout holds them."""
        if self.codes is None:
            raise ValueError("the codes are held by the kernel's own layout: restore them first")
        return self.codes

    @property
    def group_size(self) -> int:
        """Inputs per group, with -1 resolved to K."""
        return self.k if self.scheme.group_size == -1 else self.scheme.group_size

    @property
    def groups(self) -> int:
        """Number of groups along K; the last one may be short."""
        return -(-self.k // self.group_size)

    def group_of_inputs(self) -> torch.Tensor:
        """Return int64 [K]: the group of every input."""
        if self.g_idx is not None:
            return self.g_idx.to(torch.int64)
        return torch.arange(self.k, device=self.scales.device) // self.group_size

    def permutation(self) -> torch.Tensor | None:
        """Return int64 [K], the stable order that sorts inputs by group, or None when they are sorted already."""
        if self.g_idx is None:
            return None
        order = torch.argsort(self.g_idx, stable=True)
        return None if bool((order == torch.arange(self.k, device=order.device)).all()) else order

    def unpacked(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return the codes of columns ``start`` to ``stop`` as uint8 [K, n]."""
        return unpack_codes(self.held_codes()[:, start:stop], self.scheme.bits, self.k)

    def decoded(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` of W as fp32 [n, K]: ``(q - z) * s`` with the scale widened first."""
        groups = self.group_of_inputs()
        q = self.unpacked(start, stop).to(torch.float32)
        q -= self.zeros[:, start:stop].to(torch.float32)[groups]
        q *= self.scales[:, start:stop].to(torch.float32)[groups]
        if self.offsets is not None:
            q += self.offsets[:, start:stop].to(torch.float32)[groups]
        return q.t()
