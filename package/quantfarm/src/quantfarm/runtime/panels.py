"""Products with a quantized weight, decoded one tile at a time: the portable forward and every backward.

A tile is [rows of K, columns of N] of W^T in fp32, small enough to stay in a core's cache, so that no dense weight
exists at any time (``numerics`` rule B3). Bit trick: OR-ing a code into the pattern of 2^23 gives the fp32 number
2^23 + code, so subtracting ``2^23 + zero`` yields the exact integer ``code - zero`` without a conversion pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.formats.weights.base import Weight
from quantfarm.formats.weights.rotated import RotatedWeight

_WORD = 32
_MAGIC_BITS = 0x4B000000
MAGIC = float(1 << 23)
_COLUMNS = 4096
_FEW_ROWS = 16
_SMALL_TILE = 1 << 19
_LARGE_TILE = 1 << 21
_METADATA = 1 << 21
"""Largest number of scales, and of zero points, that one block of columns widens to fp32."""

Rows = Callable[[int, int], torch.Tensor]
"""Decodes rows ``n0`` to ``n1`` of a matrix [N, K] as fp32 [n1 - n0, K]."""


class Tile(NamedTuple):
    """Decoded rows ``k0:k1`` and columns ``n0:n1`` of W^T, fp32."""

    k0: int
    k1: int
    n0: int
    n1: int
    values: torch.Tensor


def multiply(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Return x W^T in fp32: x [M, K] of any float dtype to [M, N]."""
    if isinstance(weight, RotatedWeight):
        return multiply(weight.rotated(x), weight.inner)
    if not isinstance(weight, QuantTensor):
        return multiply_rows(x, weight.decoded, weight.n, weight.row_block)
    wide = x.to(torch.float32)
    out = torch.zeros(x.shape[0], weight.n, dtype=torch.float32, device=x.device)
    for tile in tiles(weight, x.shape[0]):
        out[:, tile.n0 : tile.n1].addmm_(wide[:, tile.k0 : tile.k1], tile.values)
    return out


