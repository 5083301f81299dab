"""The arithmetic contract of every implemented record: one float64 answer, whatever the rows, strides and bias."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from every_record import CASES, DECLARED, IDS, build, rows
from support import measure
from support.cases import Case

from quantfarm.declare.spec import KernelSpec

MANY = 64
"""Rows that an error is measured over, so that the rounding of one value does not decide."""

EVERY = pytest.mark.parametrize(("spec", "case"), CASES, ids=IDS)


def normal(case: Case, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return x [count, K]."""
    return torch.randn(count, case.k, generator=torch.Generator().manual_seed(5)).to(dtype)


@EVERY
def test_products_are_within_the_declared_tolerance(spec: KernelSpec, case: Case) -> None:
    """In each dtype of the record many rows at once and one at a time are as close to float64 as it declares."""
    weight, layer = build(spec, case)
    w64 = weight.dense()
    for name in spec.activations:
        x = normal(case, MANY, getattr(torch, name))
        wanted = measure.expected(weight.inputs(x), w64, weight.bias)
        e0 = measure.dense_error(x, w64)
        with torch.no_grad():
            for actual in (layer(x), torch.cat([layer(row.unsqueeze(0)) for row in x])):
                assert actual.dtype == x.dtype
                found = measure.errors(actual, wanted, x, w64)
                assert not measure.problems(found, e0, DECLARED[spec.name], name)


@EVERY
def test_r31_a_bias_is_added_once_and_before_the_rounding(spec: KernelSpec, case: Case) -> None:
    """R31: x = 0 gives exactly the bias; a wide bias that cancels the product leaves the rest of an fp32 sum."""
    weight, layer = build(spec, case)
    dtype = getattr(torch, spec.activations[0])
    with torch.no_grad():
        for bias in (torch.full((case.n,), 1000.0), torch.full((case.n,), 1000.0, dtype=dtype)):
            assert torch.equal(
                layer.compute(torch.zeros(2, case.k, dtype=dtype), bias).float(), bias.expand(2, -1).float()
            )
        assert not layer.compute(torch.zeros(2, case.k, dtype=dtype), None).any()
        x = normal(case, 1, dtype)
        product = measure.expected(weight.inputs(x), weight.dense())
        bias = torch.from_numpy(-product[0] * (1.0 - 2.0**-12)).to(torch.float32)
        rest = measure.expected(weight.inputs(x), weight.dense(), bias)
        error = np.abs(measure.double(layer.compute(x, bias)) - rest).max() / np.abs(product).max()
    assert error <= max(0.5 * measure.ROUNDING[spec.activations[0]], measure.FP32_SUM)


@EVERY
def test_leading_dimensions_strides_and_no_rows(spec: KernelSpec, case: Case) -> None:
    """One dimension, three, none of the rows, and rows apart from each other: the same values in the same shape."""
    _, layer = build(spec, case)
    x = rows(case).repeat(2, 1)
    with torch.no_grad():
        whole = layer(x)
        assert torch.equal(layer(x.view(2, 3, -1)), whole.view(2, 3, -1))
        assert layer(x[0]).shape == (case.n,)
        assert layer(x[:0]).shape == (0, case.n)
        assert layer(x.view(2, 3, -1)[:, :0]).shape == (2, 0, case.n)
        apart = torch.stack([x, x + 1], dim=-1)[..., 0]
        assert not apart.is_contiguous()
        assert torch.equal(layer(apart), whole)
        assert torch.equal(layer(x.t().contiguous().t()), whole)


@EVERY
def test_r44_autocast_changes_nothing(spec: KernelSpec, case: Case) -> None:
    """R44: the output has the dtype of x, and the values of a call without autocast."""
    _, layer = build(spec, case)
    for name in spec.activations:
        x = normal(case, 3, getattr(torch, name))
        with torch.no_grad():
            plain = layer(x)
            with torch.autocast("cpu", torch.bfloat16):
                inside = layer(x)
        assert inside.dtype == x.dtype
        assert torch.equal(inside, plain)


@EVERY
def test_the_same_call_gives_the_same_bits(spec: KernelSpec, case: Case) -> None:
    """Twenty calls of one input are bit-equal, and the launch counter counts each of them."""
    from support.layers import backend_of

    _, layer = build(spec, case)
    x = normal(case, 5, getattr(torch, case.dtype))
    before = backend_of(spec).calls()
    with torch.no_grad():
        first = layer(x)
        assert all(torch.equal(layer(x), first) for _ in range(19))
    assert backend_of(spec).calls() - before == 20


@EVERY
def test_r29_partial_sums_above_the_range_of_fp16_stay_finite(spec: KernelSpec, case: Case) -> None:
    """R29: half of K adds up to 90000, which fp16 can not hold, the other half takes it away; about 100 is left."""
    if "float16" not in spec.activations:
        pytest.skip("the record takes no fp16")
    weight, layer = build(spec, replace(case, k=1024, dtype="float16"))
    row = weight.dense()[0]
    sign = np.where(row < 0, -1.0, 1.0)
    lower, upper = np.abs(row[:512]).sum(), np.abs(row[512:]).sum()
    x = np.concatenate([sign[:512] * 90000 / lower, -sign[512:] * 89900 / upper])
    assert np.abs(x).max() < 60000
    given = torch.from_numpy(x).to(torch.float16).unsqueeze(0)
    wanted = measure.expected(weight.inputs(given), weight.dense())[0, 0]
    with torch.no_grad():
        actual = float(layer.compute(given, None)[0, 0])
    # What 16 bits of activation leave of such a sum; an fp16 sum would be infinite.
    assert abs(actual - wanted) <= 90000 * 2.0**-15 + abs(wanted) * 2.0**-10
