"""QQQWeight: 4-bit codes that become 8-bit weights, for products with 8-bit activations (formats, section 9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from quantfarm.formats.packing import pack_codes, unpack_codes
from quantfarm.formats.packing_qqq import QQQ_GROUPED, QQQ_PER_CHANNEL
from quantfarm.formats.weights.base import Weight

BITS = 4
GROUP = 128
ZERO = 8
"""What is subtracted from a canonical code."""

STEP = 16
"""An 8-bit weight per step of a code where outputs alone have scales."""


@dataclass(frozen=True, kw_only=True)
class QQQWeight(Weight):
    """``W = w8 s_channel``, where w8 is an integer from -128 to 127 that follows from a code.

    With groups ``w8 = clamp(round((q - 8) s_group))``, without ``w8 = 16 (q - 8)``. ``source`` holds both tables of
    scales as stored, in the order of the tiles; the words are in ``codes``.

    Attributes:
        codes: int32 [K/8, N], codes 0 to 15 along K as in ``QuantTensor``, zero point 8 in both modes; None once a
            kernel keeps only its own layout.
        channel_scales: fp32 [N], in natural order.
        group_scales: fp16 [K/128, N], in natural order; None where outputs alone have scales.
    """

    codes: torch.Tensor | None
    channel_scales: torch.Tensor
    group_scales: torch.Tensor | None

    @property
    def complete(self) -> bool:
        """Whether the codes are here."""
        return self.codes is not None

    def without_codes(self) -> QQQWeight:
        """Return the weight without its codes."""
        return replace(self, codes=None)

    def with_codes(self, codes: torch.Tensor) -> QQQWeight:
        """Return the weight with these canonical codes."""
        return replace(self, codes=codes)

    def held_codes(self) -> torch.Tensor:
        """Return the canonical codes; raise ValueError when only a kernel's layout holds them."""
        if self.codes is None:
            raise ValueError("the codes are held by the kernel's own layout: restore them first")
        return self.codes

    def packed(self) -> Mapping[str, torch.Tensor]:
        """Return the stored words, bit for bit."""
        return {"B": words_of(self.held_codes(), self.k, grouped=self.group_scales is not None)}

    def integers(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return w8 of outputs ``start`` to ``stop`` as fp32 [K, n], every value whole."""
        q = unpack_codes(self.held_codes()[:, start:stop], BITS, self.k).to(torch.float32).sub_(ZERO)
        return eight_bits(q, None if self.group_scales is None else self.group_scales[:, start:stop])

    def decoded(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` of W as fp32 [n, K]."""
        return (self.integers(start, stop) * self.channel_scales[start:stop]).t()


def eight_bits(q: torch.Tensor, group_scales: torch.Tensor | None) -> torch.Tensor:
    """Return w8 of signed codes q, fp32 [K, n], in place; group_scales [K/128, n] of whole groups, or None."""
    if group_scales is None:
        return q.mul_(STEP)
    groups = q.view(group_scales.shape[0], GROUP, q.shape[1])
    groups.mul_(group_scales.to(torch.float32).unsqueeze(1)).round_().clamp_(-128, 127)
    return q


def codes_of(words: torch.Tensor, *, grouped: bool) -> torch.Tensor:
    """Return the canonical codes, int32 [K/8, N], of stored words, int32 [K/16, N*2]."""
    if grouped:
        return pack_codes(QQQ_GROUPED.unpack(words), BITS)
    # A two's complement nibble plus 8 is the nibble with its top bit flipped.
    return pack_codes(QQQ_PER_CHANNEL.unpack(words).bitwise_xor_(ZERO), BITS)


def words_of(codes: torch.Tensor, k: int, *, grouped: bool) -> torch.Tensor:
    """Return the stored words of canonical codes: the inverse of ``codes_of``."""
    q = unpack_codes(codes, BITS, k)
    return QQQ_GROUPED.pack(q) if grouped else QQQ_PER_CHANNEL.pack(q.bitwise_xor_(ZERO))
