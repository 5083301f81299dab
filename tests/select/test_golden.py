"""The golden table: request x host gives this choice and these codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from select_asks import ask
from select_hosts import HOSTS, RECORDS

from quantfarm.declare.reason import SENTENCES
from quantfarm.declare.registry import KERNELS, implemented_records
from quantfarm.errors import KernelRefused
from quantfarm.select.choose import choose, survey
from quantfarm.select.request import Request
from quantfarm.select.selection import Selection

FILES = sorted((Path(__file__).parent / "golden").glob("*.yaml"))
ROWS: list[dict[str, Any]] = [row for path in FILES for row in yaml.safe_load(path.read_text(encoding="utf-8"))]
CASES = [pytest.param(row, id=row["id"]) for row in ROWS]


def request_of(row: dict[str, Any]) -> Request:
    """Return the request of a row."""
    return ask(row["ask"], HOSTS[row["host"]], row.get("backend", "auto"), row.get("dynamic"))


def outcome(row: dict[str, Any]) -> tuple[str, Selection]:
    """Return the chosen record's name, or ``refused``, and the trace."""
    try:
        selection = choose(request_of(row), HOSTS[row["host"]], RECORDS[row.get("record", "")])
    except KernelRefused as error:
        return "refused", cast("Selection", error.trace)
    assert selection.chosen is not None
    return selection.chosen.name, selection


@pytest.mark.parametrize("row", CASES)
def test_row(row: dict[str, Any]) -> None:
    """The choice and every code ahead of it are those of the table, in order; explaining gives the same.

    Strict refusals still show what would run.
    """
    chosen, selection = outcome(row)
    candidates = selection.trace[:1] if chosen == "refused" and not selection.request.automatic else selection.ahead
    codes = {candidate.spec_name: [reason.code for reason in candidate.reasons] for candidate in candidates}
    assert (chosen, codes) == (row["chosen"], row["codes"])
    assert [spec.name for spec in selection.listed] == row.get("listed", [])
    shown = survey(request_of(row), HOSTS[row["host"]], RECORDS[row.get("record", "")])
    assert shown.trace == selection.trace
    assert chosen == "refused" or shown.chosen is selection.chosen


def test_ids_are_unique() -> None:
    """Each row has a name of its own."""
    assert len({row["id"] for row in ROWS}) == len(ROWS) >= 250


def test_the_contract_is_there() -> None:
    """Every row of the contract's table has its row, and the families of rule names are all there."""
    ids = {row["id"] for row in ROWS}
    assert {f"G{number:02}" for number in range(1, 96)} <= ids
    assert {name[0] for name in ids} >= set("GSFDMLIVXNO")


def test_every_record_and_every_code_has_a_row() -> None:
    """No record and no code of the closed set is without a row, but for the record of another kind of module."""
    named = {name for row in ROWS for name in (row["chosen"], *row["codes"])}
    assert {spec.name for spec in KERNELS if not spec.role} <= named
    assert {code for row in ROWS for codes in row["codes"].values() for code in codes} == set(SENTENCES)


def test_kernels_without_code_are_never_chosen_now() -> None:
    """On every host that this version could meet, the choice is a record whose kernel is in this version."""
    written = {spec.name for spec in implemented_records()} | {"refused"}
    assert {row["chosen"] for row in ROWS if not row["host"].startswith("ALL-")} <= written


def test_rows_that_differ_from_the_contract_say_why() -> None:
    """A row of the contract whose outcome the contract gives otherwise carries the reason."""
    refused = {row["id"] for row in ROWS if row["id"][0] in "GL" and "undeclared" in str(row["codes"])}
    assert all(row.get("why") for row in ROWS if row["id"] in refused and row["chosen"] == "refused")
