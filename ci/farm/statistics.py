"""Paired timings: median of log ratios, bootstrap interval, A/A noise, verdicts. Numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

DRAWS = 2000
SEED = 20260801
EFFECT = 0.03
"""A slowdown below 3 percent is never flagged; the noise of the run may raise this floor."""


@dataclass(frozen=True)
class Ratio:
    """Time of the subject over time of the other, per round and paired: below 1 means the subject is faster."""

    median: float
    low: float
    high: float
    rounds: int

    def as_json(self) -> dict[str, Any]:
        """Return the fields, rounded to what the interval supports."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def paired_ratio(subject: Sequence[float], other: Sequence[float], draws: int = DRAWS) -> Ratio:
    """Return the median paired ratio with its bootstrap 95 % interval over rounds.

    Raises:
        ValueError: unequal or empty samples, or a time that is not positive.
    """
    a, b = np.asarray(subject, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if a.shape != b.shape or a.size == 0:
        raise ValueError(f"paired samples: needs two equal lists of rounds, got {a.size} and {b.size}")
    if not ((a > 0).all() and (b > 0).all()):
        raise ValueError("paired samples: needs positive times")
    logs = np.log(a / b)
    picks = np.random.default_rng(SEED).integers(0, logs.size, size=(draws, logs.size))
    low, high = np.quantile(np.median(logs[picks], axis=1), [0.025, 0.975])
    return Ratio(float(np.exp(np.median(logs))), float(np.exp(low)), float(np.exp(high)), int(logs.size))


def noise(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the noise floor of a run: how far from 1 the interval of the A/A pair reaches."""
    ratio = paired_ratio(first, second)
    return float(max(abs(np.log(ratio.low)), abs(np.log(ratio.high))))


def threshold(epsilon: float) -> float:
    """Return the ratio from which a slowdown counts: 1 + max(0.03, 3 * noise)."""
    return 1.0 + max(EFFECT, 3.0 * epsilon)


def gate(new: Sequence[float], old: Sequence[float], epsilon: float, *, fewest: int = 8) -> str:
    """Return ``faster``, ``same``, ``slower`` or ``insufficient`` for a candidate against its base in one run.

    One-sided: an improvement is never a failure. ``insufficient``: too few rounds, or an interval wider than
    the effect sought, so that neither pass nor fail can be said.
    """
    if len(new) < fewest or len(new) != len(old):
        return "insufficient"
    ratio = paired_ratio(new, old)
    limit = threshold(epsilon)
    if ratio.low > limit:
        return "slower"
    if ratio.high < 1.0:
        return "faster"
    if np.log(ratio.high) - np.log(ratio.low) > 2.0 * np.log(limit):
        return "insufficient"
    return "same"


def detectable(epsilon: float, ratio: Ratio) -> float:
    """Return the smallest slowdown, as a fraction, that this run could have shown."""
    half = (np.log(ratio.high) - np.log(ratio.low)) / 2.0
    return float(np.expm1(np.log(threshold(epsilon)) + half))


def false_discoveries(p_values: Mapping[str, float], q: float = 0.05) -> list[str]:
    """Return the names that Benjamini-Hochberg rejects at rate q."""
    order = sorted(p_values, key=lambda name: p_values[name])
    passing = [i for i, name in enumerate(order, 1) if p_values[name] <= q * i / len(order)]
    return order[: max(passing, default=0)]


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Return median, p10 and p90 of times in microseconds."""
    p10, median, p90 = np.quantile(np.asarray(samples, dtype=np.float64), [0.1, 0.5, 0.9])
    return {"median_us": round(float(median), 2), "p10_us": round(float(p10), 2), "p90_us": round(float(p90), 2)}


def drop_rounds(rounds: Sequence[Sequence[float]], steal: Sequence[float], limit: float = 0.01) -> list[list[float]]:
    """Return the rounds in which the hypervisor took at most ``limit`` of the processor's time."""
    return [list(row) for row, share in zip(rounds, steal, strict=True) if share <= limit]
