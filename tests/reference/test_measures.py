"""Error figures, ulps and the verdict follow their definitions, at the edges too."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from quantfarm import reference


def figures(e: float, nonfinite: int = 0) -> reference.ErrorFigures:
    """Return figures with one e."""
    return reference.ErrorFigures(e=e, e_row_max=e, e_scaled_max=None, nonfinite=nonfinite)


def test_figures_by_hand() -> None:
    """The figure e is a ratio of Frobenius norms; the others take the worst row and the lengths of x and W rows."""
    expected = np.array([[3.0, 4.0], [0.0, 5.0]])
    actual = expected + np.array([[0.0, 0.0], [0.0, 0.5]])
    found = reference.errors(actual, expected, x=np.eye(2), w=np.diag([2.0, 4.0]))
    assert found.e == pytest.approx(0.5 / math.sqrt(50))
    assert found.e_row_max == pytest.approx(0.1)
    assert found.e_scaled_max == pytest.approx(0.5 / 4)
    assert found.nonfinite == 0


def test_edges_of_the_figures() -> None:
    """No rows and equal zeros are no error; anything against zeros is infinite; shapes must agree."""
    assert reference.errors(np.zeros((0, 3)), np.zeros((0, 3))).e == 0
    assert reference.errors(np.zeros((2, 3)), np.zeros((2, 3))).e_row_max == 0
    assert reference.errors(np.ones((2, 3)), np.zeros((2, 3))).e == math.inf
    with pytest.raises(ValueError, match=r"shape: needs \(2, 3\), got \(3, 2\)"):
        reference.errors(np.ones((3, 2)), np.ones((2, 3)))


def test_a_value_that_is_not_finite_fails() -> None:
    """One NaN or infinity where the reference is finite is counted and fails under any tolerance."""
    found = reference.errors(torch.tensor([[1.0, math.nan, math.inf]]), np.ones((1, 3)))
    assert found.nonfinite == 2
    assert any("needs 0, got 2" in line for line in reference.verdict(found, e0=1.0, cap=1.0, floor=1.0))
    assert reference.ulps(torch.tensor([math.nan]), np.ones(1)) > 2**62


def test_the_verdict_needs_both_limits() -> None:
    """Pass is e <= 1.25*e0 + floor and e <= cap; each broken rule says both numbers."""
    assert reference.verdict(figures(2e-4), e0=1e-4, cap=5e-4, floor=1e-4) == ()
    (relative,) = reference.verdict(figures(3e-4), e0=1e-4, cap=5e-4, floor=1e-4)
    assert "needs 2.250e-04" in relative
    assert "got 3.000e-04" in relative
    (cap,) = reference.verdict(figures(6e-4), e0=1e-3, cap=5e-4, floor=0)
    assert "cap 5.0e-04" in cap
    assert len(reference.verdict(figures(math.nan), e0=1e-3, cap=5e-4, floor=0)) == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_ulps_count_representable_values(dtype: torch.dtype) -> None:
    """Neighbours are 1 apart, across zero too, and both zeros are the same value."""
    one = torch.tensor([1.0], dtype=dtype)
    up = torch.nextafter(one, torch.tensor([2.0], dtype=dtype))
    assert reference.ulps(up, one) == 1
    tiny = torch.nextafter(torch.zeros(1, dtype=dtype), one)
    assert reference.ulps(tiny, -tiny) == 2
    assert reference.ulps(torch.zeros(1, dtype=dtype), np.array([-0.0])) == 0
    assert reference.ulps(torch.zeros(0, dtype=dtype), np.zeros(0)) == 0
    assert reference.column_verdict(up, one) == ()
    twice = torch.nextafter(up, torch.tensor([2.0], dtype=dtype))
    assert reference.column_verdict(twice, one) == ("one-hot rows: needs 1 ulp, got 2",)
    assert reference.column_verdict(torch.tensor([1.5], dtype=dtype), one) != ()


def test_the_dense_error_is_that_of_the_dtype() -> None:
    """The dense error is the rounding of operands and result: about 3e-4 in fp16, 2e-3 in bf16, 1e-7 in fp32."""
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(16, 256, generator=generator), torch.randn(64, 256, generator=generator).numpy()
    for dtype, low, high in ((torch.float16, 1e-4, 6e-4), (torch.bfloat16, 1e-3, 5e-3), (torch.float32, 1e-9, 1e-6)):
        assert low < reference.dense_error(x, w, dtype) < high


def test_the_product_is_float64_and_keeps_leading_dimensions() -> None:
    """The product is x W^T + bias in float64 for any operand dtype."""
    x, w = torch.ones(2, 3, 4, dtype=torch.bfloat16), torch.full((5, 4), 0.25, dtype=torch.float16)
    y = reference.linear(x, w, torch.full((5,), 2.0))
    assert y.shape == (2, 3, 5)
    assert y.dtype == np.float64
    assert bool((y == 3.0).all())
