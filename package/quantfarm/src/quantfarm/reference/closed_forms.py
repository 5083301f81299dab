"""Closed forms of GPTQ, GPTQ_V2 and AWQ GEMM, field by field (formats, sections 1, 2 and 4).

Everything happens in 64-bit integers that hold the unsigned value of a word, then in float64: a scale of any stored
dtype and an integer difference have an exact product there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from quantfarm.declare.names import FORMAT, normalize_format
from quantfarm.reference.stored import Arrays, Floats, Integers, Stored, unsigned

_AWQ_NIBBLE_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)
_MINUS_ONE_WORD = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}


def gptq(arrays: Arrays, says: Stored) -> Floats:
    """Decode GPTQ (zero points stored minus one) and GPTQ_V2 (true ones)."""
    q, z, group = _gptq(arrays, says, minus_one=normalize_format(says.format) is FORMAT.GPTQ)
    return _affine(q, z, group, arrays["scales"])


def awq(arrays: Arrays, says: Stored) -> Floats:
    """Decode AWQ GEMM of 4 bits."""
    if says.bits != 4:
        raise ValueError(f"no closed form for AWQ GEMM of {says.bits} bits")
    q, z, group = _awq(arrays, says)
    return _affine(q, z, group, arrays["scales"])


def _affine(q: Integers, z: Integers, group: Integers, scales: npt.NDArray[Any]) -> Floats:
    decoded: Floats = ((q - z[group]).astype(np.float64) * scales.astype(np.float64)[group]).T
    return decoded


def _gptq(arrays: Arrays, says: Stored, *, minus_one: bool) -> tuple[Integers, Integers, Integers]:
    """Return codes [K, N], zero points [G, N] and the group of every input [K]."""
    fields = _fields_of_three_bits if says.bits == 3 else _fields_within_words(says.bits)
    words, zero_words = unsigned(arrays["qweight"]), unsigned(arrays["qzeros"])
    groups, n = arrays["scales"].shape
    index = arrays.get("g_idx")
    k = says.k or (len(index) if index is not None else words.shape[0] * 32 // says.bits)
    if index is None:
        group = np.arange(k, dtype=np.int64) // (k if says.group_size == -1 else says.group_size)
    else:
        group = index.astype(np.int64)
        group = np.where(group < 0, group + groups, group)
    q = fields(words)[:k]
    if minus_one and says.zeros_rule == "word_wise" and says.bits != 3:
        zero_words = (zero_words + _MINUS_ONE_WORD[says.bits]) % 2**32
        return q, fields(zero_words.T)[:n].T, group
    z = fields(zero_words.T)[:n].T
    return q, (z + 1) % 2**says.bits if minus_one else z, group


def _awq(arrays: Arrays, says: Stored) -> tuple[Integers, Integers, Integers]:
    q = _awq_fields(unsigned(arrays["qweight"]))
    z = _awq_fields(unsigned(arrays["qzeros"]))
    k = q.shape[0]
    return q, z, np.arange(k, dtype=np.int64) // (k if says.group_size == -1 else says.group_size)


def _fields_within_words(bits: int) -> Callable[[Integers], Integers]:
    """Return the decoder of words whose row r holds field r*(32/bits) + j at bits j*bits."""

    def fields(words: Integers) -> Integers:
        per_word = 32 // bits
        found = np.zeros((words.shape[0] * per_word, words.shape[1]), dtype=np.int64)
        for j in range(per_word):
            found[j::per_word] = (words // 2 ** (j * bits)) % 2**bits
        return found

    return fields


def _fields_of_three_bits(words: Integers) -> Integers:
    """Decode 32 fields from each three rows A, B, C; fields 10 and 21 straddle two words."""
    blocks = -(-words.shape[0] // 3)
    padded = np.zeros((blocks * 3, words.shape[1]), dtype=np.int64)
    padded[: words.shape[0]] = words
    a, b, c = padded[0::3], padded[1::3], padded[2::3]
    found = np.zeros((blocks * 32, words.shape[1]), dtype=np.int64)
    for i in range(10):
        found[i::32] = (a >> (3 * i)) % 8
        found[11 + i :: 32] = (b >> (3 * i + 1)) % 8
        found[22 + i :: 32] = (c >> (3 * i + 2)) % 8
    found[10::32] = a // 2**30 + 4 * (b % 2)
    found[21::32] = b // 2**31 + 2 * (c % 4)
    return found


def _awq_fields(words: Integers) -> Integers:
    """Decode eight outputs from each word: output 8c + j lies in the nibble that the table gives for j."""
    found = np.zeros((words.shape[0], words.shape[1] * 8), dtype=np.int64)
    for j, nibble in enumerate(_AWQ_NIBBLE_OF_OUTPUT):
        found[:, j::8] = (words // 16**nibble) % 16
    return found
