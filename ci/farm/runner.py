"""Run cells from finished wheels: clean environment, child processes, one evidence line a cell. Light set only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from farm import bundle as bundles
from farm import child, environment, evidence, health, places
from farm.cells import Cell
from farm.errors import PlanInvalid
from farm.failure import Failure
from farm.recording import Context, record_of, untested
from farm.wheel import Wheel

Say = Callable[[str], None]
NUMBERS = ("load", "refusal", "identity", "parity")
GROUPS = (NUMBERS, ("throughput",), ("model",))
"""Kinds that share a child: speed and whole models get processes of their own."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Everything a runner is told; all of it is plain data, so it travels as JSON.

    Attributes:
        cells: the plan, those that will not run included.
        tier: name and settings of the tier.
        lanes: lane name to its row of the matrix.
        declarations: those the plan was made from.
        built: what dist/build.json holds.
        presence: outcomes of the presence gate, record@lane to a list of findings; made where the wheels were built.
        proofs: record@lane to what was found in the wheel.
        out: the evidence file.
    """

    cells: Sequence[Cell]
    tier: str
    settings: Mapping[str, Any]
    lanes: Mapping[str, Mapping[str, Any]]
    declarations: Mapping[str, Any]
    built: Mapping[str, Any]
    presence: Mapping[str, list[str]] = field(default_factory=dict)
    proofs: Mapping[str, list[str]] = field(default_factory=dict)
    out: Path


def run(order: Order, say: Say) -> list[evidence.Record]:
    """Run what can run, write a record for each cell as it ends, and return the records."""
    started = time.monotonic()
    cells = [_placed(cell, order) for cell in order.cells]
    todo = [cell for cell in cells if cell.runs]
    wheels = [Wheel(places.DIST / row["name"]) for row in order.built["wheels"]]
    room = environment.make(wheels, say)
    tests = bundles.make()
    variables = child.clean_variables(tests.folder, {})
    installed = environment.installed_declarations(room, variables)
    if installed != dict(order.declarations):
        raise PlanInvalid(
            "cannot run the plan: the installed wheel declares other facts than the source tree",
            remedy="python -m farm build",
        )
    context = _context(order, room, tests)
    ready, records = time.monotonic(), []
    for result in _results(todo, order, (room, tests), say):
        record = record_of(result, context)
        evidence.append(order.out, record)
        records.append(record)
        say(_line(len(records), len(todo), record, time.monotonic() - started))
        if time.monotonic() - ready > order.settings["budget_s"]:
            say(f"the tier's {order.settings['budget_s']} s are used up; the other cells stay untested (no_budget)")
            break
    ran = {record.cell for record in records}
    late = [
        replace(cell, reason="no_budget", note="the tier's time was used up") for cell in todo if cell.id not in ran
    ]
    return records + [untested(cell, context) for cell in [*late, *(cell for cell in cells if not cell.runs)]]


def _placed(cell: Cell, order: Order) -> Cell:
    """Take a cell off the plan when this machine lacks what its lane and its record need."""
    if not cell.runs:
        return cell
    record = next(r for r in order.declarations["records"] if r["name"] == cell.record)
    lacking = health.lacking([*order.lanes[cell.lane]["capabilities"], *record["cpu_features"]])
    if not lacking:
        return cell
    return replace(cell, reason="no_runner", note=f"this machine lacks {', '.join(lacking)}")


def _context(order: Order, room: environment.Environment, tests: bundles.Bundle) -> Context:
    script = "import torch, sys; print(torch.__version__); print(sys.version.split()[0])"
    torch_version, python = environment.ask(room, ["-c", script], child.clean_variables(tests.folder, {})).split()
    return Context(
        tier=order.tier,
        declarations=order.declarations,
        built=order.built,
        bundle=tests.sha256,
        lanes=order.lanes,
        torch=torch_version,
        python=python,
        dependencies=room.dependencies,
    )


def _results(
    todo: Sequence[Cell], order: Order, prepared: tuple[environment.Environment, bundles.Bundle], say: Say
) -> Iterator[child.Result]:
    """Yield a result for every cell: presence first, then lane by lane and group by group, within the budget."""
    room, tests = prepared
    for cell in (c for c in todo if c.kind == "presence"):
        yield _presence(cell, order)
    work = child.Work(room, tests.folder, places.WORK / "child", float(order.settings["cell_limit_s"]))
    for lane in order.lanes:
        for kinds in GROUPS:
            group = [cell for cell in todo if cell.lane == lane and cell.kind in kinds]
            if not group:
                continue
            say(f"lane {lane}: {', '.join(kinds)} ({len(group)} cells)")
            plan = _plan_for(lane, order, tests, say if "model" in kinds else None)
            variables = child.clean_variables(tests.folder, order.lanes[lane]["environment"])
            yield from child.run_group(group, plan, variables, work)


def _plan_for(lane: str, order: Order, tests: bundles.Bundle, say: Say | None) -> dict[str, Any]:
    model = environment.model_folder(say) if say else None
    return {
        "lane": lane,
        "lane_row": dict(order.lanes[lane]),
        "tier": dict(order.settings),
        "records": list(order.declarations["records"]),
        "data": str(tests.folder / "data"),
        "model": str(model or ""),
        "scratch": str(places.WORK / "scratch" / order.built["wheels"][0]["sha256"][:16]),
    }


def _presence(cell: Cell, order: Order) -> child.Result:
    key = f"{cell.record}@{cell.lane}"
    started = health.ticks()
    result = child.Result(cell=cell, start=child.now(), end=child.now())
    result.health = health.between(started, health.ticks())
    wrong = order.presence.get(key, [])
    result.lines = [
        {
            "test": "presence",
            "outcome": "failed" if wrong else "passed",
            "message": "\n".join(wrong),
            "figures": {"found": order.proofs.get(key, [])},
        }
    ]
    if wrong:
        result.failure = Failure("product", "missing-kernel")
    return result


def _line(done: int, total: int, record: evidence.Record, seconds: float) -> str:
    verdict, outcome = record.verdict, record.outcome
    why = f"  {verdict['failure_class']}: {verdict['reason']}" if verdict["failure_class"] else ""
    counted = f"{outcome['passed']}/{outcome['run']} tests"
    return f"[{done:3}/{total} {seconds:5.0f} s] {verdict['verdict']:7} {record.cell}  {counted}{why}"


def evidence_path(folder: Path, date: str, commit: str, tier: str) -> Path:
    """Return a file name that no earlier run has: date, commit, tier, and a number from the second run on."""
    stem = f"{date}-{commit}-{tier}"
    path, number = folder / f"{stem}.jsonl", 2
    while path.exists():
        path, number = folder / f"{stem}-{number}.jsonl", number + 1
    return path
