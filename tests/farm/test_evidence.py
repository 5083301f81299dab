"""Evidence is checked when it is written and when it is read; a bad line is refused with file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import farm_records
import pytest

from farm import evidence
from farm.errors import EvidenceInvalid

CELL = farm_records.cell()
GOOD = json.loads(evidence.to_line(farm_records.record(CELL)))


def test_a_record_survives_writing_and_reading(tmp_path: Path) -> None:
    """Appended records come back equal, oldest first over all files."""
    late = farm_records.record(CELL, when={"end": "2026-12-02T00:00:00+00:00"})
    early = farm_records.record(CELL)
    evidence.append(tmp_path / "a.jsonl", late)
    evidence.append(tmp_path / "b.jsonl", early)
    assert evidence.read_all(tmp_path) == [early, late]


def test_appending_never_rewrites(tmp_path: Path) -> None:
    """A second record leaves the bytes of the first one as they are."""
    path = tmp_path / "run.jsonl"
    evidence.append(path, farm_records.record(CELL))
    before = path.read_bytes()
    evidence.append(path, farm_records.record(CELL))
    assert path.read_bytes().startswith(before)
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"file": {"wheels": [{"distribution": "quantfarm", "sha256": "zz"}]}}, "file.wheels.0: needs distribution"),
        ({"what": {"cell": "other@cpu#parity"}}, "what.cell: needs fast@cpu#parity, got other@cpu#parity"),
        ({"verdict": {"verdict": "great"}}, "verdict.verdict: needs one of pass"),
        ({"verdict": {"failure_class": "bad luck"}}, "verdict.failure_class"),
        ({"verdict": {"verdict": "untested", "reason": "tired"}}, "verdict.reason: needs one of no_runner"),
        ({"when": {"end": "yesterday"}}, "when.end: needs an ISO date"),
        ({"source": {"dirty": "no"}}, "source.dirty: needs bool, got str"),
        ({"outcome": {"run": True}}, "outcome.run: needs int, got bool"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, Any], says: str) -> None:
    """Each wrong value is refused on write, by group and field, with needed and found."""
    with pytest.raises(EvidenceInvalid) as caught:
        evidence.to_line(farm_records.record(CELL, **change))
    assert says in str(caught.value)


def test_a_missing_group_and_an_unknown_one_are_named() -> None:
    """A record may neither lack a group nor carry one that the schema does not know."""
    row = {name: value for name, value in GOOD.items() if name != "health"} | {"mood": {}}
    assert evidence.problems(row) == ["mood: unknown group", "health: needs a group, got none"]
    assert "edition" in evidence.problems({**GOOD, "edition": 99})[0]


def test_a_broken_line_is_refused_with_file_and_line(tmp_path: Path) -> None:
    """A line that is no JSON, and one with a forged checksum, name the file and the line."""
    path = tmp_path / "2026-12-01-abc-quick.jsonl"
    evidence.append(path, farm_records.record(CELL))
    with path.open("a") as stream:
        stream.write('{"half": \n')
    with pytest.raises(EvidenceInvalid, match=r"2026-12-01-abc-quick\.jsonl, line 2: no JSON"):
        evidence.read_all(tmp_path)
    forged = json.loads(json.dumps(GOOD))
    forged["file"]["wheels"][0]["sha256"] = "not a checksum"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(forged) + "\n")
    with pytest.raises(EvidenceInvalid, match="line 2: no valid record"):
        evidence.read_all(tmp_path)


def test_the_evidence_of_the_repository_is_valid() -> None:
    """Every checked-in line is a record of this schema."""
    from farm import places

    assert all(record.cell for record in evidence.read_all(places.EVIDENCE))
