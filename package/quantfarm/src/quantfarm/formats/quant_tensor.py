"""QuantTensor: the canonical form between a format and a kernel.

Whatever the file looks like, a reader produces this: codes packed along K as one little-endian bit stream per
output column, scales and integer zero points per (group, output), and an optional group index per input.
``W[n, k] = scales[g(k), n] * (q[k, n] - zeros[g(k), n])`` with ``g(k) = g_idx[k]`` or ``k // group_size``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme

_WORD = 32


@dataclass(frozen=True, kw_only=True)
class QuantTensor:
    """One quantized weight [N, K] in canonical form.

    Attributes:
        method, format: where it came from.
        scheme: what the codes mean.
        k, n: inputs and outputs.
        codes: int32 [ceil(K*bits/32), N], code k of column n in bits k*bits .. of the column's stream, words
            low to high; None once a kernel keeps only its own layout.
        scales: [G, N] in the stored dtype.
        zeros: int32 [G, N], the true zero point, 0 .. 2^bits - 1.
        g_idx: int32 [K], the group of each input, or None for k // group_size.
        bias: [N] in the stored dtype, or None.
        source: the checkpoint tensors that are kept as they are (all but the packed codes).
        codes_to_source: turns ``codes`` back into the checkpoint's packed tensors, bit for bit; a module-level
            function, so that layers can be pickled.
    """

    method: METHOD
    format: FORMAT
    scheme: Scheme
    k: int
    n: int
    codes: torch.Tensor | None
    scales: torch.Tensor
    zeros: torch.Tensor
    g_idx: torch.Tensor | None
    bias: torch.Tensor | None
    source: Mapping[str, torch.Tensor]
    codes_to_source: Callable[[torch.Tensor], Mapping[str, torch.Tensor]]
    notes: tuple[str, ...] = field(default=())

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
        if self.codes is None:
            raise ValueError("the codes are held by the kernel's own layout: restore them first")
        return unpack_codes(self.codes[:, start:stop], self.scheme.bits, self.k)

    def decoded(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` of W as fp32 [n, K]: ``(q - z) * s`` with the scale widened first."""
        groups = self.group_of_inputs()
        q = self.unpacked(start, stop).to(torch.float32)
        q -= self.zeros[:, start:stop].to(torch.float32)[groups]
        q *= self.scales[:, start:stop].to(torch.float32)[groups]
        return q.t()


def unpack_codes(packed: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    """Unpack int32 [ceil(K*bits/32), N] to uint8 [K, N]; the stream is little-endian and words are signed."""
    if _WORD % bits == 0:
        per_word = _WORD // bits
        shifts = torch.arange(0, _WORD, bits, dtype=torch.int32, device=packed.device)
        codes = (packed.unsqueeze(1) >> shifts.view(1, per_word, 1)) & ((1 << bits) - 1)
        return codes.reshape(-1, packed.shape[1])[:k].to(torch.uint8)
    position = torch.arange(k, device=packed.device) * bits
    word, offset = position // _WORD, position % _WORD
    unsigned = packed.to(torch.int64) & 0xFFFFFFFF
    nxt = torch.clamp(word + 1, max=packed.shape[0] - 1)
    pair = unsigned[word] | (unsigned[nxt] << _WORD)
    return ((pair >> offset.unsqueeze(1)) & ((1 << bits) - 1)).to(torch.uint8)


def pack_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack uint8 [K, N] to int32 [ceil(K*bits/32), N]: the inverse of ``unpack_codes``; unused bits are zero."""
    k, n = codes.shape
    if _WORD % bits == 0:
        return _pack_whole(codes, bits)
    rows = -(-k * bits // _WORD)
    words = torch.zeros(rows + 1, n, dtype=torch.int64, device=codes.device)
    position = torch.arange(k, device=codes.device) * bits
    word, offset = position // _WORD, (position % _WORD).unsqueeze(1)
    shifted = codes.to(torch.int64) << offset
    words.index_add_(0, word, shifted & 0xFFFFFFFF)
    words.index_add_(0, word + 1, shifted >> _WORD)
    words = words[:rows]
    return torch.where(words >= 1 << 31, words - (1 << _WORD), words).to(torch.int32)


def _pack_whole(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack widths that divide the word: no code straddles two words, so plain int32 shifts do (25 times faster)."""
    k, n = codes.shape
    per_word = _WORD // bits
    rows = -(-k // per_word)
    lanes = torch.nn.functional.pad(codes, (0, 0, 0, rows * per_word - k)).reshape(rows, per_word, n)
    words = torch.zeros(rows, n, dtype=torch.int32, device=codes.device)
    for lane in range(per_word):
        words |= lanes[:, lane].to(torch.int32) << (lane * bits)
    return words
