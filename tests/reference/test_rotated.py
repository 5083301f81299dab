"""The closed form of ParoQuant against inputs that are rotated one pair after the other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from reference.stored_words import int32, ones

from quantfarm import reference

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def made(k: int, n: int, size: int, rounds: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return stored tensors and the codes less their zero points, times scales [N, K]."""
    rng = np.random.default_rng(k + size)
    codes, zeros = rng.integers(0, 16, (k, n)), rng.integers(0, 16, (k // size, n))
    scales = rng.random((k // size, n)).astype(np.float16)
    pairs = [np.concatenate([rng.permutation(size) for _ in range(k // size)]) for _ in range(rounds)]
    tensors = {
        "qweight": int32([interleaved(row) for row in codes]),
        "qzeros": int32([interleaved(row) for row in zeros]),
        "scales": scales,
        "theta": rng.standard_normal((rounds, k // 2)).astype(np.float16),
        "pairs": np.array(pairs, dtype=np.int16).reshape(rounds, k),
        "channel_scales": (rng.random((1, k)) + 0.5).astype(np.float16),
    }
    group = np.arange(k) // size
    return tensors, ((codes - zeros[group]) * scales.astype(float)[group]).T


def interleaved(row: np.ndarray) -> list[int]:
    """Pack eight outputs a word: nibble i holds output ORDER[i]."""
    words = [sum(int(row[c + output]) << (4 * i) for i, output in enumerate(ORDER)) for c in range(0, len(row), 8)]
    return [word - 2**32 if word >= 2**31 else word for word in words]


def rotated(x: list[float], tensors: dict[str, np.ndarray], size: int) -> list[float]:
    """Transform one input by the loops of the description."""
    x = [value * float(scale) for value, scale in zip(x, tensors["channel_scales"][0], strict=True)]
    for r in range(len(tensors["theta"])):
        for g in range(len(x) // size):
            for p in range(size // 2):
                i = g * size + int(tensors["pairs"][r, g * size + 2 * p])
                j = g * size + int(tensors["pairs"][r, g * size + 2 * p + 1])
                a = float(tensors["theta"][r, g * size // 2 + p])
                x[i], x[j] = x[i] * math.cos(a) + x[j] * math.sin(a), -x[i] * math.sin(a) + x[j] * math.cos(a)
    return x


def decode(tensors: dict[str, np.ndarray], size: int, rounds: int) -> np.ndarray:
    """Decode one weight."""
    return reference.decode(
        tensors, method="paroquant", format="paroquant", bits=4, group_size=size, details={"krot": rounds}
    )


@pytest.mark.parametrize(("size", "rounds"), [(16, 1), (16, 8), (32, 3), (64, 8), (128, 1)])
def test_the_product_is_that_of_rotated_inputs(size: int, rounds: int) -> None:
    """The effective weight gives the product of the rotated input and the dequantized weight."""
    k, n = 128, 16
    tensors, dequantized = made(k, n, size, rounds)
    x = np.random.default_rng(1).standard_normal(k)
    wanted = dequantized @ np.array(rotated(x.tolist(), tensors, size))
    y = x @ decode(tensors, size, rounds).T
    assert np.abs(y - wanted).max() <= 1e-13 * np.abs(wanted).max()


def test_the_identity_is_the_dequantized_weight() -> None:
    """Angles 0 and scales 1 change nothing, to the last bit."""
    tensors, dequantized = made(64, 8, 32, 2)
    tensors |= {"theta": np.zeros_like(tensors["theta"]), "channel_scales": ones(1, 64)}
    assert np.array_equal(decode(tensors, 32, 2), dequantized)


def test_a_symmetric_weight_may_come_without_zero_points() -> None:
    """Without the tensor every zero point is the middle of the range."""
    tensors, _ = made(32, 8, 32, 1)
    stored = tensors | {"qzeros": np.full((1, 1), -2004318072, dtype=np.int32)}
    del tensors["qzeros"]
    assert np.array_equal(decode(tensors, 32, 1), decode(stored, 32, 1))
