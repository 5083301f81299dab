"""Products with a quantized weight, decoded one tile at a time: the portable forward and every backward.

A tile is [rows of K, columns of N] of W^T in fp32, small enough to stay in a core's cache, so that no dense weight
exists at any time (``numerics`` rule B3). Bit trick: OR-ing a code into the pattern of 2^23 gives the fp32 number
2^23 + code, so subtracting ``2^23 + zero`` yields the exact integer ``code - zero`` without a conversion pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from quantfarm.formats.quant_tensor import QuantTensor

_WORD = 32
_MAGIC_BITS = 0x4B000000
_MAGIC = float(1 << 23)
_COLUMNS = 4096
_FEW_ROWS = 16
_SMALL_TILE = 1 << 19
_LARGE_TILE = 1 << 21
_METADATA = 1 << 21
"""Largest number of scales, and of zero points, that one block of columns widens to fp32."""


class Tile(NamedTuple):
    """Decoded rows ``k0:k1`` and columns ``n0:n1`` of W^T, fp32."""

    k0: int
    k1: int
    n0: int
    n1: int
    values: torch.Tensor


def multiply(x: torch.Tensor, tensor: QuantTensor) -> torch.Tensor:
    """Return x W^T in fp32: x [M, K] of any float dtype to [M, N]."""
    wide = x.to(torch.float32)
    out = torch.zeros(x.shape[0], tensor.n, dtype=torch.float32, device=x.device)
    for tile in tiles(tensor, x.shape[0]):
        out[:, tile.n0 : tile.n1].addmm_(wide[:, tile.k0 : tile.k1], tile.values)
    return out


def multiply_transposed(y: torch.Tensor, tensor: QuantTensor) -> torch.Tensor:
    """Return y W in fp32: y [M, N] of any float dtype to [M, K]; the gradient of the input."""
    wide = y.to(torch.float32)
    out = torch.zeros(y.shape[0], tensor.k, dtype=torch.float32, device=y.device)
    for tile in tiles(tensor, y.shape[0]):
        out[:, tile.k0 : tile.k1].addmm_(wide[:, tile.n0 : tile.n1], tile.values.t())
    return out


def tiles(tensor: QuantTensor, rows: int) -> Iterator[Tile]:
    """Yield every tile of W^T once. With many rows of x the tiles are larger, so that sums are touched less often."""
    if tensor.codes is None:
        raise ValueError("the codes are held by the kernel's own layout: restore them first")
    columns = min(tensor.n, _COLUMNS, max(_METADATA // tensor.scales.shape[0] // 64 * 64, 64))
    step = _tile_rows(tensor, (_SMALL_TILE if rows <= _FEW_ROWS else _LARGE_TILE) // columns)
    for n0 in range(0, tensor.n, columns):
        n1 = min(n0 + columns, tensor.n)
        block = _Columns(
            codes=tensor.codes[:, n0:n1],
            offsets=tensor.zeros[:, n0:n1].to(torch.float32).add_(_MAGIC),
            scales=tensor.scales[:, n0:n1].to(torch.float32),
        )
        for k0 in range(0, tensor.k, step):
            k1 = min(k0 + step, tensor.k)
            yield Tile(k0, k1, n0, n1, _decoded(tensor, block, k0, k1))


class _Columns(NamedTuple):
    """A block of columns: packed codes, 2^23 + zero and scale in fp32 [G, n]."""

    codes: torch.Tensor
    offsets: torch.Tensor
    scales: torch.Tensor


def _decoded(tensor: QuantTensor, block: _Columns, k0: int, k1: int) -> torch.Tensor:
    """Decode ``(q - z) * s`` of rows ``k0:k1`` as fp32 [k1 - k0, n]; ``k0`` is a multiple of 32."""
    values = _codes_as_magic(block.codes, tensor.scheme.bits, k0, k1)
    size = tensor.group_size
    if tensor.g_idx is None and k0 % size == 0 and (k1 - k0) % size == 0:
        chosen = slice(k0 // size, k1 // size)
        grouped = values.view(-1, size, values.shape[1])
        grouped.sub_(block.offsets[chosen].unsqueeze(1)).mul_(block.scales[chosen].unsqueeze(1))
        return values
    if tensor.g_idx is None and k0 // size == (k1 - 1) // size:
        return values.sub_(block.offsets[k0 // size]).mul_(block.scales[k0 // size])
    groups = torch.arange(k0, k1, device=values.device) // size if tensor.g_idx is None else tensor.g_idx[k0:k1]
    return values.sub_(block.offsets.index_select(0, groups)).mul_(block.scales.index_select(0, groups))


def _tile_rows(tensor: QuantTensor, wanted: int) -> int:
    """Round to whole words and, where the groups are small enough, to whole groups."""
    unit = math.lcm(_WORD, tensor.group_size)
    if unit > wanted or tensor.g_idx is not None:
        unit = _WORD
    return max(wanted // unit, 1) * unit


def _codes_as_magic(packed: torch.Tensor, bits: int, k0: int, k1: int) -> torch.Tensor:
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
