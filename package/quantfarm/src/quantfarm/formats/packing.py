"""Bit orders that more than one place needs, each exactly once.

The K-major stream of codes lives in ``quant_tensor`` (``pack_codes``); here are the same stream across columns
and the nibble order of AWQ.
"""

from __future__ import annotations

import torch

from quantfarm.formats.quant_tensor import pack_codes, unpack_codes

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
