"""The closed form of QQQ and of its inputs against words packed and scales permuted by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference.stored_words import signed

from quantfarm import reference
from quantfarm.reference import activations, int8_products

GROUPED, PER_CHANNEL = (0, 2, 4, 6, 1, 3, 5, 7), (4, 0, 5, 1, 6, 2, 7, 3)


def packed(codes: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Pack codes [K, N], word by word."""
    k, n = codes.shape
    words = np.zeros((k // 16, 2 * n), dtype=np.int32)
    for kt in range(k // 16):
        for nt in range(n // 64):
            for th in range(32):
                for wp in range(4):
                    n0, k0 = 64 * nt + 16 * wp + th // 4, 16 * kt + 4 * (th % 4)
                    v = [codes[k0 + i, n0] for i in range(4)] + [codes[k0 + i, n0 + 8] for i in range(4)]
                    word = sum((int(v[p]) % 16) << (4 * i) for i, p in enumerate(order))
                    words[kt, nt * 128 + th * 4 + wp] = signed(word, 32)
    return words


def permuted(scales: np.ndarray, columns: list[int]) -> np.ndarray:
    """Reorder every span of columns: place i holds the column that the list gives."""
    span = len(columns)
    return np.concatenate([scales[:, first + np.array(columns)] for first in range(0, scales.shape[1], span)], axis=1)


ROWS_OF_64 = [i + 8 * j for i in range(8) for j in range(8)]
ROWS_OF_32 = [2 * i + row for i in range(4) for row in (0, 1, 8, 9, 16, 17, 24, 25)]


def decode(tensors: dict[str, np.ndarray], group_size: int) -> np.ndarray:
    """Decode one weight."""
    return reference.decode(tensors, method="qqq", format="qqq", bits=4, group_size=group_size)


def test_one_scale_a_channel() -> None:
    """Two's complement nibbles from -8 to 7, times 16, times the scale of the channel."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-8, 8, (128, 128))
    assert {-8, 7} <= set(codes.flatten())
    scale = rng.random((1, 128)).astype(np.float32)
    tensors = {
        "B": packed(codes, PER_CHANNEL),
        "s_channel": permuted(scale, ROWS_OF_32),
        "s_group": np.zeros(0, dtype=np.float16),
    }
    assert np.array_equal(decode(tensors, -1), (codes * 16.0 * scale.astype(float)).T)


def test_scales_of_groups() -> None:
    """Codes less 8, times the group's scale, rounded half to even and clamped to int8; then the channel's scale."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 16, (256, 64))
    channel = rng.random((1, 64)).astype(np.float32)
    group = (rng.random((2, 64)) * 30).astype(np.float16)
    group[0, :2] = [0.5, 2.5]
    assert (np.abs((codes[:128] - 8) * group[0].astype(float)) > 128).any()
    tensors = {
        "B": packed(codes, GROUPED),
        "s_channel": permuted(channel, ROWS_OF_32),
        "s_group": permuted(group, ROWS_OF_64),
    }
    wanted = np.zeros((64, 256))
    for k in range(256):
        for n in range(64):
            w8 = min(max(round((int(codes[k, n]) - 8) * float(group[k // 128, n])), -128), 127)
            wanted[n, k] = w8 * float(channel[0, n])
    assert np.array_equal(decode(tensors, 128), wanted)


def test_int8_inputs_by_hand() -> None:
    """The largest value of a row becomes 127, half is rounded to even, a row of zeros stays zero."""
    x = torch.tensor([[[254.0, 5.0, -3.0, 1.0], [0.0, 0.0, 0.0, 0.0], [-0.5, 0.25, 0.0, 0.5]]], dtype=torch.float16)
    codes, scales = activations.int8_rows(x)
    assert codes.tolist() == [[[127, 2, -2, 0], [0, 0, 0, 0], [-127, 64, 0, 127]]]
    assert scales[0, :, 0].tolist() == [2.0, 1.0, float(np.float32(0.5) / np.float32(127))]


@pytest.mark.parametrize("group_size", [-1, 128])
def test_the_product_of_codes_is_near_that_of_values(group_size: int) -> None:
    """Integer sums times both scales are the product of the rounded inputs and the decoded weight."""
    rng = np.random.default_rng(2)
    tensors = {
        "B": rng.integers(-(2**31), 2**31, (8, 128)).astype(np.int32),
        "s_channel": rng.random((1, 64)).astype(np.float32),
        "s_group": rng.random((1, 64)).astype(np.float16) if group_size == 128 else np.zeros(0, dtype=np.float16),
    }
    says = reference.Stored(method="qqq", format="qqq", bits=4, group_size=group_size)
    weight_codes, weight_scales = int8_products.int8_weight(tensors, says)
    codes, scales = activations.int8_rows(rng.standard_normal((3, 128)))
    sums, product = activations.int8_product(codes, scales, weight_codes, weight_scales)
    assert sums.dtype == np.int64
    wanted = reference.linear(codes * scales, decode(tensors, group_size))
    assert np.abs(product - wanted).max() <= 1e-13 * np.abs(wanted).max()
