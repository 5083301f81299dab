"""8-bit codes over torch's int8 product: declared weights, hard inputs, and sums that are exact integers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_cases import CPU, Shape, dense, dtypes_of, error, verdict, weight

from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.kernels.int8_channels import backend
from quantfarm.kernels.int8_channels.spec import GPTQ

SIZES = (-1, 16, 32, 64, 128)


def run(tensor: QuantTensor, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Prepare and multiply."""
    return backend.run(backend.prepare(tensor, CPU), x, bias)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_declared_weight_multiplies_within_tolerance(data: st.DataObject) -> None:
    """Short last groups, odd K and N, orders, rows on both sides of the limit, dtypes and biases keep the tolerance."""
    size = data.draw(st.sampled_from(SIZES))
    shape = Shape(
        k=data.draw(st.integers(1, 300)),
        n=data.draw(st.integers(1, 80)),
        bits=8,
        group_size=size,
        sym=data.draw(st.booleans()),
        act_order=data.draw(st.booleans()) and size != -1,
        scale_dtype=data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32])),
    )
    tensor = weight(shape)
    dtype = data.draw(st.sampled_from(dtypes_of(GPTQ)))
    source = torch.Generator().manual_seed(shape.k)
    x = torch.randn(data.draw(st.sampled_from([1, 2, 8, 17, 40])), shape.k, generator=source).to(dtype)
    bias = torch.randn(shape.n, generator=source) if data.draw(st.booleans()) else None
    verdict(GPTQ, run(tensor, x, bias), x, dense(tensor), bias)


@pytest.mark.parametrize("size", SIZES)
def test_one_hot_rows_give_the_weight(size: int) -> None:
    """X = identity gives each decoded value within one rounding of the activation dtype, with an order too."""
    tensor = weight(Shape(k=96, n=24, bits=8, group_size=size, act_order=size != -1))
    for dtype in dtypes_of(GPTQ):
        eye = torch.eye(96, dtype=dtype)
        out = torch.cat([run(tensor, part) for part in eye.split(8)])
        limit = dense(tensor).abs() * torch.finfo(dtype).eps + 1e-30
        assert bool(((out.double() - dense(tensor)).abs() <= limit).all())


@pytest.mark.parametrize("scale", [1.0, 2.0**-90, 2.0**90])
def test_outliers_and_ranges_cost_no_bits(scale: float) -> None:
    """Values 2^-12 of a group's largest count, constant rows cancel, and fp32 x may lie near the ends of its range."""
    source = torch.Generator().manual_seed(0)
    tensor = weight(Shape(k=512, n=96, bits=8, group_size=128))
    x = torch.randn(5, 512, generator=source) * torch.where(torch.rand(5, 512, generator=source) < 0.01, 4096.0, 1.0)
    for wide in (x * scale, torch.full((5, 512), 3.0 * scale)):
        verdict(GPTQ, run(tensor, wide), wide, dense(tensor))


def test_a_long_row_stays_inside_the_integers() -> None:
    """One group of 70000 inputs of the largest codes is summed in parts that no int32 overflows."""
    tensor = weight(Shape(k=70000, n=3, bits=8, group_size=-1))
    assert tensor.codes is not None
    tensor = replace(tensor, codes=torch.full_like(tensor.codes, -1), zeros=torch.zeros_like(tensor.zeros))
    x = torch.full((1, 70000), 1.0)
    assert error(run(tensor, x), x.double() @ dense(tensor)) < 1e-6


@pytest.mark.parametrize(("k", "size"), [(1, -1), (1, 16), (33, 32), (129, 128)])
def test_groups_of_one_input_are_right(k: int, size: int) -> None:
    """A weight of one input, or a last group of one, is multiplied as any other: torch's operator has a fault there."""
    tensor = weight(Shape(k=k, n=7, bits=8, group_size=size))
    x = torch.randn(3, k)
    assert error(run(tensor, x), x.double() @ dense(tensor)) < 1e-6


def test_not_finite_rows_are_apart() -> None:
    """A row with an infinity gives what IEEE arithmetic gives; the rows beside it keep their bits."""
    tensor = weight(Shape(bits=8, sym=True))
    x = torch.randn(3, 256)
    clean = run(tensor, x)
    x[1, 7] = float("inf")
    out = run(tensor, x)
    assert bool(torch.isinf(out[1][dense(tensor)[7] != 0]).all())
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


def test_codes_elsewhere_are_refused() -> None:
    """Preparing without codes on the processor is an error with both sides."""
    with pytest.raises(ValueError, match="needs canonical codes on cpu, got none"):
        backend.prepare(weight(Shape(bits=8)).without_codes(), CPU)
