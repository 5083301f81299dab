"""EXL3 for tests: random stored tensors, and W by the letter of formats, section 13, one symbol at a time."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import torch

from quantfarm.formats.config import parse
from quantfarm.formats.exl3 import read
from quantfarm.formats.weights.trellis import TrellisWeight

CODEBOOKS = ("3inst", "mcg", "mul1")
MARKS = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}


def settings(**changes: Any) -> dict[str, Any]:
    """Return settings of a checkpoint."""
    return {"quant_method": "exl3", "bits": 4.0, "head_bits": 6, **changes}


def stored(
    k: int = 128, n: int = 128, bits: int = 4, codebook: str = "3inst", seed: int = 0
) -> dict[str, torch.Tensor]:
    """Draw the tensors of a module: any words are a valid trellis."""
    source = torch.Generator().manual_seed(seed)
    words = torch.randint(-(1 << 15), 1 << 15, (k // 16, n // 16, 16 * bits), generator=source).to(torch.int16)
    tensors = {"trellis": words, "suh": _scales(source, k), "svh": _scales(source, n) * 0.05}
    if codebook in MARKS:
        tensors[codebook] = torch.tensor(MARKS[codebook] - (1 << 32), dtype=torch.int32)
    return tensors


def weight(tensors: dict[str, torch.Tensor], **changes: Any) -> TrellisWeight:
    """Read tensors with plain settings."""
    return read(tensors, parse(settings(**changes), source="settings"), module="m")


def literal_inner(tensors: dict[str, torch.Tensor]) -> np.ndarray:
    """Return the inner weight [K, N] in float64, by whole numbers of Python."""
    trellis = tensors["trellis"].numpy()
    bits = trellis.shape[2] // 16
    codebook = next((name for name in MARKS if name in tensors), "3inst")
    inner = np.zeros((trellis.shape[0] * 16, trellis.shape[1] * 16))
    for row, column in np.ndindex(*trellis.shape[:2]):
        for index, state in enumerate(_states([int(word) % 65536 for word in trellis[row, column]], bits)):
            lane, entry = divmod(index, 8)
            r = 2 * (lane % 4) + [0, 1, 8, 9][entry % 4]
            c = lane // 4 + 8 * (entry // 4)
            inner[16 * row + r, 16 * column + c] = value(state, codebook)
    return inner


def literal(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return W [N, K] in float64."""
    inner = literal_inner(tensors)
    scales = [
        tensors[plain].double().numpy() if plain in tensors else _signs(tensors[packed].tolist())
        for plain, packed in (("suh", "su"), ("svh", "sv"))
    ]
    left, right = (np.kron(np.eye(size // 128), _HADAMARD) for size in inner.shape)
    return torch.from_numpy((scales[0][:, None] * (left @ inner) @ right * scales[1]).T.copy())


def value(state: int, codebook: str) -> float:
    """Return the number of a state; every sum is rounded to fp16 once."""
    if codebook == "mul1":
        total = sum((state * 0x83DCD12D % 2**32).to_bytes(4, "little"))
        return _rounded(_half(0x6400 + total) * _half(0x1EEE) + _half(0xC931))
    word = state * 0xCBAC1FED if codebook == "mcg" else state * 89226354 + 64248484
    word = (word % 2**32 & 0x8FFF8FFF) ^ 0x3B603B60
    return _rounded(_half(word % 65536) + _half(word // 65536))


def _states(words: list[int], bits: int) -> list[int]:
    for i in range(0, len(words), 2):
        words[i], words[i + 1] = words[i + 1], words[i]
    symbols = []
    for group in range(16):
        big_endian = 0
        for word in words[group * bits : (group + 1) * bits]:
            big_endian = big_endian << 16 | word
        symbols += [big_endian >> (16 * bits - bits * (pos + 1)) & (2**bits - 1) for pos in range(16)]
    preload = -(-16 // bits) - 1
    state, states = 0, []
    for symbol in [*symbols[len(symbols) - preload :], *symbols]:
        state = (state << bits | symbol) & 0xFFFF
        states.append(state)
    return states[preload:]


def _half(pattern: int) -> float:
    number: float = struct.unpack("<e", struct.pack("<H", pattern))[0]
    return number


def _rounded(number: float) -> float:
    rounded: float = struct.unpack("<e", struct.pack("<e", number))[0]
    return rounded


def _signs(words: list[int]) -> np.ndarray:
    return np.array([-1.0 if word % 65536 >> j & 1 else 1.0 for word in words for j in range(16)])


def _scales(source: torch.Generator, count: int) -> torch.Tensor:
    signs = torch.randint(0, 2, (count,), generator=source) * 2 - 1
    return (signs * (0.5 + torch.rand(count, generator=source))).half()


_HADAMARD = np.array([[(-1) ** (i & j).bit_count() for j in range(128)] for i in range(128)]) / np.sqrt(128)
