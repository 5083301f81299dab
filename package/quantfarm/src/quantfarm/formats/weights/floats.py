"""NarrowFloats: weights whose codes are 8-bit floats, or pairs of 4-bit floats, with one scale for every block."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantfarm.formats.weights.base import Weight


@dataclass(frozen=True, kw_only=True)
class NarrowFloats(Weight):
    """One weight [N, K] of narrow floats, kept as it is stored. See ``Weight`` for the common attributes.

    ``W[n, k] = value(code[n, k]) op scales[n // br, k // bc] op whole``, where each ``op`` is a multiplication or a
    division (formats, sections 11 and 12). Blocks at the lower and right edge may be partial.

    Attributes:
        codes: [N, K] of a float8 dtype, or uint8 [N, K/2], element 2i in the low nibble.
        table: the value of every byte: fp32 [256], or int64 [256] that holds the two fp32 of a byte of two codes.
        scales: [ceil(N/br), ceil(K/bc)] in the stored dtype.
        block: (br, bc), rows and columns that share a scale.
        divides: W is the value divided by the scale, not multiplied with it.
        whole: one more scale, of the whole weight: a tensor of one element, or None.
        whole_divides: the same as ``divides`` for it.
    """

    codes: torch.Tensor
    table: torch.Tensor
    scales: torch.Tensor
    block: tuple[int, int]
    divides: bool = False
    whole: torch.Tensor | None = None
    whole_divides: bool = False

    def decoded(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` of W as fp32 [n, K]: value and scales widened first, then combined."""
        stop = self.n if stop is None else min(stop, self.n)
        # A table serves every dtype on every device, and gathers faster than the processor converts.
        codes = self.codes[start:stop].view(torch.uint8).reshape(-1).to(torch.int32)
        values = self.table.index_select(0, codes).view(torch.float32).view(stop - start, self.k)
        scales, width = self._scales_of(start, stop), self.block[1]
        if scales.shape[1] == 1:
            return _apply(values, scales, divides=self.divides)
        inner = self.k // width * width
        whole_blocks = values[:, :inner].unfold(1, width, width)
        _apply(whole_blocks, scales[:, : inner // width].unsqueeze(2), divides=self.divides)
        if inner < self.k:
            _apply(values[:, inner:], scales[:, -1:], divides=self.divides)
        return values

    def _scales_of(self, start: int, stop: int) -> torch.Tensor:
        """Return the scales of these rows as fp32 [n, ceil(K/bc)], or [1, ...] where all rows share one row of them."""
        height = self.block[0]
        first = start // height
        scales = self.scales[first : -(-stop // height)].to(torch.float32)
        if height > 1 and self.scales.shape[0] > 1:
            scales = scales.repeat_interleave(height, dim=0)[start - first * height : stop - first * height]
        if self.whole is None:
            return scales
        return _apply(scales.clone(), self.whole.to(torch.float32).view(1, 1), divides=self.whole_divides)


def _apply(values: torch.Tensor, scale: torch.Tensor, *, divides: bool) -> torch.Tensor:
    """Divide or multiply in place; dividing rounds once, where multiplying with an inverse would round twice."""
    return values.div_(scale) if divides else values.mul_(scale)
