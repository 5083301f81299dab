"""matrix.yaml is checked as a whole: every mistake at once, with its line."""

from __future__ import annotations

import pytest

from farm import matrix, places
from farm.errors import PlanInvalid

TEXT = places.MATRIX.read_text(encoding="utf-8")


def mistakes(text: str) -> str:
    """Return the message about a spoiled file."""
    with pytest.raises(PlanInvalid) as caught:
        matrix.parse(text, "matrix.yaml")
    assert caught.value.exit_code == 10
    return str(caught.value)


def line_of(text: str, part: str) -> int:
    """Return the line that holds a part of the text."""
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


def test_the_checked_in_file_is_valid() -> None:
    """The file of the repository has lanes for all columns, and the local ones say what they force."""
    found = matrix.load(places.MATRIX)
    assert {"h200", "cpu-avx512", "cpu-avx2", "mlx-linux", "cuda-other", "rocm", "apple"} <= set(found.lanes)
    assert "not an AVX2-only CPU" in found.lanes["cpu-avx2"].note
    assert [name for name, lane in found.lanes.items() if lane.runner == "local"] == ["cpu-avx512", "cpu-avx2"]


def test_every_mistake_is_reported_at_once_with_its_line() -> None:
    """An unknown key, a missing reason, a wrong type and an unknown tier stand in one message."""
    text = TEXT.replace("    exclusive: true", "    exklusive: true", 1)
    text = text.replace("    reason: a record without", "    note: a record without")
    text = text.replace("budget_s: 600", "budget_s: soon")
    message = mistakes(text)
    assert f"line {line_of(text, 'exklusive')}: lanes.h200.exklusive: unknown key 'exklusive'" in message
    assert "exclusions.0.reason: needs a value, got none" in message
    assert f"line {line_of(text, 'soon')}: tiers.quick.budget_s" in message
    assert "5 mistakes" in message
    assert message.splitlines()[-1].startswith("compare with the schema")


def test_a_name_that_does_not_exist_is_found() -> None:
    """A lane of an unknown tier and an exclusion of an unknown lane say the known names and the line."""
    text = TEXT.replace("tier: nightly", "tier: nightli", 1).replace("lanes: [cpu-avx2]", "lanes: [cpu-avx3]", 1)
    message = mistakes(text)
    assert f"line {line_of(text, 'nightli')}: lanes.h200.tier: 'nightli' is unknown; known: quick" in message
    assert "exclusions.0.lanes: 'cpu-avx3' is unknown" in message


def test_an_exclusion_needs_a_sentence() -> None:
    """An empty or one-word reason is refused."""
    reason = next(line for line in TEXT.splitlines() if "reason: a record" in line)
    assert "exclusions.0.reason" in mistakes(TEXT.replace(reason, "    reason: slow"))


def test_a_doubled_key_is_refused() -> None:
    """YAML would take the last one silently."""
    assert "schema" in mistakes(TEXT + "\nschema: 1\n")


def test_the_schema_is_exported() -> None:
    """The JSON Schema forbids unknown keys and demands a reason of every exclusion."""
    schema = matrix.schema()
    assert schema["additionalProperties"] is False
    assert "reason" in schema["$defs"]["Exclusion"]["required"]
