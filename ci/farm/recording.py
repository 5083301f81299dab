"""From what a child printed to an evidence record. Standard library and the light half of the farm only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farm import declarations as facts
from farm import health
from farm.cells import REASONS, Cell
from farm.child import Result, now
from farm.evidence import Record

_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Context:
    """What is the same for every record of a run."""

    tier: str
    declarations: Mapping[str, Any]
    built: Mapping[str, Any]
    bundle: str
    lanes: Mapping[str, Mapping[str, Any]]
    torch: str
    python: str
    dependencies: str


def record_of(result: Result, context: Context) -> Record:
    """Return the record of one finished or broken cell."""
    failed = [line for line in result.lines if line["outcome"] == "failed"]
    skipped = [f"{line['test']}: {line['message']}" for line in result.lines if line["outcome"] == "skipped"]
    passed = sum(line["outcome"] == "passed" for line in result.lines)
    outcome = {
        "run": len(result.lines) - len(skipped),
        "passed": passed,
        "skipped": skipped,
        "failures": [f"{line['test']}: {line['message']}" for line in failed][:_SHOWN],
        "figures": figures(result.lines, _declared(context, result.cell)),
    }
    return _record(result.cell, context, outcome, _verdict(result, passed), result)


def untested(cell: Cell, context: Context) -> Record:
    """Return the record of a cell that did not run; it is not written, since nothing was seen."""
    result = Result(cell=cell, start=now(), end=now(), health={"steal": "", "load": ""})
    outcome: dict[str, Any] = {"run": 0, "passed": 0, "skipped": [], "failures": [], "figures": {}}
    verdict = {"verdict": "untested", "reason": cell.reason, "failure_class": ""}
    return _record(cell, context, outcome, verdict, result)


def _declared(context: Context, cell: Cell) -> Mapping[str, Any]:
    return next(dict(r) for r in context.declarations["records"] if r["name"] == cell.record)


def _verdict(result: Result, passed: int) -> dict[str, str]:
    """A cell passes when at least one test ran and none failed: a skipped test is no pass."""
    if result.failure is not None:
        name = "timeout" if result.timed_out else "fail"
        if not any(line["outcome"] == "failed" for line in result.lines) and not result.timed_out:
            name = "error"
        first = next((line["message"] for line in result.lines if line["outcome"] == "failed"), result.log)
        reason = f"{result.failure.member}: {_last_line(first)}"
        return {"verdict": name, "reason": reason, "failure_class": result.failure.kind}
    if not passed:
        reasons = [line["message"] for line in result.lines if line["outcome"] == "skipped"]
        code = next((r.split(":")[0] for r in reasons if r.split(":")[0] in REASONS), "not_yet")
        return {"verdict": "untested", "reason": code, "failure_class": ""}
    name = "refused" if result.cell.kind == "refusal" and not result.cell.accepted else "pass"
    return {"verdict": name, "reason": "", "failure_class": ""}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line.removeprefix("E ").strip() for line in lines if line.startswith("E ")]
    return (marked or lines or [""])[-1][:300]


def figures(lines: list[dict[str, Any]], record: Mapping[str, Any]) -> dict[str, Any]:
    """Join the figures of a cell's tests: the worst of each error per dtype, plain values as they are."""
    joined: dict[str, Any] = {}
    worst: dict[str, dict[str, float]] = {}
    for line in lines:
        for name, value in line.get("figures", {}).items():
            if name == "errors":
                _take_worst(worst, value)
            elif name != "speed":
                joined[name] = value
    if worst:
        joined["errors"] = worst
        joined["derivation"] = record["tolerance"]["derivation"]
        joined["cap"] = record["tolerance"]["cap"]
        joined["floor"] = record["tolerance"]["floor"]
    return joined


def _take_worst(worst: dict[str, dict[str, float]], found: Mapping[str, Mapping[str, float]]) -> None:
    for dtype, errors in found.items():
        into = worst.setdefault(dtype, {})
        for name, value in errors.items():
            into[name] = into.get(name, 0.0) + value if name == "cases" else max(into.get(name, 0.0), value)


def _record(
    cell: Cell, context: Context, outcome: Mapping[str, Any], verdict: Mapping[str, str], result: Result
) -> Record:
    speed: Mapping[str, Any] = next(
        (line["figures"]["speed"] for line in result.lines if "speed" in line.get("figures", {})), {}
    )
    lane = context.lanes[cell.lane]
    isa = lane["environment"].get("QUANTFARM_CPU_ISA", "auto")
    return Record(
        what=_what(cell, context),
        file={"wheels": [dict(row) for row in context.built["wheels"]], "bundle": context.bundle},
        source={name: context.built[name] for name in ("commit", "dirty", "constraints")},
        build={
            "compiler": context.built["compiler"],
            "torch": context.built["versions"]["torch"],
            "image": context.built["image"],
            "versions": context.built["versions"],
        },
        device={**health.device(), "isa": isa, "mark": lane["note"] if lane["environment"] else ""},
        software={
            **health.software(),
            "torch": context.torch,
            "python": context.python,
            "dependencies": context.dependencies,
        },
        health=result.health,
        outcome=outcome,
        speed=speed,
        verdict=verdict,
        when={
            "runner": lane["runner"],
            "origin": "project",
            "attempt": 1,
            "start": result.start,
            "end": result.end,
            "signer": "",
            "network": "none needed while cells run",
            "seconds": _seconds(result),
            "reproduce": f"python -m farm run --tier {context.tier} --cell '{cell.id}'",
        },
    )


def _seconds(result: Result) -> float:
    return round(float(sum(line.get("seconds", 0.0) for line in result.lines)), 2)


def _what(cell: Cell, context: Context) -> dict[str, Any]:
    return {
        "cell": cell.id,
        "record": cell.record,
        "lane": cell.lane,
        "kind": cell.kind,
        "kernel": cell.kernel,
        "kernel_hash": context.built["kernels"][cell.kernel],
        "tier": context.tier,
        "declarations": facts.digest(context.declarations),
    }
