"""Every bit order of the library is its closed form, and packing and unpacking are inverse, negative words included."""

from __future__ import annotations

import pytest
import torch
from formats.makers import random_words
from hypothesis import given
from hypothesis import strategies as st

from quantfarm.formats import packing, packing_tiles
from quantfarm.formats.packing_tiles import TileOrder
from quantfarm.runtime import panels

WIDTHS = st.integers(2, 8)
SEEDS = st.integers(0, 2**31)
ORDERS = {
    "awq_gemm": packing_tiles.AWQ_GEMM,
    "awq_gemm_bytes": packing_tiles.AWQ_GEMM_BYTES,
    "awq_gemv_fast": packing_tiles.AWQ_GEMV_FAST,
    "marlin_4": packing_tiles.MARLIN[4],
    "marlin_8": packing_tiles.MARLIN[8],
}
every_order = pytest.mark.parametrize("order", list(ORDERS.values()), ids=list(ORDERS))


def codes_of(bits: int, rows: int, columns: int, seed: int) -> torch.Tensor:
    """Return random codes; those of the first and last row have every bit set somewhere."""
    source = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (rows, columns), generator=source, dtype=torch.uint8)
    codes[-1, -1] = (1 << bits) - 1
    return codes


def unsigned(word: torch.Tensor) -> int:
    """Return a stored word as the bits that it has."""
    return int(word) % (1 << torch.iinfo(word.dtype).bits)


# ---- one axis


