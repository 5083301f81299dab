"""Backend over the package bitsandbytes: it decodes a panel of rows, torch multiplies in fp32, then the next panel.

The package's own fused products are not called: they round the result, the scales or both (NOTES.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from quantfarm.formats.weights.base import Weight
from quantfarm.formats.weights.row_codes import RowCodes
from quantfarm.formats.weights.table_codes import TableCodes
from quantfarm.runtime import panels
from quantfarm.runtime.epilogue import finish
from quantfarm.runtime.launches import LaunchCounter

_LAUNCHES = LaunchCounter()
_LARGEST_BLOCK = 1024
"""Larger blocks take the package's slow path on CPUs: each is given as several blocks of this size instead."""


@dataclass(frozen=True)
class Prepared:
    """The weight as stored, and what decodes rows of it by the package's operators."""

    weight: Weight
    rows: panels.Rows


def prepare(tensor: Weight, device: torch.device) -> Prepared:
    """Keep the stored tensors; nothing is repacked.

    Raises:
        ValueError: the weight lies on another device, or is of a kind that the package has no operator for.
        ImportError: the package can not be imported; its own sentence is kept.
    """
    if tensor.device != device:
        raise ValueError(f"weight: needs device {device}, got {tensor.device}")
    operators = _operators()
    if isinstance(tensor, TableCodes):
        return Prepared(weight=tensor, rows=partial(_table_rows, operators, tensor))
    if isinstance(tensor, RowCodes):
        return Prepared(weight=tensor, rows=tensor.decoded)
    raise ValueError(f"weight: needs table codes or 8-bit rows, got {type(tensor).__name__}")


def run(prepared: Prepared, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply x [M, K] to [M, N] in x.dtype; sums and bias in fp32, one cast."""
    _LAUNCHES.add()
    return finish(panels.multiply_rows(x, prepared.rows, prepared.weight.n), bias, x.dtype)


def restore(prepared: Prepared) -> torch.Tensor:
    """Raise TypeError: the stored tensors are kept, and there are no canonical codes."""
    raise TypeError(f"{type(prepared.weight).__name__} keeps its stored tensors and has no canonical codes")


def calls() -> int:
    """Return how often ``run`` computed in this process."""
    return _LAUNCHES.value


def _table_rows(operators: Any, weight: TableCodes, start: int, stop: int) -> torch.Tensor:
    return weight.panel(start, stop, partial(_table_values, operators, weight))


def _table_values(
    operators: Any, weight: TableCodes, packed: torch.Tensor, absmax: torch.Tensor, count: int
) -> torch.Tensor:
    """Decode whole blocks, fp32 [count]: as one flat row of an even number, the form that every device's code takes."""
    size = min(weight.block_size, _LARGEST_BLOCK)
    absmax = absmax.repeat_interleave(weight.block_size // size)[: -(-count // size)]
    even = count + count % 2
    codes = packed.contiguous().view(-1, 1)
    flat: torch.Tensor = operators.dequantize_4bit(codes, absmax, size, weight.code_type, (even,), torch.float32)
    return flat.reshape(-1)[:count]


@cache
def _operators() -> Any:
    """Return the package's operators; importing it registers them."""
    import bitsandbytes  # noqa: F401

    return torch.ops.bitsandbytes
