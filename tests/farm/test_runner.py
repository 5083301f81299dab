"""What a runner makes of cells and of what children said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import farm_records
import pytest

from farm import declarations, health, matrix, places, runner
from farm.cells import Cell
from farm.child import Result
from farm.evidence import Record, problems, to_line
from farm.failure import Failure
from farm.recording import Context, record_of, untested

DECLARED = declarations.read()
LANES = {name: row.model_dump() for name, row in matrix.load(places.MATRIX).lanes.items()}
NATIVE = next(r for r in DECLARED["records"] if r["artifact"]["kind"] == "native")
WHEEL = {"distribution": "quantfarm", "name": "front.whl", "sha256": "a" * 64, "bytes": 1, "tag": "py3-none-any"}
BUILT: dict[str, Any] = {
    "wheels": [WHEEL],
    "commit": "c" * 40,
    "dirty": False,
    "constraints": "x",
    "compiler": "GNU 12",
    "versions": {"torch": "2.13.0"},
    "image": "none",
    "kernels": {r["kernel"]: "k" for r in DECLARED["records"]},
}
CONTEXT = Context(
    tier="quick",
    declarations=DECLARED,
    built=BUILT,
    bundle="t",
    lanes=LANES,
    torch="2.13.0",
    python="3.11",
    dependencies="d",
)


def cell(kind: str = "parity") -> Cell:
    """Return a cell of a declared native record."""
    made = farm_records.cell(kind, NATIVE["name"], "cpu-avx512")
    return Cell(**{**made.__dict__, "kernel": NATIVE["kernel"]})


def line(outcome: str, message: str = "", **figures: Any) -> dict[str, Any]:
    """Return what a child prints for one test."""
    return {"test": "t", "outcome": outcome, "message": message, "figures": figures, "seconds": 0.1}


def made(*lines: dict[str, Any], kind: str = "parity", failure: Failure | None = None) -> Record:
    """Return the record of a cell with these lines."""
    result = Result(cell=cell(kind), lines=list(lines), start="2026-12-01T00:00:00", end="2026-12-01T00:00:01")
    result.health, result.failure = {"steal": 0.0, "load": 0.1}, failure
    return record_of(result, CONTEXT)


def test_a_record_is_valid_evidence() -> None:
    """What a run writes passes the schema."""
    assert to_line(made(line("passed")))
    assert problems({"schema": "quantfarm-evidence", "edition": 1, **untested(cell(), CONTEXT).__dict__})


def test_a_skipped_test_is_no_pass() -> None:
    """A cell of which every test was skipped is untested with the code that the skip names."""
    verdict = made(line("skipped", "infra_failed: no model package")).verdict
    assert (verdict["verdict"], verdict["reason"]) == ("untested", "infra_failed")
    assert made().verdict["verdict"] == "untested"


def test_a_failure_keeps_its_class_and_first_sentence() -> None:
    """The verdict says fail, the class, and the line that the test printed."""
    record = made(line("passed"), line("failed", "E  over the limit"), failure=Failure("numeric", "over-limit"))
    assert record.verdict == {
        "verdict": "fail",
        "reason": "over-limit: over the limit",
        "failure_class": "numeric",
    }
    assert (record.outcome["run"], record.outcome["passed"]) == (2, 1)


def test_figures_keep_the_worst_and_the_limits() -> None:
    """Errors are joined per dtype by their maximum, comparisons are summed, the declared cap stands beside them."""
    first = {"bfloat16": {"e": 1e-3, "cases": 2}}
    second = {"bfloat16": {"e": 2e-3, "cases": 3}}
    figures = made(line("passed", errors=first), line("passed", errors=second, repeatability="bit-equal")).outcome[
        "figures"
    ]
    assert figures["errors"]["bfloat16"] == {"e": 2e-3, "cases": 5}
    assert figures["cap"] == NATIVE["tolerance"]["cap"]
    assert figures["repeatability"] == "bit-equal"


def test_a_machine_without_the_features_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """R59: a processor that lacks what lane or record need gets no job; the cell says what is lacking."""
    order = runner.Order(
        cells=[], tier="quick", settings={}, lanes=LANES, declarations=DECLARED, built=BUILT, out=Path("x")
    )
    monkeypatch.setattr(health, "cpu_features", lambda: frozenset(["x86_64", "avx2", "fma", "f16c"]))
    placed = runner._placed(cell(), order)
    assert placed.reason == "no_runner"
    assert "avx512_bf16" in placed.note
    monkeypatch.setattr(health, "cpu_features", lambda: frozenset(LANES["cpu-avx512"]["capabilities"]))
    assert runner._placed(cell(), order) == cell()


def test_no_run_writes_into_the_file_of_another(tmp_path: Path) -> None:
    """The second run of a day, commit and tier gets a number."""
    first = runner.evidence_path(tmp_path, "2026-12-01", "abc", "quick")
    assert first.name == "2026-12-01-abc-quick.jsonl"
    first.touch()
    assert runner.evidence_path(tmp_path, "2026-12-01", "abc", "quick").name == "2026-12-01-abc-quick-2.jsonl"
