"""The closed form of EXL3 against a second, literal decoder in Python integers."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from quantfarm import reference

MULTIPLIERS = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
SIDE = 128


def stored_tile(symbols: list[int], bits: int) -> list[int]:
    """Write 256 symbols as one bit string, cut it into 16-bit words and exchange the words of each pair."""
    text = "".join(f"{symbol:0{bits}b}" for symbol in symbols)
    words = [int(text[i : i + 16], 2) for i in range(0, len(text), 16)]
    for i in range(0, len(words), 2):
        words[i], words[i + 1] = words[i + 1], words[i]
    return words


def value_of(state: int, codebook: str) -> float:
    """Return the codebook's value of a state, by its formula with one rounding to fp16 at the end."""
    if codebook == "mul1":
        total = sum((state * MULTIPLIERS["mul1"] % 2**32).to_bytes(4, "little"))
        return fp16(half(0x6400 + total) * half(0x1EEE) + half(0xC931))
    t = state * MULTIPLIERS["mcg"] if codebook == "mcg" else state * 89226354 + 64248484
    t = (t % 2**32 & 0x8FFF8FFF) ^ 0x3B603B60
    return fp16(half(t & 0xFFFF) + half(t >> 16))


def half(pattern: int) -> float:
    """Return the number of an fp16 bit pattern."""
    return float(struct.unpack("<e", struct.pack("<H", pattern))[0])


def fp16(value: float) -> float:
    """Round to fp16."""
    return float(struct.unpack("<e", struct.pack("<e", value))[0])


def literal_tile(symbols: list[int], bits: int, codebook: str) -> np.ndarray:
    """Decode one tile: a state is the sixteen bits of the endless repeated bit string that end with its symbol."""
    text = "".join(f"{symbol:0{bits}b}" for symbol in symbols)
    endless = text[-16:] + text
    tile = np.zeros((16, 16))
    for t in range(32):
        for e in range(8):
            end = 16 + (8 * t + e + 1) * bits
            row, column = 2 * (t % 4) + (0, 1, 8, 9)[e % 4], t // 4 + 8 * (e // 4)
            tile[row, column] = value_of(int(endless[end - 16 : end], 2), codebook)
    return tile


def sylvester() -> np.ndarray:
    """Return the 128 x 128 matrix by the parity of common bits."""
    signs = [[(-1) ** (i & j).bit_count() for j in range(SIDE)] for i in range(SIDE)]
    return np.array(signs) / np.sqrt(SIDE)


def decode(trellis: np.ndarray, codebook: str, **signs: np.ndarray) -> np.ndarray:
    """Decode one weight."""
    tensors = {"trellis": trellis, **signs}
    if codebook in MULTIPLIERS:
        tensors[codebook] = np.array(MULTIPLIERS[codebook], dtype=np.uint32).view(np.int32)
    return reference.decode(tensors, method="exl3", format="exl3", bits=trellis.shape[2] // 16, group_size=-1)


@pytest.mark.parametrize("codebook", ["3inst", "mcg", "mul1"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_a_literal_decoder_agrees(bits: int, codebook: str) -> None:
    """Every width and codebook, the start of the register included, with the transforms on both sides."""
    generator = np.random.default_rng(bits)
    places = ((0, 0), (3, 5), (7, 7))
    symbols = {place: generator.integers(0, 2**bits, 256).tolist() for place in places}
    trellis = np.zeros((8, 8, 16 * bits), dtype=np.uint16)
    inner = np.tile(literal_tile([0] * 256, bits, codebook), (8, 8))
    for row, column in places:
        trellis[row, column] = stored_tile(symbols[row, column], bits)
        tile = literal_tile(symbols[row, column], bits, codebook)
        inner[16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = tile
    suh, svh = generator.standard_normal((2, SIDE)).astype(np.float16)
    w = decode(trellis.view(np.int16), codebook, suh=suh, svh=svh)
    wanted = (suh.astype(float)[:, None] * (sylvester() @ inner @ sylvester()) * svh.astype(float)[None, :]).T
    assert np.abs(w - wanted).max() <= 1e-13 * np.abs(wanted).max()


def test_packed_signs_are_those_of_their_bits() -> None:
    """Bit i of word w is set where channel 16w + i is negative; inputs and outputs alike."""
    generator = np.random.default_rng(0)
    trellis = generator.integers(-(2**15), 2**15, (8, 8, 64)).astype(np.int16)
    bits = generator.integers(0, 2, (2, SIDE))
    words = [[sum(int(b) << i for i, b in enumerate(side[16 * w : 16 * w + 16])) for w in range(8)] for side in bits]
    su, sv = np.array(words, dtype=np.uint16).view(np.int16)
    suh, svh = np.where(bits == 1, -1, 1).astype(np.float16)
    packed = decode(trellis, "mcg", su=su, sv=sv)
    assert np.array_equal(packed, decode(trellis, "mcg", suh=suh, svh=svh))
    assert not np.array_equal(packed, decode(trellis, "mcg", suh=svh, svh=suh))


def test_transforms_are_in_blocks_of_128() -> None:
    """With two blocks of inputs, the tiles of one do not reach the weights of the other."""
    trellis = np.random.default_rng(1).integers(-(2**15), 2**15, (16, 8, 32)).astype(np.int16)
    signs = {"suh": np.ones(256, dtype=np.float16), "svh": np.ones(128, dtype=np.float16)}
    before = decode(trellis, "3inst", **signs)
    trellis[8:] ^= 1
    after = decode(trellis, "3inst", **signs)
    assert before.shape == (128, 256)
    assert np.array_equal(before[:, :128], after[:, :128])
    assert (before[:, 128:] != after[:, 128:]).mean() > 0.9


def test_another_multiplier_is_refused() -> None:
    """A codebook tensor that holds another number names a codebook that is not known."""
    tensors = {"trellis": np.zeros((8, 8, 16), dtype=np.int16), "mcg": np.array(5, dtype=np.int32)}
    with pytest.raises(ValueError, match="multiplier 0x5"):
        reference.decode(tensors, method="exl3", format="exl3", bits=1, group_size=-1)
