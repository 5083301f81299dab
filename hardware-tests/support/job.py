"""A job: one cell as a test sees it, with the record that the installed wheel declares."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantfarm.declare import export

_BY_HAND: dict[str, Any] = {
    "shapes": ["192x576", "24x104"],
    "thorough": False,
    "rows": [1, 8, 17],
    "bench_shapes": ["1024x1024"],
    "bench_rows": [1],
    "rounds": 9,
    "cold_bytes": 50_000_000,
    "repeats": 20,
}
_DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
_KINDS = ("load", "refusal", "identity", "parity", "throughput")


@dataclass(frozen=True)
class Job:
    """One cell to run.

    Attributes:
        cell, kind, lane: the cell's id, its kind, the lane's name.
        record: the declared facts of its record.
        tier: amounts: shapes, rows, rounds.
        lane_row: the lane's facts, such as its archs and environment.
        data: folder with real checkpoints.
        model: folder of the package with a whole model, or empty.
        scratch: folder for files of a test.
    """

    cell: str
    kind: str
    lane: str
    record: Mapping[str, Any] = field(hash=False)
    tier: Mapping[str, Any] = field(hash=False)
    lane_row: Mapping[str, Any] = field(hash=False)
    data: str
    model: str
    scratch: str

    @property
    def backend(self) -> str:
        """The name users ask for."""
        return str(self.record["backend"])

    def __str__(self) -> str:
        """Return the cell's id."""
        return self.cell


@functools.cache
def jobs_of(plan: Path | None) -> tuple[Job, ...]:
    """Return the jobs of a plan; without one, every record of this wheel on this machine."""
    declared = {record["name"]: record for record in export.export()["records"]}
    if plan is None:
        lane = {"archs": [], "environment": {}}
        return tuple(
            Job(f"{name}@here#{kind}", kind, "here", record, _BY_HAND, lane, str(_DATA), "", "")
            for name, record in declared.items()
            if record["implemented"]
            for kind in _KINDS
        )
    told = json.loads(plan.read_text(encoding="utf-8"))
    return tuple(
        Job(
            cell=cell["id"],
            kind=cell["kind"],
            lane=cell["lane"],
            record=declared[cell["record"]],
            tier=told["tier"],
            lane_row=told["lane_row"],
            data=told["data"],
            model=told["model"],
            scratch=told["scratch"],
        )
        for cell in told["cells"]
    )
