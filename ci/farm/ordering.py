"""What a run is told, made where the source tree is; and how a run ends. Needs the heavy packages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

from farm import build, declarations, matrix, page, places, plan, presence, runner, source, view
from farm.cells import pick
from farm.errors import CellsFailed, PlanInvalid, RunnerLost
from farm.evidence import Record
from farm.wheel import Wheel

Say = Callable[[str], None]


def make(tier: str, pattern: str = "*", lane: str = "") -> runner.Order:
    """Plan, check the wheels by their checksums, read them once more, and put it all into plain data.

    Raises:
        PlanInvalid: no cell has this id.
        BuildFailed: nothing was built.
        WheelDiffers: a file in dist/ is not the one that was built; nothing is installed then.
    """
    rules, declared = matrix.load(places.MATRIX), declarations.read()
    cells = plan.cells(rules, declared, tier)
    chosen = [cell for cell in pick(cells, pattern) if lane in ("", cell.lane)]
    if not chosen:
        near = [cell.id for cell in cells if pattern.split("@", maxsplit=1)[0] in cell.id][:8]
        raise PlanInvalid(f"cannot run {pattern}: no such cell", lines=near, remedy="python -m farm plan")
    built = build.read()
    wheels = [Wheel(places.DIST / row["name"]) for row in built.wheels]
    report = presence.inspect(wheels, declared, rules)
    lanes = {name: row.model_dump() for name, row in rules.lanes.items()}
    date = datetime.now(timezone.utc).date().isoformat()
    return runner.Order(
        cells=chosen,
        tier=tier,
        settings=rules.tiers[tier].model_dump(),
        lanes=lanes,
        declarations=declared,
        built=built.record,
        presence={
            f"{cell.record}@{cell.lane}": [str(f) for f in report.of_record(cell.record, lanes[cell.lane]["archs"])]
            for cell in chosen
        },
        proofs={
            f"{cell.record}@{cell.lane}": [
                f"{arch}: {proof}"
                for (record, arch), proof in report.present.items()
                if record == cell.record and arch in ("python", *lanes[cell.lane]["archs"])
            ]
            for cell in chosen
        },
        out=runner.evidence_path(places.EVIDENCE, date, source.Source(built.record["commit"], dirty=False).short, tier),
    )


def conclude(order: runner.Order, records: Sequence[Record], say: Say) -> None:
    """Print counts and what failed.

    Raises:
        RunnerLost: cells failed by infrastructure only.
        CellsFailed: any other cell failed.
    """
    counts = Counter(record.verdict["verdict"] for record in records)
    say(f"evidence: {order.out.relative_to(places.ROOT)}" if order.out.exists() else "evidence: none, no cell ran")
    say("verdicts: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    states = view.view(page.sources(with_wheels=True))["counts"]
    say("cells by state: " + ", ".join(f"{name} {count}" for name, count in states.items()))
    bad = [r for r in records if r.verdict["verdict"] in ("fail", "error", "timeout")]
    lines = _causes(bad)
    if bad and all(r.verdict["failure_class"] == "infrastructure" for r in bad):
        raise RunnerLost(
            "the machine failed, not the product", lines=lines, remedy="run the same cells on another machine"
        )
    if bad:
        raise CellsFailed(f"{len(bad)} cells failed", lines=lines, remedy="the commands above repeat them")


def _causes(bad: Sequence[Record]) -> list[str]:
    """Return one line a cause with its cells and the command that repeats the first of them."""
    cells: dict[str, list[Record]] = {}
    for record in bad:
        cells.setdefault(f"{record.verdict['failure_class']}: {record.verdict['reason']}", []).append(record)
    return [
        f"{cause}\n    {', '.join(record.cell for record in group)}\n    {group[0].when['reproduce']}"
        for cause, group in cells.items()
    ]
