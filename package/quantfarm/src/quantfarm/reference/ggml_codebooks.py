"""Closed forms of ggml's IQ types: codes are indices into published tables (ggml's block layouts)."""

from __future__ import annotations

import functools

import numpy as np

from quantfarm.declare.ggml_books import code_book
from quantfarm.reference.ggml_blocks import bits_of, half, joined, low_then_high
from quantfarm.reference.stored import Floats, Integers

_NON_LINEAR = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    dtype=np.float64,
)


def iq4_nl(blocks: Integers) -> Floats:
    """Fp16 d, 16 bytes of two codes; d * table."""
    return half(blocks, 0) * _NON_LINEAR[low_then_high(blocks[:, 2:18])]


def iq4_xs(blocks: Integers) -> Floats:
    """Fp16 d, upper bits of 8 scales, 4 bytes of their lower nibbles, 128 bytes of codes; d * (s - 32) * table."""
    upper = _words(blocks[:, 2:4], 2)
    parts = []
    for j in range(8):
        low = blocks[:, 4 + j // 2] // 16 ** (j % 2) % 16
        scale = (low + 16 * (upper[:, 0] // 4**j % 4) - 32)[:, None]
        parts.append(scale * _NON_LINEAR[low_then_high(blocks[:, 8 + 16 * j : 24 + 16 * j])])
    values: Floats = half(blocks, 0) * joined(parts)
    return values


def iq2_xxs(blocks: Integers) -> Floats:
    """Fp16 d, then for each 32 elements four grid bytes and a word of four 7-bit signs and a 4-bit scale."""
    words = _words(blocks[:, 2:66], 4)
    grid = _grid("iq2_xxs")[blocks[:, 2:66].reshape(-1, 8, 8)[:, :, :4]]
    word = words[:, 1::2]
    scale = (0.5 + (word >> 28)) * 0.25
    values = scale[:, :, None, None] * grid * _seven_bit_signs(word)
    return half(blocks, 0) * values.reshape(len(blocks), 256)


def iq2_xs(blocks: Integers) -> Floats:
    """Fp16 d, 32 words of a 9-bit grid index and 7-bit signs, 8 bytes of two 4-bit scales of 16 elements."""
    words = _words(blocks[:, 2:66], 2)
    values = _grid("iq2_xs")[words % 512] * _parity_signs(words // 512)
    scale = (0.5 + _nibbles(blocks[:, 66:74])) * 0.25
    return half(blocks, 0) * np.repeat(scale, 16, axis=1) * values.reshape(len(blocks), 256)


def iq2_s(blocks: Integers) -> Floats:
    """Fp16 d, 32 low bytes of grid indices, 32 sign bytes, 8 bytes of their upper bit pairs, 8 bytes of scales."""
    upper = np.stack([blocks[:, 66:74] // 4**j % 4 for j in range(4)], axis=2).reshape(-1, 32)
    values = _grid("iq2_s")[blocks[:, 2:34] + 256 * upper].reshape(len(blocks), 256)
    scale = (0.5 + _nibbles(blocks[:, 74:82])) * 0.25
    decoded: Floats = half(blocks, 0) * np.repeat(scale, 16, axis=1) * values * (1 - 2 * bits_of(blocks[:, 34:66]))
    return decoded


def iq3_xxs(blocks: Integers) -> Floats:
    """Fp16 d, 64 grid bytes of four elements, then 8 words of four 7-bit signs and a 4-bit scale."""
    grid = _grid("iq3_xxs")[blocks[:, 2:66]].reshape(-1, 8, 4, 8)
    word = _words(blocks[:, 66:98], 4)
    scale = (0.5 + (word >> 28)) * 0.5
    values = scale[:, :, None, None] * grid * _seven_bit_signs(word)
    return half(blocks, 0) * values.reshape(len(blocks), 256)


def iq3_s(blocks: Integers) -> Floats:
    """Fp16 d, 64 low bytes of grid indices, 8 bytes of their ninth bits, 32 sign bytes, 4 bytes of scales."""
    values = _grid("iq3_s")[blocks[:, 2:66] + 256 * bits_of(blocks[:, 66:74])].reshape(len(blocks), 256)
    scale = 1 + 2 * _nibbles(blocks[:, 106:110])
    decoded: Floats = half(blocks, 0) * np.repeat(scale, 32, axis=1) * values * (1 - 2 * bits_of(blocks[:, 74:106]))
    return decoded


def iq1_s(blocks: Integers) -> Floats:
    """Fp16 d, 32 low bytes of grid indices, then 8 words: four upper 3-bit parts, a 3-bit scale, the sign of delta."""
    word = _words(blocks[:, 34:50], 2)
    upper = np.stack([word // 8**j % 8 for j in range(4)], axis=2).reshape(-1, 32)
    values = _grid("iq1")[blocks[:, 2:34] + 256 * upper].reshape(len(blocks), 256)
    scale = 2 * (word // 2**12 % 8) + 1
    delta = np.where(word >= 2**15, -0.125, 0.125)
    decoded: Floats = half(blocks, 0) * np.repeat(scale, 32, axis=1) * (values + np.repeat(delta, 32, axis=1))
    return decoded


def iq1_m(blocks: Integers) -> Floats:
    """32 low bytes of grid indices, 32 nibbles (upper 3 bits, sign of delta), 4 words of scales and quarters of d."""
    nibbles = _nibbles(blocks[:, 32:48])
    values = _grid("iq1")[blocks[:, :32] + 256 * (nibbles % 8)].reshape(len(blocks), 256)
    delta = np.where(nibbles >= 8, -0.125, 0.125)
    word = _words(blocks[:, 48:56], 2)
    pattern = sum((word[:, i] >> 12) << (4 * i) for i in range(4))
    d = np.asarray(pattern).astype(np.uint16).view(np.float16).astype(np.float64)[:, None]
    scale = 2 * np.stack([word // 8**j % 8 for j in range(4)], axis=2).reshape(-1, 16) + 1
    decoded: Floats = d * np.repeat(scale, 16, axis=1) * (values + np.repeat(delta, 8, axis=1))
    return decoded


@functools.cache
def _grid(name: str) -> Floats:
    """Return the published table [codes, length]; its name is that of the type, or ``iq1``."""
    return np.array(code_book(name), dtype=np.float64)


def _words(stored: Integers, size: int) -> Integers:
    """Return little-endian words of ``size`` bytes."""
    return sum((stored[:, i::size] << (8 * i) for i in range(size)), start=np.zeros(1, dtype=np.int64))


def _nibbles(stored: Integers) -> Integers:
    """Return the low, then the high nibble of every byte."""
    return np.stack([stored % 16, stored // 16], axis=2).reshape(len(stored), -1)


def _seven_bit_signs(word: Integers) -> Integers:
    """Return the signs [B, 8, 4, 8] of four times eight elements from the lowest 28 bits of words [B, 8]."""
    return _parity_signs(np.stack([word >> (7 * j) & 127 for j in range(4)], axis=2))


def _parity_signs(seven: Integers) -> Integers:
    """Return eight signs of each 7-bit number: bit j is that of element j, and their product is always +1."""
    bits = np.stack([seven >> j & 1 for j in range(7)], axis=-1)
    bits = np.concatenate([bits, bits.sum(axis=-1, keepdims=True) % 2], axis=-1)
    signs: Integers = 1 - 2 * bits
    return signs
