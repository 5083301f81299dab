"""Stored integers of the tests: Python integers in, words of the file out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def words_of(fields: Sequence[int], bits: int, word: int = 32) -> list[int]:
    """Return the signed words of a little-endian stream of fields, zero padded."""
    stream = sum(value << (bits * i) for i, value in enumerate(fields))
    count = -(-len(fields) * bits // word)
    return [signed(stream >> (word * i), word) for i in range(count)]


def signed(value: int, bits: int) -> int:
    """Return the lowest bits of a number as the signed number that they stand for."""
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def int32(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Return rows of signed words."""
    return np.array(rows, dtype=np.int32)


def ones(*shape: int) -> npt.NDArray[np.float16]:
    """Return fp16 ones."""
    return np.ones(shape, dtype=np.float16)