def multiply_transposed(y: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Return y W in fp32: y [M, N] of any float dtype to [M, K]; the gradient of the input."""
    if isinstance(weight, RotatedWeight):
        return weight.rotated_back(multiply_transposed(y, weight.inner))
    if not isinstance(weight, QuantTensor):
        return multiply_rows_transposed(y, weight.decoded, weight.k, weight.row_block)
    wide = y.to(torch.float32)
    out = torch.zeros(y.shape[0], weight.k, dtype=torch.float32, device=y.device)
    for tile in tiles(weight, y.shape[0]):
        out[:, tile.k0 : tile.k1].addmm_(wide[:, tile.n0 : tile.n1], tile.values.t())
    return out


def multiply_rows(x: torch.Tensor, rows: Rows, n: int, block: int = 1) -> torch.Tensor:
    """Return x W^T in fp32 for a matrix [n, K] that is decoded some rows at a time: x [M, K] to [M, n]."""
    wide = x.to(torch.float32)
    out = torch.empty(x.shape[0], n, dtype=torch.float32, device=x.device)
    for n0, n1 in _row_panels(n, x.shape[1], block):
        torch.mm(wide, rows(n0, n1).t(), out=out[:, n0:n1])
    return out


def multiply_rows_transposed(y: torch.Tensor, rows: Rows, k: int, block: int = 1) -> torch.Tensor:
    """Return y W in fp32 for a matrix [N, k] that is decoded some rows at a time: y [M, N] to [M, k]."""
    wide = y.to(torch.float32)
    out = torch.zeros(y.shape[0], k, dtype=torch.float32, device=y.device)
    for n0, n1 in _row_panels(y.shape[1], k, block):
        out.addmm_(wide[:, n0:n1], rows(n0, n1))
    return out


def _row_panels(n: int, k: int, block: int) -> Iterator[tuple[int, int]]:
    """Cut n rows of k values into panels of whole blocks that hold about ``_SMALL_TILE`` values."""
    step = max(_SMALL_TILE // max(k, 1) // block, 1) * block
    for n0 in range(0, n, step):
        yield n0, min(n0 + step, n)


def tiles(tensor: QuantTensor, rows: int) -> Iterator[Tile]:
    """Yield every tile of W^T once. With many rows of x the tiles are larger, so that sums are touched less often."""
    packed = tensor.held_codes()
    columns = min(tensor.n, _COLUMNS, max(_METADATA // tensor.scales.shape[0] // 64 * 64, 64))
    step = _tile_rows(tensor, (_SMALL_TILE if rows <= _FEW_ROWS else _LARGE_TILE) // columns)
    for n0 in range(0, tensor.n, columns):
        n1 = min(n0 + columns, tensor.n)
        block = _Columns(
            codes=packed[:, n0:n1],
            zeros=tensor.zeros[:, n0:n1].to(torch.float32).add_(MAGIC),
            scales=tensor.scales[:, n0:n1].to(torch.float32),
            offsets=None if tensor.offsets is None else tensor.offsets[:, n0:n1].to(torch.float32),
        )
        for k0 in range(0, tensor.k, step):
            k1 = min(k0 + step, tensor.k)
            yield Tile(k0, k1, n0, n1, _decoded(tensor, block, k0, k1))


class _Columns(NamedTuple):
    """A block of columns: packed codes, then fp32 [G, n]: 2^23 + zero, scale, and what is added last, if anything."""

    codes: torch.Tensor
    zeros: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None


def _decoded(tensor: QuantTensor, block: _Columns, k0: int, k1: int) -> torch.Tensor:
    """Decode ``(q - z) * s`` of rows ``k0:k1`` as fp32 [k1 - k0, n]; ``k0`` is a multiple of 32."""
    values = codes_as_magic(block.codes, tensor.scheme.bits, k0, k1)
    size = tensor.group_size
    if tensor.g_idx is None and k0 % size == 0 and (k1 - k0) % size == 0:
        chosen = slice(k0 // size, k1 // size)
        _affine(values.view(-1, size, values.shape[1]), block, lambda part: part[chosen].unsqueeze(1))
    elif tensor.g_idx is None and k0 // size == (k1 - 1) // size:
        _affine(values, block, lambda part: part[k0 // size])
    else:
        groups = torch.arange(k0, k1, device=values.device) // size if tensor.g_idx is None else tensor.g_idx[k0:k1]
        _affine(values, block, lambda part: part.index_select(0, groups))
    return values


def _affine(values: torch.Tensor, block: _Columns, of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Subtract zero, multiply by scale and add the offset, in place; ``of`` picks the rows of the groups."""
    values.sub_(of(block.zeros)).mul_(of(block.scales))
    if block.offsets is not None:
        values.add_(of(block.offsets))


def _tile_rows(tensor: QuantTensor, wanted: int) -> int:
    """Round to whole words and, where the groups are small enough, to whole groups."""
    unit = math.lcm(_WORD, tensor.group_size)
    if unit > wanted or tensor.g_idx is not None:
        unit = _WORD
    return max(wanted // unit, 1) * unit


def codes_as_magic(packed: torch.Tensor, bits: int, k0: int, k1: int) -> torch.Tensor:
    """Unpack rows ``k0:k1`` to fp32 [k1 - k0, n] holding 2^23 + code. ``packed`` is int32 [ceil(K*bits/32), n]."""
    mask = (1 << bits) - 1
    words = packed[k0 * bits // _WORD : -(-k1 * bits // _WORD)]
    if _WORD % bits == 0:
        shifts = torch.arange(0, _WORD, bits, dtype=torch.int32, device=packed.device).view(1, -1, 1)
        codes = (words.unsqueeze(1) >> shifts).bitwise_and_(mask)
        codes = codes.view(-1, packed.shape[1])[: k1 - k0]
    else:
        codes = _straddling(words, bits, k1 - k0)
    return codes.bitwise_or_(_MAGIC_BITS).view(torch.float32)


def _straddling(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Unpack ``count`` codes of a width that does not divide 32: some codes lie across two words."""
    position = torch.arange(count, device=words.device) * bits
    word, offset = position // _WORD, (position % _WORD).to(torch.int32)
    mask = (1 << bits) - 1
    # A signed shift fills with copies of the sign, so the mask keeps only the bits that the word really holds.
    kept = (1 << torch.clamp(_WORD - offset, max=bits)) - 1
    codes = (words.index_select(0, word) >> offset.unsqueeze(1)).bitwise_and_(kept.to(torch.int32).unsqueeze(1))
    across = torch.nonzero(offset + bits > _WORD).flatten()
    if across.numel():
        above = words.index_select(0, word[across] + 1) << (_WORD - offset[across]).unsqueeze(1)
        codes.index_copy_(0, across, codes.index_select(0, across) | (above & mask))
    return codes
