"""Cells: one record on one lane for one kind of proof. Plain data that travels to a runner as JSON."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

KINDS = ("presence", "load", "refusal", "identity", "parity", "throughput", "model")
"""What a cell proves, in the order in which a runner takes them."""

REASONS = {
    "no_runner": "no lane of the project has this hardware",
    "no_toolchain": "no image can compile this target yet",
    "no_budget": "planned, left out by the tier",
    "not_yet": "planned, no run since the cell appeared",
    "excluded": "an exclusion of matrix.yaml",
    "probe_failed": "the runner's health probe refused the job",
    "infra_failed": "retries on other runners failed for infrastructure",
    "not_written": "the record is declared, its kernel has no code in this version",
    "no_peer": "the peer was absent, so no ratio exists",
}
"""Why a cell did not run: a closed set."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of the plan.

    Attributes:
        record, lane, kind: together the id ``record@lane#kind``.
        kernel, library: folder of the kernel and family of its native library (empty: none).
        accepted: whether the record declares this lane's target; otherwise only its refusal is a cell.
        reason: a code of ``REASONS`` when the cell will not run, else empty.
        note: the sentence that goes with the reason.
    """

    record: str
    lane: str
    kind: str
    kernel: str
    library: str
    accepted: bool
    reason: str = ""
    note: str = ""

    @property
    def id(self) -> str:
        """The id, ``record@lane#kind``."""
        return f"{self.record}@{self.lane}#{self.kind}"

    @property
    def runs(self) -> bool:
        """Whether a runner will take it."""
        return not self.reason

    def as_json(self) -> dict[str, Any]:
        """Return the fields with the id first."""
        return {"id": self.id, **asdict(self)}


def from_json(row: dict[str, Any]) -> Cell:
    """Rebuild a cell from ``as_json``."""
    return Cell(**{name: value for name, value in row.items() if name != "id"})


def sort_key(cell: Cell) -> tuple[str, str, int]:
    """Order by lane, record, then the order of ``KINDS``."""
    return (cell.lane, cell.record, KINDS.index(cell.kind))


def pick(cells: Iterable[Cell], pattern: str) -> list[Cell]:
    """Return the cells whose id equals or matches a shell pattern such as ``*@cpu-avx512#parity``."""
    return [cell for cell in cells if cell.id == pattern or fnmatch.fnmatchcase(cell.id, pattern)]
