"""Closed forms of GPTQ, GPTQ_V2 and AWQ GEMM, field by field (formats, sections 1, 2 and 4).

The label MARLIN stands for tensors shaped like GPTQ v1 or AWQ GEMM (section 7).

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

_AWQ_FIELD_OF_OUTPUT = {4: (0, 4, 1, 5, 2, 6, 3, 7), 8: (0, 2, 1, 3)}
"""Code width to the field of each output of a word."""
_MINUS_ONE_WORD = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}


def gptq(arrays: Arrays, says: Stored) -> Floats:
    """Decode GPTQ (zero points stored minus one) and GPTQ_V2 (true ones)."""
    q, z, group = _gptq(arrays, says, minus_one=normalize_format(says.format) is not FORMAT.GPTQ_V2)
    return affine(q, z, group, arrays["scales"])


def awq(arrays: Arrays, says: Stored) -> Floats:
    """Decode AWQ GEMM of 4 bits; under the label MARLIN also of 8 bits."""
    widths = (4, 8) if normalize_format(says.format) is FORMAT.MARLIN else (4,)
    if says.bits not in widths:
        raise ValueError(f"no closed form for AWQ {says.format} of {says.bits} bits")
    q = awq_fields(unsigned(arrays["qweight"]), says.bits)
    z = awq_fields(unsigned(arrays["qzeros"]), says.bits)
    return affine(q, z, group_of_inputs(arrays, says, q.shape[0]), arrays["scales"])


def affine(q: Integers, z: Integers, group: Integers, scales: npt.NDArray[Any]) -> Floats:
    """Return scale * (q - z) as W [N, K] from codes [K, N], zero points and scales [G, N], and the group of inputs."""
    decoded: Floats = ((q - z[group]).astype(np.float64) * scales.astype(np.float64)[group]).T
    return decoded


def group_of_inputs(arrays: Arrays, says: Stored, k: int) -> Integers:
    """Return the group of every input [K]: g_idx, where negative values count from the end, else k // group_size."""
    index = arrays.get("g_idx")
    if index is None:
        return np.arange(k, dtype=np.int64) // (k if says.group_size == -1 else says.group_size)
    group = index.astype(np.int64)
    return np.where(group < 0, group + len(arrays["scales"]), group)


def _gptq(arrays: Arrays, says: Stored, *, minus_one: bool) -> tuple[Integers, Integers, Integers]:
    """Return codes [K, N], zero points [G, N] and the group of every input [K]."""
    fields = _fields_of_three_bits if says.bits == 3 else _fields_within_words(says.bits)
    words, zero_words = unsigned(arrays["qweight"]), unsigned(arrays["qzeros"])
    n = arrays["scales"].shape[1]
    index = arrays.get("g_idx")
    k = says.k or (len(index) if index is not None else words.shape[0] * 32 // says.bits)
    group = group_of_inputs(arrays, says, k)
    q = fields(words)[:k]
    if minus_one and says.zeros_rule == "word_wise" and says.bits != 3:
        zero_words = (zero_words + _MINUS_ONE_WORD[says.bits]) % 2**32
        return q, fields(zero_words.T)[:n].T, group
    z = fields(zero_words.T)[:n].T
    return q, (z + 1) % 2**says.bits if minus_one else z, group


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


def awq_fields(words: Integers, bits: int) -> Integers:
    """Decode the outputs of each word: output P*c + j of word c lies in the field that the table gives for j."""
    per_word = 32 // bits
    found = np.zeros((words.shape[0], words.shape[1] * per_word), dtype=np.int64)
    for j, place in enumerate(_AWQ_FIELD_OF_OUTPUT[bits]):
        found[:, j::per_word] = (words // 2 ** (bits * place)) % 2**bits
    return found
