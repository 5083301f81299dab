"""VectorWeight: columns of vectors that are looked up in codebooks (formats, section 14)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from quantfarm.formats.packing_codebooks import unpack_entries
from quantfarm.formats.settings.vptq import VectorLayer
from quantfarm.formats.weights.base import Weight

_SHORT = 0xFFFF


@dataclass(frozen=True, kw_only=True)
class VectorWeight(Weight):
    """One weight whose column k is a run of vectors from a codebook. See ``Weight`` for the rest.

    Operands are the stored tensors themselves, but for ``order``.

    Attributes:
        layer: sizes and switches.
        indices: int32 [groups, vectors, words], packed, or 16 bits [groups, vectors, group_size].
        centroids: floats [groups, centroids * vector].
        residual_indices: 16 bits [groups, vectors, group_size], or None where they are packed or absent.
        residuals: floats [groups, residuals * vector], or None.
        outlier_indices: 16 bits [1, outlier vectors, outlier_size], or None.
        outliers: floats [1, outlier_centroids * outlier_vector], or None.
        order: int64 [K], the stored column of each input, or None where columns lie in their order.
        scale, offset: floats [K] of each input, or None.
    """

    layer: VectorLayer
    indices: torch.Tensor
    centroids: torch.Tensor
    residual_indices: torch.Tensor | None
    residuals: torch.Tensor | None
    outlier_indices: torch.Tensor | None
    outliers: torch.Tensor | None
    order: torch.Tensor | None
    scale: torch.Tensor | None
    offset: torch.Tensor | None

    @property
    def row_block(self) -> int:
        """Outputs after which both kinds of vectors start anew."""
        return math.lcm(self.layer.vector, self.layer.outlier_vector)

    def decoded(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` of W as fp32 [n, K]: vectors and residuals added, order, scale, offset.

        Everything is added in fp32. W^T is made, since there a vector is a run in memory.
        """
        stop = self.n if stop is None else stop
        if start % self.row_block:
            raise ValueError(f"rows are decoded in blocks: needs a multiple of {self.row_block}, got {start}")
        columns = self._columns(start, stop)
        if self.outliers is not None and self.outlier_indices is not None:
            size = self.layer.outlier_vector
            chosen = _shorts(self.outlier_indices[:, start // size : -(-stop // size)])
            left = _looked_up(self.outliers, chosen, size)
            columns = torch.cat([left[:, : stop - start], columns])
        if self.order is not None:
            columns = columns.index_select(0, self.order)
        if self.scale is not None and self.offset is not None:
            columns = columns * self.scale.to(torch.float32).unsqueeze(1)
            columns += self.offset.to(torch.float32).unsqueeze(1)
        return columns.t()

    def _columns(self, start: int, stop: int) -> torch.Tensor:
        """Return the columns of the main codebooks, in stored order, as fp32 [groups * group_size, n]."""
        layer = self.layer
        vectors = slice(start // layer.vector, -(-stop // layer.vector))
        stored = self.indices[:, vectors]
        if layer.packed:
            entries = unpack_entries(stored, layer.main_bits + layer.residual_bits, layer.group_size)
            main, rest = entries & ((1 << layer.main_bits) - 1), entries >> layer.main_bits
        else:
            main = _shorts(stored)
            rest = main if self.residual_indices is None else _shorts(self.residual_indices[:, vectors])
        columns = _looked_up(self.centroids, main, layer.vector)
        if self.residuals is not None:
            columns += _looked_up(self.residuals, rest, layer.vector)
        return columns[:, : stop - start]


def _shorts(stored: torch.Tensor) -> torch.Tensor:
    """Return 16-bit indices, whatever dtype they are declared as, as int64."""
    return stored.view(torch.int16).to(torch.int64).bitwise_and_(_SHORT)


def _looked_up(books: torch.Tensor, indices: torch.Tensor, size: int) -> torch.Tensor:
    """Look up vectors: books [groups, entries * size], indices int64 [groups, m, columns] to fp32 [columns, m * size].

    Columns of all groups lie one after the other. Books or vectors are widened, whatever is less.
    """
    table = books.reshape(-1, size)
    first = torch.arange(books.shape[0], device=books.device).view(-1, 1, 1) * (table.shape[0] // books.shape[0])
    chosen = (indices + first).transpose(1, 2).reshape(-1)
    if table.shape[0] <= chosen.shape[0]:
        vectors = table.to(torch.float32).index_select(0, chosen)
    else:
        vectors = table.index_select(0, chosen).to(torch.float32)
    return vectors.view(-1, indices.shape[1] * size)
