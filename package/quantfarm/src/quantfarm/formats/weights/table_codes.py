"""TableCodes: 4-bit codes that index a table of 16 values, scaled by the largest magnitude of their block.

The codes of W [N, K] lie flat in row-major order, element 2i in the high nibble of byte i (formats, section 17).
``w = table[code] * absmax[block]`` with blocks of consecutive flat elements, which may cross rows; the last one may be
short. Nested: ``absmax = nested_table[code] * nested_absmax[block // nested_block_size] + nested_offset``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from quantfarm.formats.packing import unpack_high_first
from quantfarm.formats.weights.base import Weight

_PAIR = 2

BlockValues = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
"""Decodes whole blocks; see ``TableCodes.panel``."""


@dataclass(frozen=True, kw_only=True)
class Nested:
    """How the absmax of blocks is itself stored as codes: blocks of blocks, and what is added to every absmax."""

    block_size: int
    offset: float


@dataclass(frozen=True, kw_only=True)
class TableCodes(Weight):
    """One weight [N, K] of table codes. See ``Weight`` for the common attributes.

    Attributes:
        block_size: flat elements that share an absmax.
        table: fp32 [16], the value of each code.
        stored_codes: the bytes as the checkpoint has them, ceil(N*K/2) in all, of any dtype and shape.
        stored_absmax: [blocks], fp32, or uint8 where it is nested.
        nested: facts of the second level, or None.
        nested_table: fp32 [256], or None.
        nested_absmax: fp32 [ceil(blocks / nested.block_size)], or None.
    """

    block_size: int
    table: torch.Tensor
    stored_codes: torch.Tensor
    stored_absmax: torch.Tensor
    nested: Nested | None = None
    nested_table: torch.Tensor | None = None
    nested_absmax: torch.Tensor | None = None

    def decoded(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` of W as fp32 [n, K]."""
        return self.panel(start, stop, self._values)

    def panel(self, start: int, stop: int | None, values: BlockValues) -> torch.Tensor:
        """Return rows of W, fp32 [n, K], where ``values`` decodes whole blocks.

        Args:
            start: the first row.
            stop: the row after the last; None means up to the end.
            values: takes the bytes [ceil(count/2)], the absmax fp32 of each block and the count of elements, which is
                even or ends the weight; returns fp32 [count].
        """
        first, end = start * self.k, (self.n if stop is None else min(stop, self.n)) * self.k
        lead = first // self.block_size
        blocks = max(-(-end // self.block_size) - lead, 0)
        begin = lead * self.block_size
        count = min((lead + blocks) * self.block_size, self.n * self.k) - begin
        packed = self.octets()[begin // _PAIR : begin // _PAIR + -(-count // _PAIR)]
        flat = values(packed, self.absmax(lead, lead + blocks), count)
        return flat[first - begin : end - begin].view(-1, self.k)

    def octets(self) -> torch.Tensor:
        """Return the packed codes as uint8 [ceil(N*K/2)]; a view."""
        return self.stored_codes.contiguous().view(torch.uint8).reshape(-1)

    def absmax(self, start: int, stop: int) -> torch.Tensor:
        """Return the scale of blocks ``start`` to ``stop``, fp32."""
        stored = self.stored_absmax.reshape(-1)[start:stop]
        if self.nested is None or self.nested_table is None or self.nested_absmax is None:
            return stored.to(torch.float32)
        outer = torch.arange(start, start + stored.numel(), device=stored.device) // self.nested.block_size
        scaled = self.nested_table[stored.to(torch.int32)] * self.nested_absmax.reshape(-1)[outer]
        return scaled + self.nested.offset

    def _values(self, packed: torch.Tensor, absmax: torch.Tensor, count: int) -> torch.Tensor:
        codes = unpack_high_first(packed)[:count].to(torch.int32)
        return self.table[codes] * absmax.repeat_interleave(self.block_size)[:count]
