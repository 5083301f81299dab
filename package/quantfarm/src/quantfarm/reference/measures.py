"""The float64 product, how far a result is from it, and whether that is within a declared tolerance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from quantfarm.reference.stored import Floats, Tensor, as_numpy

_DENSE_FACTOR = 1.25
"""A kernel may err this much more than the dense product in the same dtype (numerics, section 6)."""


@dataclass(frozen=True, kw_only=True)
class ErrorFigures:
    """The distance of ``actual`` from ``expected``.

    Attributes:
        e: ||actual - expected||_F / ||expected||_F; infinite when a value is not finite.
        e_row_max: the largest such ratio of one row.
        e_scaled_max: max |actual - expected| / (||x_row|| * ||w_row||), or None when x and W were not given.
        nonfinite: how many values of ``actual`` are not finite where ``expected`` is.
    """

    e: float
    e_row_max: float
    e_scaled_max: float | None
    nonfinite: int


def linear(x64: Tensor, w64: Tensor, bias64: Tensor | None = None) -> Floats:
    """Return ``x W^T + bias`` in float64: x [..., K], W [N, K], bias [N] -> [..., N]."""
    product: Floats = _float64(x64) @ _float64(w64).T
    return product if bias64 is None else product + _float64(bias64)


def errors(actual: Tensor, expected: Tensor, x: Tensor | None = None, w: Tensor | None = None) -> ErrorFigures:
    """Measure ``actual`` [..., N] against ``expected`` of the same shape.

    With x [..., K] and W [N, K] the scaled figure is measured too.

    Raises:
        ValueError: the shapes differ.
    """
    y, ref = _float64(actual), _float64(expected)
    if y.shape != ref.shape:
        raise ValueError(f"shape: needs {ref.shape}, got {y.shape}")
    y, ref = y.reshape(-1, y.shape[-1]), ref.reshape(-1, ref.shape[-1])
    nonfinite = int((~np.isfinite(y) & np.isfinite(ref)).sum())
    if nonfinite:
        scaled = None if x is None or w is None else float("inf")
        return ErrorFigures(e=float("inf"), e_row_max=float("inf"), e_scaled_max=scaled, nonfinite=nonfinite)
    off = y - ref
    rows = [_ratio(a, b) for a, b in zip(off, ref, strict=True)]
    return ErrorFigures(
        e=_ratio(off, ref), e_row_max=max(rows, default=0.0), e_scaled_max=_scaled(off, x, w), nonfinite=0
    )


def dense_error(x: torch.Tensor, w64: Tensor, dtype: torch.dtype) -> float:
    """Return e0, the error of the dense product ``x W^T`` with x and W in ``dtype`` against float64.

    ``x`` is narrowed to ``dtype`` first and the float64 product takes the narrowed x, as a kernel gets it.
    """
    narrow = x.to(dtype)
    weight = torch.from_numpy(np.ascontiguousarray(_float64(w64))).to(device=narrow.device, dtype=dtype)
    return errors(narrow @ weight.t(), linear(narrow, w64)).e


def verdict(figures: ErrorFigures, e0: float, cap: float, floor: float) -> tuple[str, ...]:
    """Return a sentence for each broken rule; empty means pass: e <= 1.25*e0 + floor, e <= cap, all finite."""
    broken = []
    if figures.nonfinite:
        broken.append(f"non-finite values: needs 0, got {figures.nonfinite}")
    limit = _DENSE_FACTOR * e0 + floor
    if not figures.e <= limit:
        broken.append(f"e: needs {limit:.3e} ({_DENSE_FACTOR} * e0 {e0:.3e} + floor {floor:.1e}), got {figures.e:.3e}")
    if not figures.e <= cap:
        broken.append(f"e: needs the cap {cap:.1e}, got {figures.e:.3e}")
    return tuple(broken)


def column_verdict(actual: torch.Tensor, expected: Tensor) -> tuple[str, ...]:
    """Judge the results of one-hot rows: each value within 1 ulp of the reference, in the dtype of ``actual``.

    This is the rule that shows a wrong layout or a single wrong scale, which e may not see (numerics, section 6).
    """
    worst = ulps(actual, expected)
    return () if worst <= 1 else (f"one-hot rows: needs 1 ulp, got {worst}",)


def ulps(actual: torch.Tensor, expected: Tensor) -> int:
    """Return the largest distance in representable values of ``actual``'s dtype.

    A value that is not finite where the reference is counts as 2^63 - 1.
    """
    if not actual.numel():
        return 0
    wanted = torch.from_numpy(np.ascontiguousarray(_float64(expected))).to(actual.dtype)
    if not bool((torch.isfinite(actual.cpu()) | ~torch.isfinite(wanted)).all()):
        return int(np.iinfo(np.int64).max)
    return int(np.abs(_ordinal(actual) - _ordinal(wanted)).max())


def _ordinal(tensor: torch.Tensor) -> npt.NDArray[np.int64]:
    """Number the representable values in their order, so that neighbours differ by one and both zeros are 0."""
    size = tensor.element_size()
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    raw = tensor.detach().cpu().contiguous().view(kind).numpy().astype(np.int64)
    magnitude = raw & ((1 << (size * 8 - 1)) - 1)
    return np.where(raw < 0, -magnitude, magnitude)


def _scaled(off: Floats, x: Tensor | None, w: Tensor | None) -> float | None:
    if x is None or w is None:
        return None
    inputs = _float64(x)
    lengths = np.linalg.norm(inputs.reshape(-1, inputs.shape[-1]), axis=1)[:, None]
    span = lengths * np.linalg.norm(_float64(w), axis=1)[None, :]
    size = np.abs(off)
    ratio = np.where(size == 0, 0.0, size / np.where(span == 0, np.finfo(np.float64).tiny, span))
    return float(ratio.max(initial=0.0))


def _ratio(off: Floats, ref: Floats) -> float:
    distance, length = float(np.linalg.norm(off)), float(np.linalg.norm(ref))
    if distance == 0:
        return 0.0
    return distance / length if length else float("inf")


def _float64(tensor: Tensor) -> Floats:
    return as_numpy(tensor).astype(np.float64)
