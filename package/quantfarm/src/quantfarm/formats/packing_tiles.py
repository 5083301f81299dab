"""The library of packing, second part: layouts that lay the codes of a tile into words in an order of their own.

Such a layout is data: the size of the tile, and for every field of its words, in the order of the stored bits, the
place in the tile that the field holds. One pair of functions packs and unpacks them all. The permutations of scales,
zero points and biases that go with the tiles of a tensor core stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

_IN_CACHE = 1 << 19
"""Codes that are rearranged together, so that copies stay in a core's cache."""


@dataclass(frozen=True, kw_only=True)
class TileOrder:
    """One order of codes inside a tile of a matrix.

    Attributes:
        rows, columns: the tile's size; it divides the matrix.
        bits: code width.
        word: dtype of the stored words, int32 or int16.
        places: for each field of the tile's words, lowest bits of the first word first, ``row * columns + column`` of
            the code that it holds.
    """

    rows: int
    columns: int
    bits: int
    word: torch.dtype
    places: tuple[int, ...]

    @property
    def per_word(self) -> int:
        """Codes in a word."""
        return torch.iinfo(self.word).bits // self.bits

    @property
    def words(self) -> int:
        """Words in a tile."""
        return len(self.places) // self.per_word

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """Unpack words [R/rows, C/columns*words] to uint8 [R, C]; words are signed."""
        down, across = packed.shape[0], packed.shape[1] // self.words
        codes = torch.empty(down, self.rows, across, self.columns, dtype=torch.uint8, device=packed.device)
        inverse = _inverse(self.places).to(packed.device)
        step = max(_IN_CACHE // max(across * len(self.places), 1), 1)
        for start in range(0, down, step):
            part = packed[start : start + step]
            fields = torch.empty(*part.shape, self.per_word, dtype=torch.uint8, device=packed.device)
            for field, lane in enumerate(self._lanes):
                fields[:, :, lane] = (part >> (field * self.bits)).bitwise_and_((1 << self.bits) - 1)
            tiles = fields.view(-1, len(self.places))
            if self.words > 1:
                tiles = tiles.index_select(1, inverse)
            ordered = tiles.view(-1, across, self.rows, self.columns).transpose(1, 2)
            codes[start : start + step] = ordered
        return codes.view(down * self.rows, across * self.columns)

    def pack(self, codes: torch.Tensor) -> torch.Tensor:
        """Pack [R, C] codes to words [R/rows, C/columns*words]: the inverse of ``unpack``."""
        down, across = codes.shape[0] // self.rows, codes.shape[1] // self.columns
        packed = torch.zeros(down, across * self.words, dtype=self.word, device=codes.device)
        places = torch.tensor(self.places, device=codes.device)
        step = max(_IN_CACHE // max(across * len(self.places), 1), 1)
        for start in range(0, down, step):
            part = codes[start * self.rows : (start + step) * self.rows]
            tiles = part.reshape(-1, self.rows, across, self.columns).transpose(1, 2)
            fields = tiles.reshape(-1, len(self.places))
            if self.words > 1:
                fields = fields.index_select(1, places)
            lanes = fields.view(-1, across * self.words, self.per_word)
            out = packed[start : start + step]
            for field, lane in enumerate(self._lanes):
                out |= lanes[:, :, lane].to(self.word) << (field * self.bits)
        return packed

    @property
    def _lanes(self) -> tuple[int, ...]:
        """Where the fields of a word stand before the tile is gathered; a tile of one word needs no gathering."""
        return self.places if self.words == 1 else tuple(range(self.per_word))


def _inverse(places: tuple[int, ...]) -> torch.Tensor:
    """Return int64: the field that holds each place."""
    return torch.argsort(torch.tensor(places))


# ---- AWQ

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of an AWQ GEMM word holds output 8c + AWQ_ORDER[i] (formats, section 4)."""

AWQ_PER_WORD = len(AWQ_ORDER)

AWQ_GEMM = TileOrder(rows=1, columns=AWQ_PER_WORD, bits=4, word=torch.int32, places=AWQ_ORDER)
"""Codes [K, N], and zero points [G, N], as words along N."""

AWQ_GEMM_BYTES = TileOrder(rows=1, columns=4, bits=8, word=torch.int32, places=(0, 2, 1, 3))
"""The same for codes of 8 bits."""


def _gemv_fast() -> Iterable[int]:
    """Yield the places of AWQ GEMV_FAST by the closed form of formats, section 6: 4 outputs by 64 inputs."""
    for word in range(64):
        for field in range(4):
            slot = 4 * (word % 16) + field
            half, s = divmod(slot, 32)
            k = 32 * half + 8 * (s % 4) + 2 * (s // 8) + (s // 4) % 2
            yield word // 16 * 64 + k


AWQ_GEMV_FAST = TileOrder(rows=4, columns=64, bits=4, word=torch.int16, places=tuple(_gemv_fast()))
"""Codes [N, K] of AWQ GEMV_FAST and LLM_AWQ."""

# ---- tensor-core tiles of 16 inputs by 64 outputs


def _fragments(order: tuple[int, ...]) -> Iterable[int]:
    """Yield the places of a Marlin tile (formats, section 7): thread, warp, then codes in ``order`` word by word."""
    for thread in range(32):
        for warp in range(4):
            n0, k0 = 16 * warp + thread // 4, 2 * (thread % 4)
            held = [(k0 + step) * 64 + n for n in (n0, n0 + 8) for step in (0, 1, 8, 9)]
            yield from (held[i] for i in order)


MARLIN = {
    4: TileOrder(rows=16, columns=64, bits=4, word=torch.int32, places=tuple(_fragments(AWQ_ORDER))),
    8: TileOrder(rows=16, columns=64, bits=8, word=torch.int32, places=tuple(_fragments((0, 2, 1, 3, 4, 6, 5, 7)))),
}
"""Code width -> order of codes [K, N] in the runtime layout of MARLIN, int32 [K/16, N*16*bits/32]."""

GROUPED = tuple(i + 8 * j for i in range(8) for j in range(8))
"""Rule of 64: place 8i + j of the runtime scales holds output i + 8j of its 64 (formats, section 7)."""

PER_CHANNEL = tuple(2 * i + step for i in range(4) for step in (0, 1, 8, 9, 16, 17, 24, 25))
"""Rule of 32, for one scale per output and for the bias: place 8i + j holds output 2i + (0, 1, 8, 9, 16, ..)[j]."""


def permuted(values: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Return [.., N] with every run of ``len(order)`` columns rearranged: place i holds column ``order[i]``."""
    runs = values.reshape(-1, len(order))
    return runs.index_select(1, torch.tensor(order, device=values.device)).reshape(values.shape)


def unpermuted(values: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Undo ``permuted``."""
    runs = values.reshape(-1, len(order))
    return runs.index_select(1, _inverse(order).to(values.device)).reshape(values.shape)


def pack_marlin_zeros(zeros: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack zero points [G, N] to int32 [G, N*bits/32]: the rule of 64 always, then the word order of AWQ."""
    return _ZERO_WORDS[bits].pack(permuted(zeros, GROUPED))


def unpack_marlin_zeros(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack int32 [G, N*bits/32] to uint8 [G, N]: the inverse of ``pack_marlin_zeros``."""
    return unpermuted(_ZERO_WORDS[bits].unpack(words), GROUPED)


_ZERO_WORDS = {4: AWQ_GEMM, 8: AWQ_GEMM_BYTES}
