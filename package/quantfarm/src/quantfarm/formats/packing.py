"""The library of packing: every bit order that a stored layout has, exactly once, with its inverse.

``unpack_codes`` and ``pack_codes`` are the K-major stream of the canonical form; the rest are the orders of single
formats, each as a table or one closed form.
"""

from __future__ import annotations

import torch

_WORD = 32

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of an AWQ word holds output 8c + AWQ_ORDER[i] (formats, section 4)."""

AWQ_PER_WORD = len(AWQ_ORDER)
_AWQ_BITS = 4


def unpack_columns(words: torch.Tensor, bits: int, n: int) -> torch.Tensor:
    """Unpack int32 [G, ceil(N*bits/32)], fields running along N, to uint8 [G, N]."""
    return unpack_codes(words.t(), bits, n).t().contiguous()


def pack_columns(fields: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack [G, N] fields to int32 [G, ceil(N*bits/32)]: the inverse of ``unpack_columns``; padding is zero."""
    return pack_codes(fields.t(), bits).t().contiguous()


def unpack_awq(words: torch.Tensor) -> torch.Tensor:
    """Unpack int32 [R, N/8] in AWQ nibble order to uint8 [R, N]."""
    rows, columns = words.shape
    fields = torch.empty(rows, columns, AWQ_PER_WORD, dtype=torch.uint8, device=words.device)
    for nibble, output in enumerate(AWQ_ORDER):
        fields[:, :, output] = ((words >> (nibble * _AWQ_BITS)) & 15).to(torch.uint8)
    return fields.reshape(rows, columns * AWQ_PER_WORD)


def pack_awq(fields: torch.Tensor) -> torch.Tensor:
    """Pack uint8 [R, N] to int32 [R, N/8] in AWQ nibble order: the inverse of ``unpack_awq``."""
    rows, columns = fields.shape
    lanes = fields.reshape(rows, columns // AWQ_PER_WORD, AWQ_PER_WORD)
    words = torch.zeros(rows, columns // AWQ_PER_WORD, dtype=torch.int32, device=fields.device)
    for nibble, output in enumerate(AWQ_ORDER):
        words |= lanes[:, :, output].to(torch.int32) << (nibble * _AWQ_BITS)
    return words


def unpack_codes(packed: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    """Unpack int32 [ceil(K*bits/32), N] to uint8 [K, N]; the stream is little-endian and words are signed."""
    if _WORD % bits == 0:
        per_word = _WORD // bits
        shifts = torch.arange(0, _WORD, bits, dtype=torch.int32, device=packed.device)
        codes = (packed.unsqueeze(1) >> shifts.view(1, per_word, 1)) & ((1 << bits) - 1)
        return codes.reshape(-1, packed.shape[1])[:k].to(torch.uint8)
    position = torch.arange(k, device=packed.device) * bits
    word, offset = position // _WORD, position % _WORD
    unsigned = packed.to(torch.int64) & 0xFFFFFFFF
    nxt = torch.clamp(word + 1, max=packed.shape[0] - 1)
    pair = unsigned[word] | (unsigned[nxt] << _WORD)
    return ((pair >> offset.unsqueeze(1)) & ((1 << bits) - 1)).to(torch.uint8)


def pack_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack uint8 [K, N] to int32 [ceil(K*bits/32), N]: the inverse of ``unpack_codes``; unused bits are zero."""
    k, n = codes.shape
    if _WORD % bits == 0:
        return _pack_whole(codes, bits)
    rows = -(-k * bits // _WORD)
    words = torch.zeros(rows + 1, n, dtype=torch.int64, device=codes.device)
    position = torch.arange(k, device=codes.device) * bits
    word, offset = position // _WORD, (position % _WORD).unsqueeze(1)
    shifted = codes.to(torch.int64) << offset
    words.index_add_(0, word, shifted & 0xFFFFFFFF)
    words.index_add_(0, word + 1, shifted >> _WORD)
    words = words[:rows]
    return torch.where(words >= 1 << 31, words - (1 << _WORD), words).to(torch.int32)


def _pack_whole(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack widths that divide the word: no code straddles two words, so plain int32 shifts do (25 times faster)."""
    k, n = codes.shape
    per_word = _WORD // bits
    rows = -(-k // per_word)
    lanes = torch.nn.functional.pad(codes, (0, 0, 0, rows * per_word - k)).reshape(rows, per_word, n)
    words = torch.zeros(rows, n, dtype=torch.int32, device=codes.device)
    for lane in range(per_word):
        words |= lanes[:, lane].to(torch.int32) << (lane * bits)
    return words
