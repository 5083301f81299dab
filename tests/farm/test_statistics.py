"""The speed gate finds what is there, stays silent about noise, and says when it can not tell."""

from __future__ import annotations

import numpy as np
import pytest

from farm import statistics as stats


def rounds(seed: int, factor: float, spread: float, count: int = 15) -> tuple[list[float], list[float], float]:
    """Return new and old times and the noise of an A/A pair, with slow drift shared by all candidates."""
    rng = np.random.default_rng(seed)
    drift = 100.0 * np.exp(rng.normal(0.0, 0.1, count))
    draw = [drift * np.exp(rng.normal(0.0, spread, count)) for _ in range(4)]
    return list(draw[0] * factor), list(draw[1]), stats.noise(list(draw[2]), list(draw[3]))


def test_a_five_percent_slowdown_is_found() -> None:
    """Seeded: 5 % slower under 0.6 % noise and 10 % drift is flagged, in every of 20 runs."""
    assert [stats.gate(*rounds(seed, 1.05, 0.006)) for seed in range(20)] == ["slower"] * 20


def test_twenty_runs_of_the_same_code_raise_no_alarm() -> None:
    """R79: A/A with 1 % and with 25 % spread never says slower."""
    for spread in (0.01, 0.25):
        assert "slower" not in [stats.gate(*rounds(100 + seed, 1.0, spread)) for seed in range(20)]


def test_a_ten_percent_slowdown_in_a_quiet_shape_is_found() -> None:
    """R79: a real 10 % in a quiet shape is flagged though a noisy shape would hide it."""
    assert stats.gate(*rounds(7, 1.10, 0.01)) == "slower"


def test_an_improvement_is_never_a_failure() -> None:
    """One-sided: faster code is called faster."""
    assert stats.gate(*rounds(3, 0.8, 0.01)) == "faster"


def test_too_little_data_is_neither_pass_nor_fail() -> None:
    """R79: few rounds, and an interval wider than the effect sought, are insufficient."""
    new, old, epsilon = rounds(5, 1.0, 0.01, count=5)
    assert stats.gate(new, old, epsilon) == "insufficient"
    wild = rounds(6, 1.0, 0.3)
    assert stats.gate(wild[0], wild[1], 0.0) == "insufficient"
    assert stats.gate([], [], 0.0) == "insufficient"


def test_the_interval_covers_the_truth() -> None:
    """Over 200 seeded runs the 95 % interval of the median ratio holds the true ratio in at least 88 %."""
    held = 0
    for seed in range(200):
        new, old, _ = rounds(seed, 1.2, 0.02)
        ratio = stats.paired_ratio(new, old, draws=400)
        held += ratio.low <= 1.2 <= ratio.high
    assert held >= 176


def test_pairing_removes_what_both_share() -> None:
    """Drift that hits both candidates alike leaves the ratio exact."""
    drift = np.geomspace(50, 500, 15)
    ratio = stats.paired_ratio(list(drift * 1.25), list(drift))
    assert ratio.low == pytest.approx(1.25)
    assert ratio.high == pytest.approx(1.25)


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0, 2.0]), ([], []), ([0.0], [1.0])])
def test_bad_samples_are_refused(a: list[float], b: list[float]) -> None:
    """Unpaired, empty and non-positive samples give an error, not a number."""
    with pytest.raises(ValueError, match="paired samples"):
        stats.paired_ratio(a, b)


def test_rounds_with_stolen_time_are_dropped() -> None:
    """A round in which the hypervisor took more than 1 % does not count; all of them may go."""
    assert stats.drop_rounds([[1.0], [2.0]], [0.0, 0.5]) == [[1.0]]
    assert stats.drop_rounds([[1.0], [2.0]], [0.2, 0.5]) == []


def test_false_discoveries_are_bounded() -> None:
    """Benjamini-Hochberg against the worked example of its step-up rule."""
    p = {"a": 0.001, "b": 0.008, "c": 0.039, "d": 0.041, "e": 0.6}
    assert stats.false_discoveries(p) == ["a", "b"]
    assert stats.false_discoveries({}) == []


def test_the_detectable_effect_is_never_below_the_threshold() -> None:
    """What a run could have shown is at least the floor of 3 percent."""
    new, old, epsilon = rounds(9, 1.0, 0.01)
    assert stats.detectable(epsilon, stats.paired_ratio(new, old)) >= stats.EFFECT
