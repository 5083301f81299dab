"""The one rule that says which compiled code serves which device."""

from __future__ import annotations

import pytest

from quantfarm.declare.device import CPU_LEVELS, best_code, code_serves, parse_arch
from quantfarm.declare.names import DEVICE, BadType, UnknownName

ROUND_TRIP = ["sm_75", "sm_90a", "sm_100f", "sm_121", "gfx950", "gfx90a", "gfx1201", "xpu", "mps", *CPU_LEVELS]


@pytest.mark.parametrize("text", ROUND_TRIP)
def test_targets_print_as_they_are_read(text: str) -> None:
    """Parsing and printing are inverse for every spelling."""
    assert str(parse_arch(text)) == text


def test_dotted_capability() -> None:
    """A capability written with a dot means the CUDA target of that number."""
    assert str(parse_arch("9.0")) == "sm_90"
    assert parse_arch("12.1").family is DEVICE.CUDA


@pytest.mark.parametrize(("value", "error"), [("banana", UnknownName), ("sm_9", UnknownName), (9.0, BadType)])
def test_unknown_targets_are_refused(value: object, error: type[Exception]) -> None:
    """What is no target is an error that lists the spellings."""
    with pytest.raises(error):
        parse_arch(value)


@pytest.mark.parametrize(
    ("code", "device", "serves"),
    [
        ("sm_80", "sm_86", True),
        ("sm_80", "sm_87", True),
        ("sm_86", "sm_80", False),
        ("sm_89", "sm_90", False),
        ("sm_90a", "sm_90", True),
        ("sm_100a", "sm_103", False),
        ("sm_100f", "sm_103", True),
        ("gfx1201", "gfx1201", True),
        ("gfx1200", "gfx1201", False),
        ("sm_90", "gfx950", False),
        ("x86_64_avx2", "x86_64_avx512", True),
    ],
)
def test_code_serves_device(code: str, device: str, serves: bool) -> None:
    """R58: same major and not above serves; `a` code only exactly; AMD code only exactly."""
    assert code_serves(parse_arch(code), parse_arch(device)) is serves


def test_best_code_prefers_exact() -> None:
    """Exact `a` code wins, then the highest minor that serves, else nothing."""
    codes = tuple(parse_arch(c) for c in ("sm_80", "sm_86", "sm_90", "sm_90a"))
    assert str(best_code(codes, parse_arch("9.0"))) == "sm_90a"
    assert str(best_code(codes, parse_arch("8.9"))) == "sm_86"
    assert best_code(codes, parse_arch("10.0")) is None
