"""The list of field reports in the documents names tests that exist, and gives a reason where there is none."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "field-reports.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (R\d\d) \| [\w-]+ \| (.*) \|$", TEXT, re.MULTILINE)
COVERED = (
    1,
    2,
    4,
    5,
    7,
    8,
    10,
    11,
    13,
    14,
    16,
    17,
    19,
    20,
    22,
    23,
    25,
    26,
    28,
    29,
    31,
    32,
    44,
    46,
    61,
    62,
    64,
    65,
    67,
    68,
    70,
    71,
    73,
    74,
    86,
    88,
    89,
    91,
    92,
    94,
    95,
    97,
)


def test_every_report_of_these_kinds_has_a_row() -> None:
    """No report of the kinds is left out."""
    assert [name for name, _ in ROWS] == [f"R{number:02}" for number in COVERED]


def test_named_tests_exist() -> None:
    """Each test of a row is a function of its file; a row without one says why."""
    for name, where in ROWS:
        tests = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", where)
        assert tests or where.startswith("no test: "), name
        for path, function in tests:
            text = (ROOT / path).read_text(encoding="utf-8")
            assert not function or f"def {function}(" in text, f"{name}: {path}::{function}"
