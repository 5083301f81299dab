"""RotatedWeight: affine codes behind a scaling of the inputs and rounds of pairwise rotations (formats, section 15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.formats.weights.base import Weight


@dataclass(frozen=True, kw_only=True)
class RotatedWeight(Weight):
    """``y = rotated(x) inner^T``: the input is scaled and turned, then meets a weight of affine codes.

    ``source`` holds scales, zero points, angles, pairs and channel scales as stored; the codes are in ``inner``.
    Everything derived from them is built again whenever a layer reads its tensors again.

    Attributes:
        inner: the weight [N, K] of the rotated input, in canonical form.
        turns: what ``turns_of`` derives from angles and pairs.
        channel_scales: fp32 [K].
        identity: no angle and no scale changes anything, so that the input meets ``inner`` as it is.
    """

    inner: QuantTensor
    turns: Mapping[str, torch.Tensor]
    channel_scales: torch.Tensor
    identity: bool

    @property
    def device(self) -> torch.device:
        """Where the tensors lie."""
        return self.inner.device

    @property
    def codes(self) -> torch.Tensor | None:
        """The canonical codes of ``inner``; None once a kernel keeps only its own layout."""
        return self.inner.codes

    @property
    def complete(self) -> bool:
        """Whether the codes are here."""
        return self.inner.complete

    def without_codes(self) -> RotatedWeight:
        """Return the weight without its codes."""
        return replace(self, inner=self.inner.without_codes())

    def with_codes(self, codes: torch.Tensor) -> RotatedWeight:
        """Return the weight with these canonical codes, int32 [ceil(K*bits/32), N]."""
        return replace(self, inner=self.inner.with_codes(codes))

    def packed(self) -> Mapping[str, torch.Tensor]:
        """Return the stored form of the codes, bit for bit."""
        return self.inner.packed()

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [M, K] scaled and turned, in fp32."""
        x = x.to(torch.float32)
        return x if self.identity else turned(x * self.channel_scales, self.turns)

    def rotated_back(self, y: torch.Tensor) -> torch.Tensor:
        """Return y [M, K] through the transposed transform, in fp32: the way of rows of W, and of a gradient."""
        y = y.to(torch.float32)
        return y if self.identity else turned_back(y, self.turns).mul_(self.channel_scales)

    def decoded(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` of the weight of the input as it comes, fp32 [n, K]."""
        return self.rotated_back(self.inner.decoded(start, stop))


def turned(x: torch.Tensor, turns: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return x [M, K] after every round: ``x_i cos a + x_j sin a`` and ``-x_i sin a + x_j cos a`` of each pair."""
    for partner, cosine, sine in zip(turns["partners"], turns["cosines"], turns["sines"], strict=True):
        x = (x * cosine).addcmul_(x.index_select(1, partner), sine)
    return x


def turned_back(y: torch.Tensor, turns: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Undo ``turned``: the rounds in reverse, each by the opposite angle."""
    rounds = zip(*(reversed(turns[name].unbind()) for name in ("partners", "cosines", "sines")), strict=True)
    for partner, cosine, sine in rounds:
        y = (y * cosine).addcmul_(y.index_select(1, partner), sine, value=-1)
    return y


def turns_of(theta: torch.Tensor, pairs: torch.Tensor, group_size: int) -> Mapping[str, torch.Tensor]:
    """Return the rounds as a product and a gather over all inputs.

    Args:
        theta: [krot, K/2], angles in radians; cosine and sine are taken in fp32, or in float64 where they come so.
        pairs: int16 [krot, K], two neighbours are a pair; numbers count from the start of their group.
        group_size: inputs of a group, even.

    Returns:
        partners: int32 [krot, K], the input that each input is turned with.
        cosines: [krot, K].
        sines: [krot, K], positive at the first input of a pair and negative at the second.
    """
    rounds, k = pairs.shape
    starts = torch.arange(0, k, group_size, device=pairs.device).repeat_interleave(group_size)
    channels = (pairs.to(torch.int64) + starts).view(rounds, k // 2, 2)
    angle = (theta if theta.dtype is torch.float64 else theta.to(torch.float32)).unsqueeze(2)
    sign = angle.new_tensor([1.0, -1.0])

    def placed(values: torch.Tensor) -> torch.Tensor:
        flat = values.reshape(rounds, k)
        return torch.empty_like(flat).scatter(1, channels.view(rounds, k), flat)

    return {
        "partners": placed(channels.flip(2)).to(torch.int32),
        "cosines": placed(angle.cos().expand(-1, -1, 2)),
        "sines": placed(angle.sin() * sign),
    }
