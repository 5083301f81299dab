"""The library of packing: every bit order that a stored layout has, exactly once, with its inverse.

Here are the orders along one axis: the little-endian stream of the canonical form (which GPTQ, and along N its zero
points, have on disk; AWQ GEMV has it along K), and the planes of GPTQ_P. Orders that shuffle codes inside a tile are
data in ``packing_tiles``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from quantfarm.formats.packing_tiles import AWQ_GEMM, AWQ_PER_WORD

__all__ = [
    "AWQ_PER_WORD",
    "PLANES",
    "pack_awq",
    "pack_codes",
    "pack_columns",
    "pack_high_first",
    "pack_planes",
    "unpack_awq",
    "unpack_codes",
    "unpack_columns",
    "unpack_high_first",
    "unpack_planes",
]

_WORD = 32
_NIBBLE = 4
_LOW = 15
_IN_CACHE = 1 << 17
"""Words that are unpacked together: their shifted copies stay in a core's cache, which is ten times faster."""

PLANES: dict[int, tuple[tuple[int, int], ...]] = {
    2: ((2, 0),),
    3: ((2, 0), (1, 2)),
    4: ((4, 0),),
    5: ((4, 0), (1, 4)),
    6: ((4, 0), (2, 4)),
    7: ((4, 0), (2, 4), (1, 6)),
    8: ((8, 0),),
}
"""Code width of GPTQ_P -> its planes as (width, first bit of the code), in stored order (formats, section 3)."""

PLANE_BLOCK = 32
"""Codes whose planes lie together: ``bits`` words."""

pack_awq, unpack_awq = AWQ_GEMM.pack, AWQ_GEMM.unpack
"""uint8 [R, N] <-> int32 [R, N/8] in the nibble order of AWQ GEMM."""


class _Field(NamedTuple):
    """Where one code of a period lies: its word, its lowest bit there, and how many of its bits that word holds."""

    word: int
    shift: int
    held: int


def unpack_high_first(octets: torch.Tensor) -> torch.Tensor:
    """Unpack uint8 [B] to uint8 [2B] codes of 4 bits: code 2i in the high nibble of byte i, code 2i+1 in the low."""
    return torch.stack([octets >> _NIBBLE, octets & _LOW], dim=1).reshape(-1)


def pack_high_first(codes: torch.Tensor) -> torch.Tensor:
    """Pack uint8 [C] to uint8 [ceil(C/2)]: the inverse of ``unpack_high_first``; an odd count is padded with code 0."""
    pairs = torch.nn.functional.pad(codes, (0, codes.numel() % 2)).view(-1, 2)
    return (pairs[:, 0] << _NIBBLE) | pairs[:, 1]


def unpack_codes(packed: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    """Unpack int32 [ceil(K*bits/32), N] to uint8 [K, N]; the stream is little-endian and words are signed."""
    fields, length = _period(bits)
    periods, n = -(-packed.shape[0] // length), packed.shape[1]
    codes = torch.empty(periods, len(fields), n, dtype=torch.uint8, device=packed.device)
    words = _whole(packed, periods * length).reshape(periods, length, n)
    step = max(_IN_CACHE // max(n * length, 1), 1)
    for start in range(0, periods, step):
        part = words[start : start + step]
        for lane, (word, shift, held) in enumerate(fields):
            # A signed shift fills with copies of the sign, so the mask keeps only the bits that the word really holds.
            code = (part[:, word] >> shift).bitwise_and_((1 << held) - 1)
            if held < bits:
                code |= (part[:, word + 1] << held).bitwise_and_((1 << bits) - 1)
            codes[start : start + step, lane] = code
    return codes.view(-1, n)[:k]


def pack_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack [K, N] codes to int32 [ceil(K*bits/32), N]: the inverse of ``unpack_codes``; unused bits are zero."""
    fields, length = _period(bits)
    (k, n), rows = codes.shape, -(-codes.shape[0] * bits // _WORD)
    periods = -(-k // len(fields))
    words = torch.zeros(periods, length, n, dtype=torch.int32, device=codes.device)
    lanes = _whole(codes, periods * len(fields)).reshape(periods, len(fields), n)
    step = max(_IN_CACHE // max(n * length, 1), 1)
    for start in range(0, periods, step):
        part, out = lanes[start : start + step], words[start : start + step]
        for lane, (word, shift, held) in enumerate(fields):
            code = part[:, lane].to(torch.int32)
            out[:, word] |= code << shift
            if held < bits:
                out[:, word + 1] |= code >> held
    return words.view(-1, n)[:rows]


def unpack_columns(words: torch.Tensor, bits: int, n: int) -> torch.Tensor:
    """Unpack int32 [G, ceil(N*bits/32)], fields running along N, to uint8 [G, N]."""
    return unpack_codes(words.t(), bits, n).t().contiguous()


def pack_columns(fields: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack [G, N] fields to int32 [G, ceil(N*bits/32)]: the inverse of ``unpack_columns``; padding is zero."""
    return pack_codes(fields.t(), bits).t().contiguous()


def unpack_planes(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack the planes of GPTQ_P, int32 [K*bits/32, N] with K a multiple of 32, to uint8 [K, N].

    A plane of a block is the stream of its own width, so each plane of all blocks together is one, too.
    """
    blocks, n = words.shape[0] // bits, words.shape[1]
    k, first = blocks * PLANE_BLOCK, 0
    codes = torch.zeros(k, n, dtype=torch.uint8, device=words.device)
    by_block = words.reshape(blocks, bits, n)
    for width, offset in PLANES[bits]:
        plane = by_block[:, first : first + width].reshape(-1, n)
        codes |= unpack_codes(plane, width, k) << offset
        first += width
    return codes


def pack_planes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack uint8 [K, N], K a multiple of 32, to int32 [K*bits/32, N]: the inverse of ``unpack_planes``."""
    blocks, n = codes.shape[0] // PLANE_BLOCK, codes.shape[1]
    planes = [pack_codes((codes >> offset) & ((1 << width) - 1), width) for width, offset in PLANES[bits]]
    return torch.cat([plane.reshape(blocks, -1, n) for plane in planes], dim=1).reshape(-1, n)


def _period(bits: int) -> tuple[list[_Field], int]:
    """Return where the codes lie until one starts at a word again, and how many words that takes."""
    length = bits // math.gcd(bits, _WORD)
    starts = range(0, length * _WORD, bits)
    return [_Field(at // _WORD, at % _WORD, min(bits, _WORD - at % _WORD)) for at in starts], length


def _whole(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return the rows with zero rows behind them up to ``count``."""
    return rows if rows.shape[0] == count else torch.nn.functional.pad(rows, (0, 0, 0, count - rows.shape[0]))
