"""RowCodes: signed 8-bit codes with one scale a row of W, ``w = q * scale / 127`` (formats, section 17)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantfarm.formats.weights.base import Weight

TOP = 127
"""The code of a row's largest magnitude, which is its scale."""


@dataclass(frozen=True, kw_only=True)
class RowCodes(Weight):
    """One weight [N, K] of int8 codes. See ``Weight`` for the common attributes.

    Attributes:
        row_codes: int8 [N, K], as stored.
        row_scales: fp32, N in all: the largest magnitude of each row.
    """

    row_codes: torch.Tensor
    row_scales: torch.Tensor

    def decoded(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` of W as fp32 [n, K], multiplied before the division by 127."""
        scales = self.row_scales.reshape(-1, 1)[start:stop].to(torch.float32)
        return self.row_codes[start:stop].to(torch.float32).mul_(scales).div_(TOP)
