"""The judgement of a product by the measures of the reference, as a parity test makes it."""

from __future__ import annotations

import functools

import numpy as np
import torch

from quantfarm import reference
from quantfarm.declare.spec import Tolerance


def judged(
    w: torch.Tensor, w64: np.ndarray, dtype: torch.dtype, tolerance: Tolerance
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the verdict on random rows and on one-hot rows of a product of W [N, K] fp32 with one rounding."""
    x = rows_of(w.shape[1], dtype)
    figures = reference.errors((x.to(torch.float32) @ w.t()).to(dtype), reference.linear(x, w64))
    name = str(dtype).removeprefix("torch.")
    limits = {"cap": tolerance.cap[name], "floor": tolerance.floor[name]}
    rows = reference.verdict(figures, reference.dense_error(x, w64, dtype), **limits)
    # A one-hot row gives one column of W, rounded once.
    return rows, reference.column_verdict(w.t().to(dtype), w64.T)


@functools.cache
def rows_of(k: int, dtype: torch.dtype) -> torch.Tensor:
    """Return 17 rows of normal numbers."""
    return torch.randn(17, k, generator=torch.Generator().manual_seed(5)).to(dtype)
