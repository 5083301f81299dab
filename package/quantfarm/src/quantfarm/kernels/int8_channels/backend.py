"""Backend over torch's int8 product: 8-bit codes as signed bytes, x as three signed digits, sums in integers.

A row of x, one group of inputs at a time, becomes ``X * 2^(e - 22)`` with integers ``|X| <= 2^22``, which is x to 2^-23
of the group's largest value. X is written in three signed digits of base 256, so each digit's product with the signed
codes is exact in int32; zero points are applied there too. Scales then follow in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.runtime import panels
from quantfarm.runtime.epilogue import finish
from quantfarm.runtime.launches import LaunchCounter

_LAUNCHES = LaunchCounter()
_MIDDLE = 128
_BASE = 256
_FRACTION = 22
_LOWEST = -100
"""Exponent below which a group of x counts as this small; its values lose bits only below 2^-122."""
_LONGEST = 1 << 15
"""Inputs of one integer sum: 2^15 products of at most 2^14 and as much of zero points stay inside int32."""
_DECODE_ABOVE = 8
"""More rows than this and decoding tiles once is cheaper, except where few sums are made (measured, NOTES.md)."""
_FEW_PARTS = 4
_PEAK = 16.0
"""Largest value of an fp32 row over its root mean square, up to which three digits give fp32 accuracy."""
_SHORTEST = 2
"""Inputs of one call of the operator at least: for a single one torch 2.13 returns numbers that are not the product."""
_COLUMNS = 4096


@dataclass(frozen=True)
class Part:
    """Neighbours of one group: inputs ``start`` to ``stop`` in group order, codes less 128 as int8 [N, inputs].

    A single input has a second one beside it, code 0 under a zero.
    """

    start: int
    stop: int
    group: int
    codes: torch.Tensor


@dataclass(frozen=True)
class Prepared:
    """One weight: the canonical form, kept, and the derived bytes.

    Attributes:
        tensor: the weight as stored.
        order: int64 [K], inputs sorted by group, or None where they are.
        parts: the sums that a product is made of.
        scales: fp32 [G, N].
        offsets: int32 [G, N], 128 less the zero point, or None where all are zero.
    """

    tensor: QuantTensor
    order: torch.Tensor | None
    parts: tuple[Part, ...]
    scales: torch.Tensor
    offsets: torch.Tensor | None


def prepare(tensor: QuantTensor, device: torch.device) -> Prepared:
    """Derive the signed bytes; ``device`` is the processor.

    Raises:
        ValueError: the codes are not in canonical form on the processor.
    """
    if tensor.codes is None or tensor.codes.device != device:
        found = "none" if tensor.codes is None else tensor.codes.device
        raise ValueError(f"codes: needs canonical codes on {device}, got {found}")
    order = tensor.permutation()
    groups = tensor.group_of_inputs() if order is None else tensor.group_of_inputs()[order]
    counts = torch.bincount(groups, minlength=tensor.scales.shape[0]).tolist()
    signed = torch.empty(tensor.n, tensor.k, dtype=torch.int8)
    for n0 in range(0, tensor.n, _COLUMNS):
        codes = tensor.unpacked(n0, n0 + _COLUMNS) if order is None else tensor.unpacked(n0, n0 + _COLUMNS)[order]
        signed[n0 : n0 + _COLUMNS] = (codes ^ _MIDDLE).view(torch.int8).t()
    offsets = (_MIDDLE - tensor.zeros).to(torch.int32)
    return Prepared(
        tensor=tensor,
        order=order,
        parts=_parts(counts, signed),
        scales=tensor.scales.to(torch.float32),
        offsets=offsets if bool(offsets.any()) else None,
    )


def run(prepared: Prepared, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply x [M, K] to [M, N] in x.dtype; rows that digits do not hold, and many rows, by decoded tiles."""
    _LAUNCHES.add()
    if x.shape[0] > _DECODE_ABOVE and len(prepared.parts) > _FEW_PARTS:
        return finish(panels.multiply(x, prepared.tensor), bias, x.dtype)
    wide = x.to(torch.float32)
    served = _served(wide, exact=x.dtype is torch.float32)
    if bool(served.all()):
        return finish(_product(prepared, wide), bias, x.dtype)
    out = torch.empty(x.shape[0], prepared.tensor.n, dtype=torch.float32)
    out[served] = _product(prepared, wide[served])
    out[~served] = panels.multiply(x[~served], prepared.tensor)
    return finish(out, bias, x.dtype)


def _served(x: torch.Tensor, *, exact: bool) -> torch.Tensor:
    """Say of each row whether digits hold it: it is finite and, where fp32 is asked for, has no value that towers.

    Digits are fractions of the largest value, so a peak takes bits from all others: the error relative to the row is
    about 2^-25 of the peak over the root mean square.
    """
    finite = torch.isfinite(x).all(1)
    return finite & (x.abs().amax(1) <= _PEAK * x.square().mean(1).sqrt()) if exact else finite


def restore(prepared: Prepared) -> torch.Tensor:
    """Return the canonical codes, which are kept beside the derived bytes."""
    return prepared.tensor.held_codes()


def calls() -> int:
    """Return how often ``run`` computed in this process."""
    return _LAUNCHES.value


def _parts(counts: list[int], signed: torch.Tensor) -> tuple[Part, ...]:
    """Cut signed codes [N, K] in group order into sums that stay inside int32; an empty group has none."""
    parts, begin = [], 0
    for group, count in enumerate(counts):
        for start in range(begin, begin + count, _LONGEST):
            stop = min(start + _LONGEST, begin + count)
            codes = torch.nn.functional.pad(signed[:, start:stop], (0, max(_SHORTEST - (stop - start), 0)))
            parts.append(Part(start=start, stop=stop, group=group, codes=codes.contiguous()))
        begin += count
    return tuple(parts)


def _product(prepared: Prepared, x: torch.Tensor) -> torch.Tensor:
    """Return x W^T in fp32 for finite x fp32 [M, K]."""
    rows = x.shape[0]
    if prepared.order is not None:
        x = x.index_select(1, prepared.order)
    out = torch.zeros(rows, prepared.tensor.n, dtype=torch.float32)
    for part in prepared.parts if rows else ():
        digits, unit = _digits(x[:, part.start : part.stop])
        digits = torch.nn.functional.pad(digits, (0, part.codes.shape[1] - digits.shape[1]))
        sums = torch._int_mm(digits, part.codes.t())  # noqa: SLF001 - torch has no public name for it
        if prepared.offsets is not None:
            sums += digits.sum(1, dtype=torch.int32).unsqueeze(1) * prepared.offsets[part.group]
        high, middle, low = sums.to(torch.float32).view(3, rows, -1)
        value = high.mul_(_BASE).add_(middle).mul_(_BASE).add_(low).mul_(unit)
        out.addcmul_(value, prepared.scales[part.group])
    return out


def _digits(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the three digits of each value as int8 [3M, k], high to low, and the unit of each row, fp32 [M, 1]."""
    _, exponent = torch.frexp(x.abs().amax(1, keepdim=True))
    exponent = exponent.clamp_min(_LOWEST)
    whole = torch.round(torch.ldexp(x, _FRACTION - exponent)).to(torch.int32)
    low = ((whole + _MIDDLE) & (_BASE - 1)) - _MIDDLE
    whole = (whole - low) >> 8
    middle = ((whole + _MIDDLE) & (_BASE - 1)) - _MIDDLE
    high = (whole - middle) >> 8
    return torch.cat([high, middle, low]).to(torch.int8), torch.ldexp(torch.ones_like(x[:, :1]), exponent - _FRACTION)