@given(bits=WIDTHS, k=st.integers(1, 100), n=st.integers(1, 9), seed=SEEDS)
def test_the_stream_packs_and_unpacks(bits: int, k: int, n: int, seed: int) -> None:
    """Codes of every width survive the words, whatever the tail; bits behind the last code are 0."""
    codes = codes_of(bits, k, n, seed)
    words = packing.pack_codes(codes, bits)
    assert words.shape == (-(-k * bits // 32), n)
    assert torch.equal(packing.unpack_codes(words, bits, k), codes)
    stream = sum(unsigned(words[row, -1]) << (32 * row) for row in range(words.shape[0]))
    assert stream == sum(int(code) << (bits * i) for i, code in enumerate(codes[:, -1]))


@given(bits=WIDTHS, blocks=st.integers(1, 3), n=st.integers(1, 9), seed=SEEDS)
def test_any_words_of_the_stream_return(bits: int, blocks: int, n: int, seed: int) -> None:
    """Words with any bits, the sign among them, come back from their codes."""
    words = random_words(torch.Generator().manual_seed(seed), blocks * bits, n)
    assert torch.equal(packing.pack_codes(packing.unpack_codes(words, bits, blocks * 32), bits), words)


@given(bits=WIDTHS, rows=st.integers(1, 5), n=st.integers(1, 70), seed=SEEDS)
def test_columns_pack_and_unpack(bits: int, rows: int, n: int, seed: int) -> None:
    """Fields across columns survive the words, whatever the tail."""
    fields = codes_of(bits, rows, n, seed)
    words = packing.pack_columns(fields, bits)
    assert words.shape == (rows, -(-n * bits // 32))
    assert torch.equal(packing.unpack_columns(words, bits, n), fields)


def test_more_words_than_one_pass_takes() -> None:
    """Large matrices are unpacked a part at a time; the parts fit together."""
    codes = codes_of(3, 2048, 1100, 1)
    assert torch.equal(packing.unpack_codes(packing.pack_codes(codes, 3), 3, 2048), codes)
    fours = codes_of(4, 2048, 1024, 1)
    assert torch.equal(packing.unpack_awq(packing.pack_awq(fours)), fours)


@given(bits=WIDTHS, k=st.integers(1, 130), n=st.integers(1, 9), start=st.integers(0, 3), seed=SEEDS)
def test_the_fast_decoder_of_tiles_reads_the_same_stream(bits: int, k: int, n: int, start: int, seed: int) -> None:
    """The tile decoder of the portable path gives 2^23 + code for each code of the library, from any block of 32."""
    codes = codes_of(bits, k, n, seed)
    k0 = min(32 * start, (k - 1) // 32 * 32)
    decoded = panels.codes_as_magic(packing.pack_codes(codes, bits), bits, k0, k)
    assert torch.equal(decoded, codes[k0:].float() + float(1 << 23))


# ---- planes


@given(bits=WIDTHS, blocks=st.integers(1, 3), n=st.integers(1, 5), seed=SEEDS)
def test_planes_are_their_closed_form(bits: int, blocks: int, n: int, seed: int) -> None:
    """Word i of a plane holds codes i*(32/w) on, code j at bits w*j; planes lie low to high in a block."""
    codes = codes_of(bits, 32 * blocks, n, seed)
    words = packing.pack_planes(codes, bits)
    assert words.shape == (bits * blocks, n)
    row = 0
    for block in range(blocks):
        for width, offset in packing.PLANES[bits]:
            for i in range(width):
                held = codes[32 * block + i * (32 // width) :, 0][: 32 // width]
                expected = sum(((int(c) >> offset) & ((1 << width) - 1)) << (width * j) for j, c in enumerate(held))
                assert unsigned(words[row, 0]) == expected
                row += 1
    assert torch.equal(packing.unpack_planes(words, bits), codes)


@given(bits=WIDTHS, seed=SEEDS)
def test_any_words_of_planes_return(bits: int, seed: int) -> None:
    """Any words, the sign bit set in about half of them, come back from their codes."""
    words = random_words(torch.Generator().manual_seed(seed), 2 * bits, 5)
    assert torch.equal(packing.pack_planes(packing.unpack_planes(words, bits), bits), words)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_one_plane_is_the_stream(bits: int) -> None:
    """Widths 2, 4 and 8 have the words of gptq_v2; all others have not."""
    codes = codes_of(bits, 64, 9, 0)
    assert torch.equal(packing.pack_planes(codes, bits), packing.pack_codes(codes, bits))
    for other in (3, 5, 6, 7):
        odd = codes_of(other, 64, 9, 0)
        assert not torch.equal(packing.pack_planes(odd, other), packing.pack_codes(odd, other))


# ---- tiles


@every_order
@given(down=st.integers(1, 3), across=st.integers(1, 3), seed=SEEDS)
def test_tiles_pack_and_unpack(order: TileOrder, down: int, across: int, seed: int) -> None:
    """Every order takes each place once, and both directions are inverse, for codes and for words with any bits."""
    assert sorted(order.places) == list(range(order.rows * order.columns))
    codes = codes_of(order.bits, down * order.rows, across * order.columns, seed)
    words = order.pack(codes)
    assert words.shape == (down, across * order.words)
    assert words.dtype is order.word
    assert torch.equal(order.unpack(words), codes)
    info, source = torch.iinfo(order.word), torch.Generator().manual_seed(seed)
    any_words = torch.randint(info.min, info.max + 1, words.shape, generator=source).to(order.word)
    assert torch.equal(order.pack(order.unpack(any_words)), any_words)


def test_tiles_beyond_one_pass_fit_together() -> None:
    """Large matrices are rearranged a part at a time."""
    for order in ORDERS.values():
        codes = codes_of(order.bits, 1024, 1024, 2)
        assert torch.equal(order.unpack(order.pack(codes)), codes)


def test_gemv_fast_words_are_the_closed_form() -> None:
    """The reader's loop of formats, section 6, finds each code, in two tiles of each direction."""
    codes = codes_of(4, 8, 128, 3)
    words = packing_tiles.AWQ_GEMV_FAST.pack(codes)
    assert words.shape == (2, 128)
    for big_row in range(2):
        for tile in range(2):
            for w in range(64):
                for i in range(4):
                    slot = 4 * (w % 16) + i
                    half, s = slot // 32, slot % 32
                    k = 64 * tile + 32 * half + 8 * (s % 4) + 2 * (s // 8) + ((s // 4) % 2)
                    n = 4 * big_row + w // 16
                    assert (int(words[big_row, 64 * tile + w]) >> (4 * i)) & 15 == codes[n, k]


def marlin_word(codes: torch.Tensor, at: tuple[int, int], bits: int, half: int = 0) -> int:
    """Return one word by formats, section 7: ``at`` is (row of tiles, (tile * 32 + thread) * 4 + warp)."""
    kt, place = at
    nt, th, wp = place // 128, place % 128 // 4, place % 4
    n0, k0 = 64 * nt + 16 * wp + th // 4, 16 * kt + 2 * (th % 4)
    v = [int(codes[k0 + d, n]) for n in (n0, n0 + 8) for d in (0, 1, 8, 9)]
    if bits == 4:
        return sum(v[p] << (4 * i) for i, p in enumerate((0, 2, 4, 6, 1, 3, 5, 7)))
    return sum(v[4 * half + p] << (8 * i) for i, p in enumerate((0, 2, 1, 3)))


def test_marlin_words_are_the_closed_form() -> None:
    """Words of 4 and of 8 bits stand where section 7 says, in two tiles of each direction."""
    fours, eights = codes_of(4, 32, 128, 4), codes_of(8, 32, 128, 5)
    four, eight = packing_tiles.MARLIN[4].pack(fours), packing_tiles.MARLIN[8].pack(eights)
    assert four.shape == (2, 128 * 16 // 8)
    assert eight.shape == (2, 128 * 16 // 4)
    for kt in range(2):
        for place in range(256):
            assert unsigned(four[kt, place]) == marlin_word(fours, (kt, place), 4)
            nt, rest = divmod(place, 128)
            th, wp = divmod(rest, 4)
            for half in (0, 1):
                word = eight[kt, nt * 256 + th * 8 + 2 * wp + half]
                assert unsigned(word) == marlin_word(eights, (kt, place), 8, half)


def test_scales_and_bias_are_permuted_by_their_rules() -> None:
    """The rule of 64 for grouped scales, the rule of 32 for one scale a channel and the bias; both can be undone."""
    old = torch.arange(3 * 128).reshape(3, 128)
    grouped = packing_tiles.permuted(old, packing_tiles.GROUPED)
    channel = packing_tiles.permuted(old, packing_tiles.PER_CHANNEL)
    for run in range(2):
        assert all(grouped[1, 64 * run + 8 * i + j] == old[1, 64 * run + i + 8 * j] for i in range(8) for j in range(8))
    steps = (0, 1, 8, 9, 16, 17, 24, 25)
    for run in range(4):
        for i in range(4):
            for j in range(8):
                assert channel[2, 32 * run + 8 * i + j] == old[2, 32 * run + 2 * i + steps[j]]
    assert torch.equal(packing_tiles.unpermuted(grouped, packing_tiles.GROUPED), old)
    assert torch.equal(packing_tiles.unpermuted(channel, packing_tiles.PER_CHANNEL), old)
    bias = torch.randn(64)
    assert torch.equal(
        packing_tiles.unpermuted(packing_tiles.permuted(bias, packing_tiles.PER_CHANNEL), packing_tiles.PER_CHANNEL),
        bias,
    )


@pytest.mark.parametrize(("bits", "order"), [(4, (0, 2, 4, 6, 1, 3, 5, 7)), (8, (0, 2, 1, 3))])
def test_marlin_zero_points_are_permuted_then_interleaved(bits: int, order: tuple[int, ...]) -> None:
    """Rule of 64, then each run in the word order, low field first; any words come back."""
    zeros = codes_of(bits, 3, 128, 6)
    words = packing_tiles.pack_marlin_zeros(zeros, bits)
    assert words.shape == (3, 128 * bits // 32)
    ruled = packing_tiles.permuted(zeros, packing_tiles.GROUPED)
    for g in range(3):
        for c in range(words.shape[1]):
            run = ruled[g, c * len(order) : (c + 1) * len(order)]
            assert unsigned(words[g, c]) == sum(int(run[p]) << (bits * i) for i, p in enumerate(order))
    assert torch.equal(packing_tiles.unpack_marlin_zeros(words, bits), zeros)
