"""The bit orders of codes that are looked up: trellis tiles, packed signs, and wide indices.

**Trellis tiles** hold 16 x 16 weights as one cyclic stream of symbols (formats, section 13).

A tile of 256 symbols of b bits lies in 16b words of 16 bits. With the words of each pair swapped it is one stream,
most significant bit first, that bites its tail: the state of symbol i is the 16 bits that end with that symbol,
where the stream goes round. So a state is a window over two neighbouring words, and nothing has to be shifted through
a register.

**Indices** of codebooks (formats, section 14) lie in the little-endian stream of ``packing``, up to 32 bits wide.
"""

from __future__ import annotations

import functools
import math

import torch

TILE = 16
"""Rows and columns of a tile."""

SYMBOLS = TILE * TILE
_STATE_BITS = 16
_STATE_MASK = (1 << _STATE_BITS) - 1
_WORD_BITS = 32
_WORD_MASK = (1 << _WORD_BITS) - 1
_LANE_ROWS = (0, 1, 8, 9, 0, 1, 8, 9)


def _target(index: int) -> int:
    """Return where symbol ``index`` lies in its tile, as 16 * row + column: lane t = i // 8 holds eight of them."""
    lane, entry = divmod(index, 8)
    return TILE * (2 * (lane % 4) + _LANE_ROWS[entry]) + lane // 4 + 8 * (entry // 4)


TARGETS = tuple(_target(index) for index in range(SYMBOLS))
"""Symbol i of the stream is the weight TARGETS[i] = 16 * row + column of its tile."""


def unpack_states(trellis: torch.Tensor) -> torch.Tensor:
    """Unpack int16 [K/16, N/16, 16*b] to the states, int32 [K/16, 256, N/16] with 0 <= state < 65536.

    Position 16 * row + column of the middle side is that weight of the tile; tiles of one row lie side by side, so
    that each step works on long runs.
    """
    bits = trellis.shape[2] // TILE
    swap, word, shift = _windows(bits, trellis.device)
    words = trellis.transpose(1, 2).index_select(1, swap).to(torch.int32).bitwise_and_(_STATE_MASK)
    pairs = (words << _STATE_BITS) | words.roll(-1, 1)
    return pairs.index_select(1, word).bitwise_right_shift_(shift).bitwise_and_(_STATE_MASK)


def pack_states(states: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack int32 [K/16, 256, N/16] to int16 [K/16, N/16, 16*b]: the inverse of ``unpack_states``.

    Only the symbol of each state, its low b bits, is stored; the rest follows from the symbols before it.
    """
    order = torch.tensor(TARGETS, device=states.device)
    symbols = states.index_select(1, order).transpose(1, 2)
    places = torch.arange(bits - 1, -1, -1, device=states.device)
    stream = ((symbols.unsqueeze(-1) >> places) & 1).reshape(*symbols.shape[:2], TILE * bits, _STATE_BITS)
    words = (stream << torch.arange(_STATE_BITS - 1, -1, -1, device=states.device)).sum(-1)
    swap, _, _ = _windows(bits, states.device)
    return words.index_select(2, swap).to(torch.int16)


def unpack_signs(words: torch.Tensor) -> torch.Tensor:
    """Unpack int16 [n/16] to fp16 [n] of signs: entry 16c + j is -1 where bit j of word c is set, else +1."""
    places = torch.arange(_STATE_BITS, dtype=torch.int32, device=words.device)
    set_bits = (words.to(torch.int32).unsqueeze(1) >> places) & 1
    return (1 - 2 * set_bits).flatten().to(torch.float16)


def pack_signs(signs: torch.Tensor) -> torch.Tensor:
    """Pack signs [n] to int16 [n/16]: the inverse of ``unpack_signs``."""
    places = torch.arange(_STATE_BITS, dtype=torch.int32, device=signs.device)
    return ((signs.view(-1, _STATE_BITS) < 0).to(torch.int32) << places).sum(1).to(torch.int16)


def unpack_entries(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Unpack int32 [..., ceil(count*bits/32)] to int64 [..., count]: little-endian, 1 to 32 bits an entry.

    After ``lanes`` entries one starts at a word again, so each lane lies alike in every such period.
    """
    common = math.gcd(bits, _WORD_BITS)
    length, lanes = bits // common, _WORD_BITS // common
    periods = -(-count // lanes)
    wide = torch.nn.functional.pad(words.to(torch.int64), (0, periods * length - words.shape[-1]))
    wide = wide.bitwise_and_(_WORD_MASK).view(*words.shape[:-1], periods, length)
    entries = torch.empty(*words.shape[:-1], periods, lanes, dtype=torch.int64, device=words.device)
    for lane in range(lanes):
        word, shift = divmod(lane * bits, _WORD_BITS)
        entry = wide[..., word] >> shift
        if shift + bits > _WORD_BITS:
            entry |= wide[..., word + 1] << (_WORD_BITS - shift)
        entries[..., lane] = entry
    return entries.bitwise_and_((1 << bits) - 1).flatten(-2)[..., :count]


def pack_entries(entries: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack [..., count] to int32 [..., ceil(count*bits/32)]: the inverse of ``unpack_entries``; padding is zero."""
    count = entries.shape[-1]
    position = torch.arange(count, device=entries.device) * bits
    word, offset = position // _WORD_BITS, position % _WORD_BITS
    size = -(-count * bits // _WORD_BITS)
    words = torch.zeros(*entries.shape[:-1], size + 1, dtype=torch.int64, device=entries.device)
    shifted = entries.to(torch.int64) << offset
    words.index_add_(-1, word, shifted & _WORD_MASK)
    words.index_add_(-1, word + 1, shifted >> _WORD_BITS & _WORD_MASK)
    # From int64 to int32 torch keeps the low bits, so words with the top bit set come out negative.
    return words[..., :size].to(torch.int32)


@functools.cache
def _windows(bits: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return for one width: the order that swaps words, then for each weight of a tile its word pair and its shift."""
    words = TILE * bits
    stream = SYMBOLS * bits
    starts = [0] * SYMBOLS
    for index, target in enumerate(TARGETS):
        starts[target] = (bits * (index + 1) - _STATE_BITS) % stream
    swap = torch.arange(words, dtype=torch.int32, device=device) ^ 1
    word = torch.tensor([start // _STATE_BITS for start in starts], dtype=torch.int32, device=device)
    shift = torch.tensor([_STATE_BITS - start % _STATE_BITS for start in starts], dtype=torch.int32, device=device)
    return swap, word, shift.view(1, SYMBOLS, 1)
