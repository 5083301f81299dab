"""Decoders of ggml's types with code books: IQ1 to IQ4, MXFP4 and NVFP4, in ggml's order of fp32 operations.

Each takes blocks, uint8 [B, size], and its code book, fp32 [codes, length] or [codes], and returns fp32 [B, block].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from quantfarm.declare.ggml_books import FOUR_BIT_VALUES, HALF_FLOAT_VALUES, code_book, sign_bytes
from quantfarm.formats.packing_ggml import runs, split_planes, split_sequence
from quantfarm.formats.weights.ggml_legacy import half

BookDecoder = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_DELTA = 0.125


def _halfwords(packed: torch.Tensor) -> torch.Tensor:
    """Return bytes [B, 2w] as little-endian numbers of 16 bits, int32 [B, w]."""
    return packed.contiguous().view(torch.int16).to(torch.int32) & 0xFFFF


def _words(packed: torch.Tensor) -> torch.Tensor:
    """Return bytes [B, 4w] as little-endian words, int32 [B, w]; a shift to the right must be masked."""
    return packed.contiguous().view(torch.int32)


def _fields(words: torch.Tensor, width: int, count: int) -> torch.Tensor:
    """Return the lowest ``count`` fields of each word [B, w] as [B, w, count]."""
    return torch.stack([(words >> width * i) & ((1 << width) - 1) for i in range(count)], dim=2)


def _looked_up(book: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Return the book's entry of every code [B, c] as fp32 [B, c, length]."""
    return book.index_select(0, codes.flatten().to(torch.int32)).view(*codes.shape, *book.shape[1:])


def _signs(masks: torch.Tensor) -> torch.Tensor:
    """Return fp32 factors [B, 8w] of sign masks uint8 [B, w]: a bit of 1 means -1."""
    return split_sequence(masks, 1).to(torch.float32).mul_(-2).add_(1)


def _coded_signs(codes: torch.Tensor) -> torch.Tensor:
    """Return the factors [B, 8w] of sign codes of seven bits [B, w]."""
    masks = torch.tensor(sign_bytes(), dtype=torch.uint8, device=codes.device)
    return _signs(masks.index_select(0, codes.flatten().to(torch.int32)).view(codes.shape))


