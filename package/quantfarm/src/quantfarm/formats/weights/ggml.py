"""GgmlWeight: rows of ggml blocks as they are stored, decoded to fp32 in ggml's own order of operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantfarm.declare.ggml import GgmlType
from quantfarm.formats.weights import ggml_k, ggml_legacy
from quantfarm.formats.weights.base import Weight
from quantfarm.formats.weights.ggml_iq import BOOK_DECODERS

_PANEL = 1 << 19
"""Values that are decoded together, few enough for every intermediate to stay in a core's cache."""


@dataclass(frozen=True, kw_only=True)
class GgmlWeight(Weight):
    """One weight [N, K] of ggml blocks; ``source`` holds qweight, uint8 [N, blocks * size].

    Attributes:
        type: the block type, which ``code_type`` names.
        book: fp32 [codes, length] or [codes], what the codes of a type with a code book stand for; else None.
    """

    type: GgmlType
    book: torch.Tensor | None = None

    def decoded(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` as fp32 [n, K], bit for bit what ggml gives; padding is left out."""
        rows = self.source["qweight"][start:stop]
        blocks = rows.reshape(-1, self.type.size)
        step = max(_PANEL // self.type.block, 1)
        if blocks.shape[0] <= step:
            values = self._blocks(blocks)
        else:
            values = torch.empty(blocks.shape[0], self.type.block, dtype=torch.float32, device=blocks.device)
            for first in range(0, blocks.shape[0], step):
                values[first : first + step] = self._blocks(blocks[first : first + step])
        per_row = rows.shape[1] // self.type.size * self.type.block
        return values.view(rows.shape[0], per_row)[:, : self.k]

    def _blocks(self, blocks: torch.Tensor) -> torch.Tensor:
        """Decode blocks, uint8 [B, size] to fp32 [B, block]."""
        name = self.type.name
        if self.book is not None:
            return BOOK_DECODERS[name](blocks, self.book)
        return (ggml_k.DECODERS if name in ggml_k.DECODERS else ggml_legacy.DECODERS)[name](blocks)
