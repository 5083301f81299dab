"""The judgement can fail: each deliberate error of the numerics contract is seen, at small and at large shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from formats.makers import random_scales, random_words, settings
from reference.judging import judged

from quantfarm import reference
from quantfarm.declare.spec import Tolerance
from quantfarm.formats import gptq
from quantfarm.formats.quant_tensor import QuantTensor

CONFIG = settings(checkpoint_format="gptq_v2")
LOOSEST = Tolerance(
    derivation="cap of the family, floor at half of it", cap={"float16": 5e-4}, floor={"float16": 2.5e-4}
)
"""The loosest tolerance that the contract allows for 16-bit activations."""

SHAPES = [(64, 8), (1536, 576)]


def made(k: int, n: int) -> dict[str, torch.Tensor]:
    """Return stored 4-bit tensors in groups of 32; the first word is negative and has eight different codes."""
    generator = torch.Generator().manual_seed(k)
    tensors = {
        "qweight": random_words(generator, k // 8, n),
        "qzeros": random_words(generator, k // 32, n // 8),
        "scales": random_scales(generator, k // 32, n, torch.float16),
    }
    tensors["qweight"][0, 0] = -0x01234568
    return tensors


def swapped_codes(tensor: QuantTensor) -> torch.Tensor:
    """E1: codes 2 and 5 of one word change places."""
    w = tensor.decoded().clone()
    w[0, [2, 5]] = w[0, [5, 2]]
    return w


def scaled_group(tensor: QuantTensor) -> torch.Tensor:
    """E2: the scales of one group are 1 % too large."""
    return with_scale(tensor, tensor.scales[-1].to(torch.float32) * 1.01, slice(None))


def neighbouring_scale(tensor: QuantTensor) -> torch.Tensor:
    """E2: one scale is its neighbour's."""
    return with_scale(tensor, tensor.scales[-1, 1], 0)


def with_scale(tensor: QuantTensor, value: torch.Tensor, column: int | slice) -> torch.Tensor:
    """Decode with other scales in the last group."""
    scales = tensor.scales.to(torch.float32)
    scales[-1, column] = value.to(torch.float32)
    return replace(tensor, scales=scales).decoded()


def dropped_group(tensor: QuantTensor) -> torch.Tensor:
    """E3: the inputs of the last group do not count."""
    w = tensor.decoded().clone()
    w[:, -32:] = 0
    return w


def higher_zero_point(tensor: QuantTensor) -> torch.Tensor:
    """E4: the zero points of one group are one too large."""
    zeros = tensor.zeros.clone()
    zeros[-1] += 1
    return replace(tensor, zeros=zeros).decoded()


def sign_dragged_in(tensor: QuantTensor) -> torch.Tensor:
    """E8: the top code of one negative word keeps the sign of the arithmetic shift."""
    w = tensor.decoded().clone()
    w[0, 7] -= 16 * tensor.scales[0, 0].to(torch.float32)
    return w


@functools.cache
def clean(k: int, n: int) -> tuple[QuantTensor, np.ndarray]:
    """Return the read tensor and its float64 weight, once per shape."""
    tensors = made(k, n)
    w64 = reference.decode(tensors, method="gptq", format="gptq_v2", bits=4, group_size=32)
    return gptq.read(tensors, CONFIG, module="m"), w64


@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_a_right_product_passes(k: int, n: int) -> None:
    """Without an error both judgements are silent."""
    tensor, w64 = clean(k, n)
    assert judged(tensor.decoded(), w64, torch.float16, LOOSEST) == ((), ())


@pytest.mark.parametrize(("k", "n"), SHAPES)
@pytest.mark.parametrize(
    ("inject", "by_rows"),
    [
        (swapped_codes, False),
        (scaled_group, True),
        (neighbouring_scale, False),
        (dropped_group, True),
        (higher_zero_point, True),
        (sign_dragged_in, False),
    ],
)
def test_an_injected_error_is_seen(
    inject: Callable[[QuantTensor], torch.Tensor], k: int, n: int, *, by_rows: bool
) -> None:
    """E1, E2, E3, E4 and E8: one-hot rows see each of them; e sees those that touch a whole group."""
    tensor, w64 = clean(k, n)
    rows, columns = judged(inject(tensor), w64, torch.float16, LOOSEST)
    assert columns != ()
    assert rows != () or not by_rows
