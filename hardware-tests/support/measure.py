"""Errors against float64 and the verdict by the declared tolerance: e <= 1.25 e0 + floor and e <= cap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Doubles = npt.NDArray[np.float64]
_DIGITS = {"float16": 10, "bfloat16": 7, "float32": 23}
_SMALLEST = {"float16": -14, "bfloat16": -126, "float32": -126}
ROUNDING = {"float16": 2.1e-4, "bfloat16": 1.7e-3, "float32": 3e-8}
"""Relative error of nothing but rounding normal data to the dtype."""

FP32_SUM = 2e-6
"""Relative error that an fp32 accumulation may have (the cap of fp32 activations)."""


@dataclass(frozen=True)
class Errors:
    """Relative Frobenius error, the worst row of it, the worst element by row and column norms, non-finite count."""

    e: float
    e_row_max: float
    e_scaled_max: float
    nonfinite: int


def double(tensor: torch.Tensor) -> Doubles:
    """Return a tensor as float64."""
    result: Doubles = tensor.detach().to(torch.float64).numpy()
    return result


def expected(x: torch.Tensor, w64: Doubles, bias: torch.Tensor | None = None) -> Doubles:
    """Return x W^T + bias in float64 from the values that x and bias really hold."""
    result = double(x) @ w64.T
    return result if bias is None else result + double(bias)


def errors(actual: torch.Tensor, wanted: Doubles, x: torch.Tensor, w64: Doubles) -> Errors:
    """Compare a result with float64."""
    got = double(actual)
    bad = int((~np.isfinite(got)).sum())
    difference = np.nan_to_num(got, nan=0.0, posinf=0.0, neginf=0.0) - wanted
    rows = np.linalg.norm(difference, axis=1) / np.maximum(np.linalg.norm(wanted, axis=1), 1e-300)
    scale = np.linalg.norm(double(x), axis=1)[:, None] * _row_norms(w64)[None, :]
    return Errors(
        e=float(np.linalg.norm(difference) / max(np.linalg.norm(wanted), 1e-300)),
        e_row_max=float(rows.max()),
        e_scaled_max=float((np.abs(difference) / np.maximum(scale, 1e-300)).max()),
        nonfinite=bad,
    )


@dataclass(frozen=True)
class Dense:
    """The error of torch's dense product in the dtype of x, and the norm of the exact one, both by row and squared."""

    error: Doubles
    norm: Doubles

    def over(self, rows: int) -> float:
        """Return e0 of the first rows."""
        return float(np.sqrt(self.error[:rows].sum() / max(self.norm[:rows].sum(), 1e-300)))


def dense(x: torch.Tensor, w64: Doubles) -> Dense:
    """Return the dense product's errors for each row of x."""
    wanted = expected(x, w64)
    got = double(torch.nn.functional.linear(x, _narrowed(w64, x.dtype)))
    return Dense(np.square(got - wanted).sum(axis=1), np.square(wanted).sum(axis=1))


def dense_error(x: torch.Tensor, w64: Doubles) -> float:
    """Return e0: the error of torch's dense product in the dtype of x."""
    return dense(x, w64).over(x.shape[0])


_KEPT: dict[str, tuple[Doubles, Any, Any]] = {}


def _once(name: str, w64: Doubles, key: Any, make: Callable[[], Any]) -> Any:
    """Return what was made last under this name when it was made from this very array; a test asks many times."""
    kept = _KEPT.get(name)
    if kept is None or kept[0] is not w64 or kept[1] != key:
        kept = _KEPT[name] = (w64, key, make())
    return kept[2]


def _narrowed(w64: Doubles, dtype: torch.dtype) -> torch.Tensor:
    narrowed: torch.Tensor = _once("narrowed", w64, dtype, lambda: torch.from_numpy(w64).to(dtype))
    return narrowed


def _row_norms(w64: Doubles) -> Doubles:
    norms: Doubles = _once("norms", w64, None, lambda: np.linalg.norm(w64, axis=1))
    return norms


def problems(found: Errors, e0: float, record: Mapping[str, Any], dtype: str) -> list[str]:
    """Return why a result is not close enough; empty means within the declared tolerance."""
    limit, cap = 1.25 * e0 + record["tolerance"]["floor"][dtype], record["tolerance"]["cap"][dtype]
    wrong = [f"non-finite outputs: {found.nonfinite}"] if found.nonfinite else []
    if found.e > limit:
        wrong.append(f"over the limit: e={found.e:.3e} > limit {limit:.3e} (e0={e0:.3e})")
    if found.e > cap:
        wrong.append(f"e={found.e:.3e} exceeds the cap {cap:.1e}")
    return wrong


def ulps(actual: torch.Tensor, wanted: Doubles, dtype: str, *, whole_rows: bool = False) -> float:
    """Return the largest distance in units of the last place of the dtype at the wanted value.

    With ``whole_rows`` at the largest value of its row, for results that are sums of many terms; fp32 sums then
    have sixteen such units, since each term is rounded.
    """
    size = np.abs(wanted).max(axis=-1, keepdims=True) if whole_rows else np.abs(wanted)
    size = size * (16.0 if whole_rows and dtype == "float32" else 1.0)
    exponent = np.floor(np.log2(np.maximum(size, 2.0 ** _SMALLEST[dtype])))
    unit = np.exp2(np.maximum(exponent, _SMALLEST[dtype]) - _DIGITS[dtype])
    return float((np.abs(double(actual) - wanted) / unit).max())


def note(figures: dict[str, Any], dtype: str, found: Errors, e0: float) -> None:
    """Keep the worst figures per dtype for the record."""
    worst = figures.setdefault("errors", {}).setdefault(dtype, {"cases": 0})
    worst["cases"] += 1
    values = {"e": found.e, "e_over_e0": found.e / max(e0, 1e-12), "e_row_max": found.e_row_max}
    values |= {"e_scaled_max": found.e_scaled_max, "nonfinite": found.nonfinite}
    for name, value in values.items():
        worst[name] = max(worst.get(name, 0.0), value)
