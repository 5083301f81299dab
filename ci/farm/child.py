"""One child process for a group of cells: it streams lines, the parent keeps time and survives its crashes."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from farm import health
from farm.cells import Cell
from farm.environment import Environment
from farm.failure import Failure, classify

_POLL = 0.2
_TAIL = 4000


@dataclass
class Result:
    """What came of one cell: its lines (one a test), when, how healthy the machine was, and how it broke."""

    cell: Cell
    lines: list[dict[str, Any]] = field(default_factory=list)
    start: str = ""
    end: str = ""
    health: dict[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    timed_out: bool = False
    log: str = ""


@dataclass(frozen=True)
class Work:
    """Where and how children run: environment, folder of the test bundle, working folder, limit in seconds a cell."""

    environment: Environment
    bundle: Path
    folder: Path
    limit: float


def run_group(
    cells: Sequence[Cell], plan: Mapping[str, Any], variables: Mapping[str, str], work: Work
) -> Iterator[Result]:
    """Run the cells in child processes and yield each result as it is complete.

    A child that dies or hangs costs the cell it was working on; the cells after it get a fresh child.
    """
    left = list(cells)
    while left:
        taken = 0
        for result in _one_child(left, plan, variables, work):
            taken += 1
            yield result
        left = left[taken:] if taken else []


def _one_child(
    cells: Sequence[Cell], plan: Mapping[str, Any], variables: Mapping[str, str], work: Work
) -> Iterator[Result]:
    """Run one child; results come in the order of the cells, the last one may be a broken one."""
    work.folder.mkdir(parents=True, exist_ok=True)
    results, log = work.folder / "results.jsonl", work.folder / "log.txt"
    results.write_bytes(b"")
    plan_file = work.folder / "plan.json"
    plan_file.write_text(json.dumps({**plan, "cells": [cell.as_json() for cell in cells]}), encoding="utf-8")
    command = [str(work.environment.python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-c", "hardware-tests/pytest.ini", f"--plan={plan_file}", f"--results={results}", "hardware-tests"]
    with (
        log.open("wb") as stream,
        subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, cwd=work.bundle, env=dict(variables)
        ) as process,
    ):
        yield from _follow(process, cells, _Reader(results), log, work.limit)


class _Reader:
    """Yields the complete lines that a growing file has gained since the last look."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0

    def lines(self) -> list[dict[str, Any]]:
        """Return the new complete lines, decoded."""
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def _follow(
    process: subprocess.Popen[bytes], cells: Sequence[Cell], reader: _Reader, log: Path, limit: float
) -> Iterator[Result]:
    waiting = list(cells)
    current, began, progress = _begin(waiting[0]), time.monotonic(), time.monotonic()
    ticks = health.ticks()
    try:
        while True:
            alive = process.poll() is None
            for line in reader.lines():
                progress = time.monotonic()
                if line["event"] == "test":
                    current.lines.append(line)
                elif line["event"] == "done":
                    yield _finish(current, ticks)
                    waiting.pop(0)
                    if not waiting:
                        process.wait()
                        return
                    current, began, ticks = _begin(waiting[0]), time.monotonic(), health.ticks()
            over = time.monotonic() - began > limit
            if over and alive:
                process.kill()
                process.wait()
            if over or not alive:
                timing = (over, time.monotonic() - progress < limit / 2)
                yield _broken(current, ticks, log, process.returncode or 0, timing)
                # A child that never reached its first test would die the same way for every cell.
                for cell in waiting[1:] if not reader.offset and not over else ():
                    yield _broken(_begin(cell), ticks, log, process.returncode or 0, timing)
                return
            time.sleep(_POLL)
    finally:
        # Also when the parent stops listening: nobody waits for a child whose time is over.
        if process.poll() is None:
            process.kill()


def _begin(cell: Cell) -> Result:
    return Result(cell=cell, start=now())


def _finish(result: Result, ticks: tuple[int, int]) -> Result:
    result.end, result.health = now(), health.between(ticks, health.ticks())
    failed = [line for line in result.lines if line["outcome"] == "failed"]
    if failed:
        result.log = "\n".join(line["message"] for line in failed)[-_TAIL:]
        result.failure = classify(result.log)
    return result


def _broken(result: Result, ticks: tuple[int, int], log: Path, code: int, timing: tuple[bool, bool]) -> Result:
    _finish(result, ticks)
    result.timed_out = timing[0]
    result.log = log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
    result.failure = classify(result.log, returncode=code, timed_out=timing[0], progressing=timing[1])
    return result


def now() -> str:
    """Return the time in UTC, ISO, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def clean_variables(bundle: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a child: nothing of a source tree, no switches but the lane's."""
    drop = ("PYTHON", "QUANTFARM_", "VIRTUAL_ENV", "PYTEST_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    return {**kept, "PYTHONPATH": str(bundle), "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", **extra}
