"""A child that crashes or hangs costs one cell; everything before and after it has its result."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import farm_records
import pytest

from farm import child
from farm.environment import Environment

CONFTEST = """
import json, os, time

def pytest_addoption(parser):
    parser.addoption("--plan")
    parser.addoption("--results")

def pytest_sessionstart(session):
    plan = json.load(open(session.config.getoption("--plan")))
    if plan.get("stillborn"):
        os._exit(3)
    with open(session.config.getoption("--results"), "a") as out:
        for cell in plan["cells"]:
            if cell["record"] == "crash":
                os.abort()
            if cell["record"] == "hang":
                time.sleep(60)
            outcome = "failed" if cell["record"] == "wrong" else "passed"
            message = "over the limit: e=1 > limit 0" if outcome == "failed" else ""
            line = {"event": "test", "cell": cell["id"], "test": "t", "outcome": outcome, "message": message}
            out.write(json.dumps(line) + "\\n" + json.dumps({"event": "done", "cell": cell["id"]}) + "\\n")
            out.flush()
    os._exit(0)
"""


@pytest.fixture
def work(tmp_path: Path) -> child.Work:
    """Return a bundle whose tests do what the record's name says."""
    (tmp_path / "hardware-tests").mkdir()
    (tmp_path / "hardware-tests" / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "hardware-tests" / "conftest.py").write_text(CONFTEST)
    home = tmp_path / "env" / "bin"
    home.mkdir(parents=True)
    (home / "python").symlink_to(sys.executable)
    return child.Work(Environment(tmp_path / "env", "none"), tmp_path, tmp_path / "child", limit=60.0)


def run(work: child.Work, *names: str, **plan: bool) -> dict[str, child.Result]:
    """Run one cell for each record name."""
    cells = [farm_records.cell(record=name) for name in names]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return {result.cell.record: result for result in child.run_group(cells, plan, variables, work)}


def test_a_crash_loses_one_cell(work: child.Work) -> None:
    """Cells before and after a crash pass; the crashed one is a fault of the product with the signal's name."""
    found = run(work, "a", "crash", "b")
    assert [name for name, result in found.items() if result.failure is None] == ["a", "b"]
    failure = found["crash"].failure
    assert failure is not None
    assert (failure.kind, failure.member) == ("product", "abort")


def test_a_hang_is_ended_at_the_limit(work: child.Work) -> None:
    """A silent child is killed by its parent, and the next cell gets a fresh one."""
    # Long enough for a child to start on a busy machine, so that only the hang meets the limit.
    found = run(replace(work, limit=8.0), "hang", "a")
    assert found["hang"].timed_out
    assert found["a"].failure is None


def test_a_failed_test_is_a_failed_cell(work: child.Work) -> None:
    """The class comes from the test's own message."""
    failure = run(work, "wrong")["wrong"].failure
    assert failure is not None
    assert failure.kind == "numeric"


def test_a_child_that_never_starts_fails_every_cell_once(work: child.Work) -> None:
    """A broken start is not tried again for each cell."""
    found = run(work, "a", "b", "c", stillborn=True)
    assert [result.failure is not None for result in found.values()] == [True, True, True]


def test_children_see_no_source_tree_and_no_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths and switches of the caller do not reach a child; the lane's do."""
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    monkeypatch.setenv("QUANTFARM_STRICT", "1")
    found = child.clean_variables(tmp_path, {"QUANTFARM_CPU_ISA": "avx2"})
    assert found["PYTHONPATH"] == str(tmp_path)
    assert {name for name in found if name.startswith("QUANTFARM_")} == {"QUANTFARM_CPU_ISA"}
