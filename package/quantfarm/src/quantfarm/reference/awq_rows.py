"""Closed forms of the AWQ layouts that keep an output's codes in rows: GEMV, GEMV_FAST, LLM_AWQ (sections 5 and 6)."""

from __future__ import annotations

import numpy as np

from quantfarm.declare.names import FORMAT, normalize_format
from quantfarm.reference.stored import Arrays, Floats, Integers, Stored, unsigned


def gemv(arrays: Arrays, says: Stored) -> Floats:
    """Decode AWQ GEMV: word c of row n holds inputs 8c to 8c + 7, and zero points of groups 8c to 8c + 7."""
    _only_four_bits(says)
    q, z = _nibbles(unsigned(arrays["qweight"])), _nibbles(unsigned(arrays["qzeros"]))
    group = _groups(q.shape[1], says)
    decoded: Floats = arrays["scales"].astype(np.float64)[:, group] * (q - z[:, group])
    return decoded


def gemv_fast(arrays: Arrays, says: Stored) -> Floats:
    """Decode AWQ GEMV_FAST and LLM_AWQ; they differ in the name of the tensor that holds -(scale * zero)."""
    _only_four_bits(says)
    own = "scaled_zeros" if normalize_format(says.format) is FORMAT.LLM_AWQ else "qzeros"
    other = "qzeros" if own == "scaled_zeros" else "scaled_zeros"
    offsets = arrays[own if own in arrays else other].astype(np.float64)
    q = _interleaved(arrays["qweight"].astype(np.int64) % 2**16)
    group = _groups(q.shape[1], says)
    decoded: Floats = q * arrays["scales"].astype(np.float64)[group].T + offsets[group].T
    return decoded


def _interleaved(words: Integers) -> Integers:
    """Decode words [N/4, K]: four rows of outputs and 64 inputs share 64 words of four nibbles."""
    rows, k = words.shape
    q = np.zeros((4 * rows, k), dtype=np.int64)
    for t in range(k // 64):
        for w in range(64):
            for i in range(4):
                slot = 4 * (w % 16) + i
                half, s = slot // 32, slot % 32
                source = 64 * t + 32 * half + 8 * (s % 4) + 2 * (s // 8) + (s // 4) % 2
                q[w // 16 :: 4, source] = words[:, 64 * t + w] // 16**i % 16
    return q


def _nibbles(words: Integers) -> Integers:
    """Decode words [R, C] to codes [R, 8C], low nibble first."""
    found = np.zeros((words.shape[0], words.shape[1] * 8), dtype=np.int64)
    for i in range(8):
        found[:, i::8] = words // 16**i % 16
    return found


def _groups(k: int, says: Stored) -> Integers:
    return np.arange(k, dtype=np.int64) // (k if says.group_size == -1 else says.group_size)


def _only_four_bits(says: Stored) -> None:
    if says.bits != 4:
        raise ValueError(f"no closed form for {says.method}, {says.format}, {says.bits} bits")
