"""Bit orders of affine formats, laid out bit by bit or index by index from the format's description.

Own arithmetic: nothing of the product is used, so that a mistake in a reader can not hide here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Codes = npt.NDArray[np.uint8]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Nibble i of a word holds output 8c + AWQ_ORDER[i]."""

PLANES = {2: ((2, 0),), 3: ((2, 0), (1, 2)), 4: ((4, 0),), 5: ((4, 0), (1, 4)), 6: ((4, 0), (2, 4))} | {
    7: ((4, 0), (2, 4), (1, 6)),
    8: ((8, 0),),
}
"""Width and bit offset of each plane of GPTQ_P, low first."""


def stream(fields: Codes, bits: int) -> torch.Tensor:
    """Pack along the first axis as one little-endian stream of ``bits`` wide fields a column; int32 words."""
    rows, columns = fields.shape
    laid = ((fields[:, None, :] >> np.arange(bits, dtype=np.uint8)[None, :, None]) & 1).reshape(rows * bits, columns)
    return as_words(np.pad(laid, ((0, -laid.shape[0] % 32), (0, 0))))


def planar(fields: Codes, bits: int) -> torch.Tensor:
    """Pack along the first axis in blocks of 32 fields whose planes lie one after another."""
    rows, columns = fields.shape
    blocks = fields.reshape(rows // 32, 32, columns)
    planes = []
    for width, offset in PLANES[bits]:
        part = (blocks >> offset) & ((1 << width) - 1)
        bit = (part[:, :, None, :] >> np.arange(width, dtype=np.uint8)[None, None, :, None]) & 1
        planes.append(bit.reshape(rows // 32, 32 * width, columns))
    return as_words(np.concatenate(planes, axis=1).reshape(rows * bits, columns))


def awq(fields: Codes) -> torch.Tensor:
    """Pack eight outputs a word along the second axis, in AWQ's order."""
    rows, columns = fields.shape
    ordered = fields.reshape(rows, columns // 8, 8)[..., AWQ_ORDER].reshape(rows, columns)
    return stream(np.ascontiguousarray(ordered.T), 4).T.contiguous()


def interleaved(fields: Codes) -> torch.Tensor:
    """Pack [K, N] to int16 [N/4, K] in the order of GEMV_FAST (formats, section 6), index by index."""
    k, n = fields.shape
    quad, tile, word, nibble = np.meshgrid(
        np.arange(n // 4), np.arange(k // 64), np.arange(64), np.arange(4), indexing="ij"
    )
    slot = 4 * (word % 16) + nibble
    half, s = slot // 32, slot % 32
    at_k = 64 * tile + 32 * half + 8 * (s % 4) + 2 * (s // 8) + (s // 4) % 2
    at_n = 4 * quad + word // 16
    shifted = fields[at_k, at_n].astype(np.uint16) << (4 * nibble).astype(np.uint16)
    packed = np.bitwise_or.reduce(shifted, axis=-1).reshape(n // 4, k)
    return torch.from_numpy(np.ascontiguousarray(packed).view(np.int16).copy())


def as_words(bits: npt.NDArray[Any]) -> torch.Tensor:
    """Turn rows of bits, 32 a word and the lowest first, into int32 [rows/32, columns]."""
    octets = np.packbits(bits, axis=0, bitorder="little")
    by_word = np.ascontiguousarray(octets.reshape(-1, 4, bits.shape[1]).transpose(0, 2, 1))
    return torch.from_numpy(np.frombuffer(by_word.tobytes(), dtype="<i4").reshape(-1, bits.shape[1]).copy())
