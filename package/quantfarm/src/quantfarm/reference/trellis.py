"""Closed form of EXL3: trellis codes, procedural codebooks, Hadamard transforms on both sides (formats, section 13)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quantfarm.reference.stored import Arrays, Floats, Integers, Stored

_MCG, _MUL1 = 0xCBAC1FED, 0x83DCD12D
_SPAN = 128
"""Channels that one Hadamard transform mixes."""


def exl3(arrays: Arrays, says: Stored) -> Floats:  # noqa: ARG001 - every closed form takes both
    """Decode EXL3: diag(suh) H inner H diag(svh) is W^T; everything after the fp16 codebook is float64."""
    inner = _inner(arrays["trellis"], _codebook(arrays)).astype(np.float64)
    k, n = inner.shape
    suh, svh = _signs(arrays, "suh", "su", k), _signs(arrays, "svh", "sv", n)
    full: Floats = suh[:, None] * (_hadamard(k) @ inner @ _hadamard(n)) * svh[None, :]
    return np.ascontiguousarray(full.T)


def _inner(trellis: npt.NDArray[Any], values: npt.NDArray[np.float16]) -> npt.NDArray[np.float16]:
    """Decode tiles [K/16, N/16, 16*b] to the codebook's values [K, N]."""
    rows, columns, words = trellis.shape
    states = _states(trellis.reshape(rows * columns, words).astype(np.int64) % 2**16)
    tiles = values[states].reshape(rows, columns, 256)
    inner = np.zeros((rows * 16, columns * 16), dtype=np.float16)
    for t in range(32):
        for e in range(8):
            r = 2 * (t % 4) + (0, 1, 8, 9)[e % 4]
            c = t // 4 + 8 * (e // 4)
            inner[r::16, c::16] = tiles[:, :, 8 * t + e]
    return inner


def _states(words: Integers) -> Integers:
    """Return the 256 states of every tile [T, 256] from its words [T, 16*b].

    The words of a pair change places; then sixteen symbols follow each other in b words, most significant bit first.
    A 16-bit register takes in symbol after symbol; it starts with the last ones of the tile.
    """
    bits = words.shape[1] // 16
    swapped = np.zeros_like(words)
    swapped[:, 0::2], swapped[:, 1::2] = words[:, 1::2], words[:, 0::2]
    symbols = np.zeros((len(words), 256), dtype=np.int64)
    for i in range(256):
        for bit in range(i * bits, i * bits + bits):
            symbols[:, i] = 2 * symbols[:, i] + (swapped[:, bit // 16] >> (15 - bit % 16)) % 2
    register = np.zeros(len(words), dtype=np.int64)
    for i in range(256 - (-(-16 // bits) - 1), 256):
        register = (register * 2**bits + symbols[:, i]) % 2**16
    states = np.zeros_like(symbols)
    for i in range(256):
        register = (register * 2**bits + symbols[:, i]) % 2**16
        states[:, i] = register
    return states


def _codebook(arrays: Arrays) -> npt.NDArray[np.float16]:
    """Return the fp16 value of every 16-bit state; the tensor that is there names the codebook."""
    state = np.arange(2**16, dtype=np.uint64)
    if "mul1" in arrays:
        _check(arrays["mul1"], _MUL1)
        product = state * np.uint64(_MUL1) % 2**32
        total = sum((product >> np.uint64(8 * i)) % 256 for i in range(4))
        # One fused multiply-add: 22-bit products and their sum are exact in float64, then one rounding to fp16.
        wide = (0x6400 + total).astype(np.uint16).view(np.float16).astype(np.float64)
        fused: npt.NDArray[np.float16] = (wide * _fp16(0x1EEE) + _fp16(0xC931)).astype(np.float16)
        return fused
    if "mcg" in arrays:
        _check(arrays["mcg"], _MCG)
        product = state * np.uint64(_MCG) % 2**32
    else:
        product = (state * np.uint64(89226354) + np.uint64(64248484)) % 2**32
    mixed = (product & np.uint64(0x8FFF8FFF)) ^ np.uint64(0x3B603B60)
    low, high = (mixed % 2**16).astype(np.uint16), (mixed // 2**16).astype(np.uint16)
    added: npt.NDArray[np.float16] = low.view(np.float16) + high.view(np.float16)
    return added


def _fp16(pattern: int) -> float:
    return float(np.array([pattern], dtype=np.uint16).view(np.float16)[0])


def _check(stored: npt.NDArray[Any], multiplier: int) -> None:
    found = int(stored.reshape(-1)[0]) % 2**32
    if found != multiplier:
        raise ValueError(f"no closed form for the codebook multiplier {found:#x}")


def _signs(arrays: Arrays, plain: str, packed: str, size: int) -> Floats:
    """Return the sign and scale of every channel; packed, bit i of word w is set where channel 16w + i is negative."""
    if plain in arrays:
        return arrays[plain].astype(np.float64)
    words = arrays[packed].astype(np.int64) % 2**16
    channel = np.arange(size)
    negative = (words[channel // 16] >> (channel % 16)) % 2
    return (1 - 2 * negative).astype(np.float64)


def _hadamard(size: int) -> Floats:
    """Return Sylvester's matrix of every 128 channels on the diagonal, so scaled that it is its own inverse."""
    block: npt.NDArray[Any] = np.ones((1, 1))
    while len(block) < _SPAN:
        block = np.kron(np.array([[1, 1], [1, -1]]), block)
    whole: Floats = (np.kron(np.eye(size // _SPAN), block) / np.sqrt(_SPAN)).astype(np.float64)
    return whole