def _signed(vectors: torch.Tensor, scales: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """Return (scales * vectors) * signs as [B, 256]; scales [B, G] for G runs of equal length."""
    count, groups = scales.shape
    return vectors.view(count, groups, -1).mul_(scales.unsqueeze(2)).flatten(1).mul_(signs)


def _two_bit_scales(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Return the 16 scales of IQ2_XS and IQ2_S, d * (0.5 + s) * 0.25 with s in nibbles, fp32 [B, 16]."""
    return half(blocks, 0) * (split_sequence(blocks[:, at:], 4).to(torch.float32) + 0.5) * 0.25


def _iq2_xxs(blocks: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    pairs = blocks[:, 2:].reshape(-1, 8, 8)
    words = _words(pairs[:, :, 4:].reshape(-1, 32))
    scales = half(blocks, 0) * (((words >> 28) & 15).to(torch.float32) + 0.5) * 0.25
    signs = _coded_signs(_fields(words, 7, 4).flatten(1))
    return _signed(_looked_up(book, pairs[:, :, :4].reshape(-1, 32)), scales, signs)


def _iq2_xs(blocks: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    words = _halfwords(blocks[:, 2:66])
    return _signed(_looked_up(book, words & 511), _two_bit_scales(blocks, 66), _coded_signs(words >> 9))


def _iq2_s(blocks: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    codes = blocks[:, 2:34].to(torch.int32) | split_sequence(blocks[:, 66:74], 2).to(torch.int32) << 8
    return _signed(_looked_up(book, codes), _two_bit_scales(blocks, 74), _signs(blocks[:, 34:66]))


def _iq3_xxs(blocks: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    words = _words(blocks[:, 66:])
    scales = half(blocks, 0) * (((words >> 28) & 15).to(torch.float32) + 0.5) * 0.5
    return _signed(_looked_up(book, blocks[:, 2:66]), scales, _coded_signs(_fields(words, 7, 4).flatten(1)))


def _iq3_s(blocks: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    codes = blocks[:, 2:66].to(torch.int32) | split_sequence(blocks[:, 66:74], 1).to(torch.int32) << 8
    scales = half(blocks, 0) * (split_sequence(blocks[:, 106:], 4) * 2 + 1)
    return _signed(_looked_up(book, codes), scales, _signs(blocks[:, 74:106]))


def _shifted(vectors: torch.Tensor, scales: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Return scales * (vectors +- 1/8) as [B, 256]; scales [B, G] and ``negative`` [B, S] for runs of equal length."""
    delta = torch.where(negative != 0, -_DELTA, _DELTA)
    count = vectors.shape[0]
    moved = vectors.view(count, negative.shape[1], -1).add_(delta.unsqueeze(2))
    return moved.view(count, scales.shape[1], -1).mul_(scales.unsqueeze(2)).flatten(1)


def _iq1_s(blocks: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    words = _halfwords(blocks[:, 34:])
    scales = half(blocks, 0) * (((words >> 12) & 7) * 2 + 1)
    codes = blocks[:, 2:34].to(torch.int32) | _fields(words, 3, 4).flatten(1) << 8
    return _shifted(_looked_up(book, codes), scales, words >> 15)


def _iq1_m(blocks: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    # The fp16 scale lies in the high nibbles of the four words of scales, lowest part first.
    words = _halfwords(blocks[:, 48:])
    parts = (words >> 12) << torch.arange(0, 16, 4, device=words.device, dtype=torch.int32)
    d = parts.sum(1, keepdim=True).to(torch.int16).view(torch.float16).to(torch.float32)
    scales = d * (_fields(words, 3, 4).flatten(1) * 2 + 1)
    high = split_sequence(blocks[:, 32:48], 4)
    codes = blocks[:, :32].to(torch.int32) | (high & 7).to(torch.int32) << 8
    return _shifted(_looked_up(book, codes), scales, high & 8)


def _iq4_nl(blocks: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    return _looked_up(book, split_planes(blocks[:, 2:], 4).flatten(1)).mul_(half(blocks, 0))


def _iq4_xs(blocks: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    low = split_sequence(blocks[:, 4:8], 4).to(torch.int32)
    high = _fields(_halfwords(blocks[:, 2:4]), 2, 8).flatten(1)
    scales = half(blocks, 0) * ((low | high << 4) - 32)
    values = _looked_up(book, split_planes(runs(blocks[:, 8:], 8, 16), 4).flatten(1))
    return values.view(-1, 8, 32).mul_(scales.unsqueeze(2)).flatten(1)


def _mxfp4(blocks: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    # Half of 2^(e - 127), since the book holds twice the numbers; the two smallest exponents give denormals.
    e = blocks[:, :1].to(torch.int32)
    scales = torch.where(e < 2, 0x00200000 << e.clamp(max=1), (e - 1).clamp(min=0) << 23).view(torch.float32)
    return _looked_up(book, split_planes(blocks[:, 1:], 4).flatten(1)).mul_(scales)


def _nvfp4(blocks: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    # Unsigned E4M3 without infinities: the sign bit is ignored, and 0x7F (not 0xFF) stands for zero.
    byte = blocks[:, :4]
    exponent, fraction = ((byte >> 3) & 15).to(torch.float32), (byte & 7).to(torch.float32)
    wide = torch.where(exponent == 0, fraction * 2.0**-9, torch.ldexp(fraction / 8 + 1, exponent - 7))
    scales = torch.where(byte == 0x7F, 0.0, wide * 0.5)
    codes = split_planes(runs(blocks[:, 4:], 4, 8), 4).flatten(1)
    return _looked_up(book, codes).view(-1, 4, 16).mul_(scales.unsqueeze(2)).flatten(1)


BOOK_DECODERS: Mapping[str, BookDecoder] = {
    "iq2_xxs": _iq2_xxs,
    "iq2_xs": _iq2_xs,
    "iq2_s": _iq2_s,
    "iq3_xxs": _iq3_xxs,
    "iq3_s": _iq3_s,
    "iq1_s": _iq1_s,
    "iq1_m": _iq1_m,
    "iq4_nl": _iq4_nl,
    "iq4_xs": _iq4_xs,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
}
"""Name to decoder."""

_VALUES = {"iq4_nl": FOUR_BIT_VALUES, "iq4_xs": FOUR_BIT_VALUES, "mxfp4": HALF_FLOAT_VALUES, "nvfp4": HALF_FLOAT_VALUES}
_SHARED = {"iq1_s": "iq1", "iq1_m": "iq1"}


def book_of(name: str, device: torch.device) -> torch.Tensor | None:
    """Return the code book of a type as fp32 on a device; None for a type without one."""
    if name not in BOOK_DECODERS:
        return None
    entries = _VALUES.get(name) or code_book(_SHARED.get(name, name))
    return torch.tensor(entries, dtype=torch.float32, device=device)
