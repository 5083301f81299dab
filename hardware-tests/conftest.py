"""How the tests meet the farm: a plan comes in, one line a test goes out, cells end one after another.

By hand, without a plan: every record of the installed wheel on this machine, in the quick amounts.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from support.job import Job, jobs_of
from support.layers import launches_by_level

from quantfarm.runtime.instruction_set import force
from quantfarm.select.host import read_settings

_FIGURES = pytest.StashKey[dict[str, Any]]()
_JOB = pytest.StashKey[Job]()
_STREAM = pytest.StashKey["Stream"]()


class Stream:
    """The results file: lines are complete once written, and cells end in the order of the plan."""

    def __init__(self, path: Path | None, order: list[str], counts: Counter[str]) -> None:
        self.path, self.order, self.left = path, order, counts
        self.close_finished()

    def write(self, line: dict[str, Any]) -> None:
        """Append one line."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")

    def close_finished(self) -> None:
        """Say of every leading cell without tests left that it is done."""
        while self.order and not self.left[self.order[0]]:
            self.write({"event": "done", "cell": self.order.pop(0)})

    def test_ended(self, cell: str, line: dict[str, Any]) -> None:
        """Write a test's line, and the end of its cell when it was the last."""
        self.write({"event": "test", "cell": cell, **line})
        self.left[cell] -= 1
        self.close_finished()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two files of the farm."""
    parser.addoption("--plan", type=Path, help="JSON of the cells to run")
    parser.addoption("--results", type=Path, help="file that gets one JSON line a test")


def pytest_sessionstart() -> None:
    """Force the code path that the lane's environment asks for, as loading a model does."""
    force(read_settings(os.environ).cpu_isa)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test the jobs of its folder's kind, and each job the cases that its module names for the test."""
    if "job" not in metafunc.fixturenames:
        return
    kind = Path(str(metafunc.module.__file__)).parent.name
    jobs = [job for job in jobs_of(metafunc.config.getoption("--plan")) if job.kind == kind]
    if "case" not in metafunc.fixturenames:
        metafunc.parametrize("job", jobs, ids=lambda job: job.cell)
        return
    pairs = [(job, case) for job in jobs for case in metafunc.module.cases(job, metafunc.function.__name__)]
    metafunc.parametrize(("job", "case"), pairs, ids=[f"{job.cell}-{case}" for job, case in pairs])


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Order the tests by cell and case, so that a cell ends before the next begins."""
    jobs = jobs_of(session.config.getoption("--plan"))
    order = [job.cell for job in jobs]
    # A test without jobs or cases of its kind is handed in with an empty parameter: nothing to run.
    items[:] = [item for item in items if isinstance(item.callspec.params["job"], Job)]  # type: ignore[attr-defined]
    for item in items:
        item.stash[_JOB] = item.callspec.params["job"]  # type: ignore[attr-defined]
    items.sort(key=lambda item: (order.index(item.stash[_JOB].cell), _case_key(item)))
    counts = Counter(item.stash[_JOB].cell for item in items)
    session.stash[_STREAM] = Stream(session.config.getoption("--results"), order, counts)


def _case_key(item: pytest.Item) -> str:
    return str(item.callspec.params.get("case", ""))  # type: ignore[attr-defined]


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a test measured; it goes into the record, whether the test passes or not."""
    return request.node.stash.setdefault(_FIGURES, {})  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def on_the_lane_s_path(job: Job, figures: dict[str, Any]) -> Generator[None]:
    """Fail any test whose native launches ran on another instruction set than the lane stands for.

    A number or a time that another code path produced is no evidence for this lane.
    """
    before = launches_by_level(job.record)
    yield
    after = launches_by_level(job.record)
    grown = {level: after[level] - before[level] for level in after if after[level] != before[level]}
    stands_for = job.lane_row["archs"]
    strangers = [level for level in grown if stands_for and level not in stands_for]
    if grown:
        figures["launches_by_level"] = grown
    assert not strangers, f"another code path ran: needs {' or '.join(stands_for)}, got {', '.join(strangers)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run one test and write its line."""
    reports: list[pytest.TestReport] = []
    item.stash[_REPORTS] = reports
    started = time.monotonic()
    result = yield
    worst = next((r for r in reports if r.failed), None) or next((r for r in reports if r.skipped), None)
    item.session.stash[_STREAM].test_ended(
        item.stash[_JOB].cell,
        {
            "test": item.name,
            "outcome": worst.outcome if worst else "passed",
            "message": _message(worst) if worst else "",
            "figures": item.stash.get(_FIGURES, {}),
            "seconds": round(time.monotonic() - started, 3),
        },
    )
    return result


_REPORTS = pytest.StashKey[list[pytest.TestReport]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the reports of the three phases of a test."""
    report = yield
    item.stash[_REPORTS].append(report)
    return report


def _message(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return (crash.message if crash else report.longreprtext)[-3000:]
