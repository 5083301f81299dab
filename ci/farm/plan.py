"""The plan: matrix and declarations to cells. Pure; prints in milliseconds what a run would take hours for."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from farm import declarations as facts
from farm.cells import KINDS, REASONS, Cell, sort_key
from farm.errors import PlanInvalid
from farm.matrix import Exclusion, Matrix


def cells(matrix: Matrix, declarations: Mapping[str, Any], tier: str) -> list[Cell]:
    """Return every cell, sorted; one that will not run keeps its reason.

    Raises:
        PlanInvalid: the tier does not exist.
    """
    if tier not in matrix.tiers:
        raise PlanInvalid(f"cannot plan: tier {tier!r} is unknown; known: {', '.join(matrix.tiers)}")
    found = [
        _cell(matrix, record, lane, kind, tier)
        for record in declarations["records"]
        for lane in matrix.lanes
        for kind in _kinds(matrix, record, lane)
    ]
    return sorted(found, key=sort_key)


def _accepted(matrix: Matrix, record: Mapping[str, Any], lane: str) -> bool:
    row = matrix.lanes[lane]
    return facts.accepts_lane(record, matrix.targets[row.target].family, row.archs, row.platform)


def _kinds(matrix: Matrix, record: Mapping[str, Any], lane: str) -> list[str]:
    """A lane that a record does not declare has one cell: that the record is refused there."""
    if not _accepted(matrix, record, lane):
        return ["refusal"]
    return [kind for kind in KINDS if kind != "model" or _is_model_record(record)]


def _is_model_record(record: Mapping[str, Any]) -> bool:
    """The whole-model cell converts to 4-bit GPTQ, so only records that read that have one."""
    return any("gptq" in row["formats"] and 4 in row["bits"] for row in record["accepts"])


def _cell(matrix: Matrix, record: Mapping[str, Any], lane: str, kind: str, tier: str) -> Cell:
    reason, note = _why_not(matrix, record, lane, kind, tier)
    return Cell(
        record=record["name"],
        lane=lane,
        kind=kind,
        kernel=record["kernel"],
        library=facts.library_of(record),
        accepted=_accepted(matrix, record, lane),
        reason=reason,
        note=note,
    )


def _why_not(matrix: Matrix, record: Mapping[str, Any], lane: str, kind: str, tier: str) -> tuple[str, str]:
    row = matrix.lanes[lane]
    if not record["implemented"]:
        return "not_written", REASONS["not_written"]
    if row.runner == "none":
        return "no_runner", row.note
    for rule in matrix.exclusions:
        if _matches(rule, record, lane, kind):
            return "excluded", rule.reason
    order = matrix.tier_order
    if kind not in matrix.tiers[tier].kinds or order.index(row.tier) > order.index(tier):
        return "no_budget", f"the tier {tier} does not take it"
    return "", ""


def _matches(rule: Exclusion, record: Mapping[str, Any], lane: str, kind: str) -> bool:
    return (
        (not rule.records or any(fnmatch.fnmatchcase(record["name"], pattern) for pattern in rule.records))
        and (not rule.lanes or lane in rule.lanes)
        and (not rule.artifacts or record["artifact"]["kind"] in rule.artifacts)
        and (not rule.kinds or kind in rule.kinds)
    )


def affected(rows: list[Cell], kernels: set[str]) -> list[Cell]:
    """Return the cells of the named kernels: what a change in those folders makes stale."""
    return [cell for cell in rows if cell.kernel in kernels]
