"""Closed form of QQQ: 4-bit codes that become int8, in tiles of 16 x 64 (formats, section 9)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantfarm.reference.stored import Arrays, Floats, Integers, Stored, unsigned

_GROUPED, _PER_CHANNEL = (0, 2, 4, 6, 1, 3, 5, 7), (4, 0, 5, 1, 6, 2, 7, 3)
"""Which of its eight codes each nibble of a word holds."""
_GROUP = 128
_CHANNEL_ROWS = (0, 1, 8, 9, 16, 17, 24, 25)


def qqq(arrays: Arrays, says: Stored) -> Floats:
    """Decode QQQ: int8 code times the scale of its channel."""
    codes, scales = int8_weight(arrays, says)
    return codes * scales[:, None]


def int8_weight(arrays: Arrays, says: Stored) -> tuple[Integers, Floats]:  # noqa: ARG001 - as every closed form
    """Return the int8 codes [N, K] that the product takes, and the scale [N] of every channel."""
    groups = arrays["s_group"]
    scales = _channel_scales(arrays["s_channel"])
    if not groups.size:
        nibble = _tiles(unsigned(arrays["B"]), _PER_CHANNEL)
        signed = np.where(nibble >= 8, nibble - 16, nibble)
        return signed.T * 16, scales
    q = _tiles(unsigned(arrays["B"]), _GROUPED)
    group = np.arange(len(q)) // _GROUP
    product = (q - 8) * _group_scales(groups)[group]
    return np.clip(np.rint(product), -128, 127).astype(np.int64).T, scales


def _tiles(words: Integers, code_of_nibble: tuple[int, ...]) -> Integers:
    """Decode words [K/16, 2N] to codes [K, N]."""
    rows, columns = words.shape
    q = np.zeros((rows * 16, columns // 2), dtype=np.int64)
    for th in range(32):
        for wp in range(4):
            word = words[:, th * 4 + wp :: 128]
            for nibble, code in enumerate(code_of_nibble):
                k0, n0 = 4 * (th % 4) + code % 4, 16 * wp + th // 4 + 8 * (code // 4)
                q[k0::16, n0::64] = word // 16**nibble % 16
    return q


def _group_scales(stored: npt.NDArray[Any]) -> Floats:
    """Undo the order of 64 columns: place 8i + j holds column i + 8j."""
    scales = np.zeros(stored.shape, dtype=np.float64)
    for i in range(8):
        for j in range(8):
            scales[:, i + 8 * j :: 64] = stored[:, 8 * i + j :: 64]
    return scales


def _channel_scales(stored: npt.NDArray[Any]) -> Floats:
    """Undo the order of 32 columns: place 8i + j holds column 2i + (0, 1, 8, 9, 16, 17, 24, 25)[j]."""
    flat = stored.reshape(-1)
    scales = np.zeros(len(flat), dtype=np.float64)
    for i in range(4):
        for j, row in enumerate(_CHANNEL_ROWS):
            scales[2 * i + row :: 32] = flat[8 * i + j :: 32]
    return scales
