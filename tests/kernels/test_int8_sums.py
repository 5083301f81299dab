"""The integer product of QQQ's portable path: exact sums, the step of a row, rows without or with odd values."""

from __future__ import annotations

import pytest
import torch

from quantfarm.declare.registry import implemented_records
from quantfarm.formats.config import parse
from quantfarm.formats.qqq import from_floats, read
from quantfarm.formats.weights.qqq import QQQWeight
from quantfarm.kernels.int8_mma_torch import backend

CPU = torch.device("cpu")
both_modes = pytest.mark.parametrize("size", [128, -1])


def _weight(k: int, n: int, size: int) -> QQQWeight:
    config = parse({"quant_method": "qqq", "bits": 4, "group_size": size}, source="config.json")
    return from_floats(torch.randn(n, k, generator=torch.Generator().manual_seed(0)), config)


@both_modes
@pytest.mark.parametrize("rows", [1, 17])
def test_sums_are_exact(size: int, rows: int) -> None:
    """Integer sums match int64 bit for bit over several chunks of K, also where every product is the largest."""
    weight = _weight(2304, 64, size)
    levels = torch.randint(-128, 128, (rows, 2304)).float()
    levels[0] = 127 * weight.integers()[:, 3].sign()
    expected = levels.to(torch.int64) @ weight.integers().to(torch.int64)
    found = backend.sums(levels, weight, 0, 64)
    assert found.dtype is torch.int32
    assert torch.equal(found.to(torch.int64), expected)
    assert torch.equal(backend.sums(levels, weight, 32, 64), found[:, 32:])


def test_the_largest_sum_of_a_chunk_is_exact() -> None:
    """Codes of the largest size against inputs of the largest size stay below 2^24 in every chunk."""
    config = parse({"quant_method": "qqq", "bits": 4, "group_size": -1}, source="config.json")
    stored = {"B": torch.full((128, 128), -0x77777778, dtype=torch.int32), "s_channel": torch.ones(1, 64)}
    weight = read(stored, config, module="m")
    assert bool((weight.integers() == -128).all())
    levels = torch.full((1, 2048), 127.0)
    assert bool((backend.sums(levels, weight, 0, 64) == -2048 * 127 * 128).all())
    levels[0, 5] = 126
    assert bool((backend.sums(levels, weight, 0, 64) == -2048 * 127 * 128 + 128).all())


@both_modes
def test_a_row_of_zeros_gives_the_bias(size: int) -> None:
    """A row of zeros is no 0/0: it gives exactly the bias, and the rows beside it are what they are alone."""
    weight = _weight(256, 64, size)
    prepared = backend.prepare(weight, CPU)
    x = torch.randn(3, 256).half()
    x[1] = 0
    bias = torch.randn(64)
    out = backend.run(prepared, x, bias)
    assert torch.equal(out[1], bias.half())
    assert torch.equal(out[2], backend.run(prepared, x[2:], bias)[0])
    assert torch.equal(backend.run(prepared, x, None)[1], torch.zeros(64).half())


def test_values_that_are_not_finite_stay_in_their_row() -> None:
    """An infinity or NaN in a row shows in all of that row and in no other."""
    prepared = backend.prepare(_weight(256, 64, 128), CPU)
    x = torch.randn(4, 256).half()
    clean = backend.run(prepared, x, None)
    x[1, 7], x[2, 9] = torch.inf, torch.nan
    out = backend.run(prepared, x, None)
    assert not torch.isfinite(out[1:3]).any()
    assert torch.equal(out[[0, 3]], clean[[0, 3]])


def test_inputs_are_rounded_per_row() -> None:
    """s1 = amax/127 and xq = clamp(round(x/s1)), half to even, rows apart, tiny rows included."""
    x = torch.tensor([[1.0, -2.0, 0.5, 127.0], [1e-30, -3e-30, 0.0, 2e-30], [2.5, 3.5, -2.5, 127.0]])
    levels, steps = backend.quantized(x)
    assert torch.equal(steps[0], torch.ones(1))
    assert torch.equal(levels, torch.tensor([[1.0, -2.0, 0.0, 127.0], [42, -127, 0, 85], [2, 4, -2, 127]]))


@pytest.mark.parametrize("k", [128, 256, 1024, 4096])
@pytest.mark.parametrize("size", [128, -1])
def test_r32_groups_of_different_size_keep_the_tolerance(k: int, size: int) -> None:
    """R32: scales that differ tenfold between groups are each used for their own group, for each declared pair."""
    (spec,) = (spec for spec in implemented_records() if spec.kernel == "int8_mma_torch")
    assert size in spec.accepts[0].group_sizes  # type: ignore[operator]
    loud = 10.0 ** (torch.arange(k) // 128 % 2)
    config = parse({"quant_method": "qqq", "bits": 4, "group_size": size}, source="config.json")
    weight = from_floats(torch.randn(64, k) * loud, config)
    x = torch.randn(5, k).half()
    levels, steps = backend.quantized(x)
    expected = (levels.double() * steps.double()) @ weight.decoded().double().t()
    out = backend.run(backend.prepare(weight, CPU), x, None)
    assert float((out.double() - expected).norm() / expected.norm()) <= spec.tolerance.cap["float16"]
