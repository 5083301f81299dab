"""Portable backend of QQQ: x as 8-bit integers per row, exact integer sums with 8-bit weights, scales in fp32.

Integers are multiplied as fp32 numbers, which every device does fast: a sum of up to 1024 products of 8-bit numbers
stays below 2^24, where every integer is an fp32 number, in any order of addition (and 8 bits fit TF32 too). Such sums
are added up as int32, which holds the whole up to K = 2^31 / (127 * 128), about 132 000 inputs.
"""

from __future__ import annotations

from typing import cast

import torch

from quantfarm.formats.weights.qqq import BITS, GROUP, ZERO, QQQWeight, eight_bits
from quantfarm.runtime import panels
from quantfarm.runtime.epilogue import finish
from quantfarm.runtime.portable import PortablePath, Prepared

_EXACT = 1024
"""Inputs whose products add up exactly in fp32: 1024 * 127 * 128 < 2^24."""

_COLUMNS = 1024
_TOP = 127


class _IntegerPath(PortablePath):
    """The portable path with integers in place of x and W."""

    def run(self, prepared: Prepared, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Multiply x [M, K] to [M, N] in x.dtype: ``(xq . w8) s1 s_channel``, then bias in fp32, one cast."""
        self._launches.add()
        weight = cast("QQQWeight", prepared.weight)
        levels, steps = quantized(x)
        out = torch.empty(x.shape[0], weight.n, dtype=torch.float32, device=x.device)
        for start in range(0, weight.n, _COLUMNS):
            stop = min(start + _COLUMNS, weight.n)
            out[:, start:stop] = sums(levels, weight, start, stop)
        return finish(out.mul_(steps).mul_(weight.channel_scales), bias, x.dtype)


def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x [M, K] as whole numbers in fp32 from -128 to 127, and the step of each row, fp32 [M, 1].

    A row of zeros has the step 0 and stays zeros (the formula alone would divide 0 by 0). A row that is not finite has
    a step that is not, so that it shows in its own row of the result and in no other.
    """
    wide = x.to(torch.float32)
    steps = wide.abs().amax(1, keepdim=True) / _TOP
    divisor = torch.where(steps == 0, torch.ones_like(steps), steps)
    return (wide / divisor).round_().clamp_(-128, 127).nan_to_num_(nan=0.0), steps


def sums(levels: torch.Tensor, weight: QQQWeight, start: int, stop: int) -> torch.Tensor:
    """Return int32 [M, n], the exact ``xq . w8`` of outputs ``start`` to ``stop``; levels fp32 [M, K]."""
    codes = weight.held_codes()
    total = torch.zeros(levels.shape[0], stop - start, dtype=torch.int32, device=levels.device)
    for k0 in range(0, weight.k, _EXACT):
        k1 = min(k0 + _EXACT, weight.k)
        q = panels.codes_as_magic(codes[:, start:stop], BITS, k0, k1).sub_(panels.MAGIC + ZERO)
        scales = weight.group_scales
        tile = eight_bits(q, None if scales is None else scales[k0 // GROUP : k1 // GROUP, start:stop])
        total += (levels[:, k0:k1] @ tile).to(torch.int32)
    return total


_PATH = _IntegerPath()
prepare, run, restore, calls = _PATH.prepare, _PATH.run, _PATH.restore, _PATH.calls
