"""Portable backend of trellis codes: transform x, multiply by decoded tiles, transform the sums. Nothing is kept.

``y = (((x * input_scales) H) inner) H * output_scales``: the transforms act on x and y, which are small, instead of on
the weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from quantfarm.formats.packing_codebooks import TILE
from quantfarm.formats.weights.trellis import BLOCK, TrellisWeight, natural, transformed
from quantfarm.runtime.epilogue import finish
from quantfarm.runtime.launches import LaunchCounter

_LAUNCHES = LaunchCounter()
_FEW_ROWS = 16
_SMALL_PANEL = 1 << 19
_LARGE_PANEL = 1 << 21
_COLUMNS = 8192 // TILE


@dataclass(frozen=True)
class Prepared:
    """The weight itself, on its device; nothing is derived, so nothing can go stale."""

    weight: TrellisWeight


def prepare(tensor: TrellisWeight, device: torch.device) -> Prepared:
    """Keep the weight as it is; raise ValueError for one on another device."""
    if tensor.device != device:
        raise ValueError(f"weight: needs device {device}, got {tensor.device}")
    return Prepared(weight=tensor)


def run(prepared: Prepared, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply x [M, K] to [M, N] in x.dtype; transforms, sums and bias in fp32, one cast."""
    _LAUNCHES.add()
    weight = prepared.weight
    wide = transformed(x.to(torch.float32) * weight.input_scales)
    sums = torch.empty(x.shape[0], weight.n, dtype=torch.float32, device=x.device)
    for inputs, outputs in _panels(weight, x.shape[0]):
        part = sums[:, outputs.start * TILE : outputs.stop * TILE]
        rows = wide[:, inputs.start * TILE : inputs.stop * TILE]
        panel = weight.inner(inputs, outputs)
        torch.mm(rows, panel, out=part) if inputs.start == 0 else part.addmm_(rows, panel)
        if inputs.stop * TILE == weight.k:
            part.copy_(natural(part))
    # Each transform lacks its factor of 1/sqrt(128); together they are one exact power of two.
    out = transformed(sums).mul_(weight.output_scales.to(torch.float32) / BLOCK)
    return finish(out, bias, x.dtype)


def restore(prepared: Prepared) -> torch.Tensor:
    """Raise TypeError: the stored tensors are kept, and they are no canonical codes."""
    raise TypeError(f"{type(prepared.weight).__name__} keeps its stored tensors and has no canonical codes")


def calls() -> int:
    """Return how often ``run`` computed in this process."""
    return _LAUNCHES.value


def _panels(weight: TrellisWeight, rows: int) -> Iterator[tuple[slice, slice]]:
    """Cut the inner weight into panels of whole tiles, all inputs of some outputs one after the other.

    Panels are wide, since the decoder works on runs along the outputs. With many rows of x they are larger, so that
    sums are touched less often.
    """
    high, wide = weight.k // TILE, weight.n // TILE
    for column in range(0, wide, _COLUMNS):
        outputs = slice(column, min(column + _COLUMNS, wide))
        values = (outputs.stop - outputs.start) * TILE * TILE
        step = max((_SMALL_PANEL if rows <= _FEW_ROWS else _LARGE_PANEL) // values, 1)
        for row in range(0, high, step):
            yield slice(row, min(row + step, high)), outputs
