"""States rise only through their own records and fall by themselves."""

from __future__ import annotations

from typing import Any

import farm_records
import pytest
from farm_records import cell, now, record
from hypothesis import given
from hypothesis import strategies as st

from farm.cells import Cell
from farm.evidence import Record
from farm.state import PATH, RAISES, state, summary

KINDS = [*PATH, "refusal"]
ALL = [cell(kind, name) for name in ("fast", "slow") for kind in KINDS]
FULL = [record(each) for each in ALL]


def states(records: list[Record]) -> dict[str, str]:
    """Return the state of every cell."""
    return {each.id: state(each, records, now()).name for each in ALL}


def one(of: Cell, *changes: dict[str, Any]) -> str:
    """Return the state of a cell with one record for each set of changes."""
    return state(of, [record(of, **change) for change in changes], now()).name


@given(st.sampled_from(range(len(FULL))))
def test_deleting_one_record_lowers_exactly_that_cell(gone: int) -> None:
    """All other cells keep their state; the one without a record becomes untested."""
    before, after = states(FULL), states([r for i, r in enumerate(FULL) if i != gone])
    assert {name for name in before if before[name] != after[name]} == {ALL[gone].id}
    assert after[ALL[gone].id] == "untested"


@pytest.mark.parametrize("kind", KINDS)
def test_a_passing_record_gives_the_state_of_its_kind(kind: str) -> None:
    """One record raises its cell to what that kind can prove, never further."""
    assert one(cell(kind), {}) == RAISES[kind]


def test_a_failing_last_record_beats_every_older_success() -> None:
    """Pass, pass, fail is failing; fail, pass is not."""
    bad = {"verdict": {"verdict": "fail", "reason": "over the limit", "failure_class": "numeric"}}
    assert one(cell(), {}, {}, bad) == "failing"
    assert one(cell(), bad, {}) == "parity"


def test_a_run_that_did_not_happen_is_no_record() -> None:
    """An untested line neither raises nor lowers a cell."""
    skipped = {"verdict": {"verdict": "untested", "reason": "no_budget", "failure_class": ""}}
    assert one(cell(), skipped) == "untested"
    assert one(cell(), {}, skipped) == "parity"


@pytest.mark.parametrize(
    ("kind", "change", "because"),
    [
        ("parity", {"wheels": {"quantfarm": "f" * 64, "quantfarm-cpu": farm_records.NATIVE}}, "another file"),
        ("parity", {"wheels": {"quantfarm": farm_records.FRONT, "quantfarm-cpu": "f" * 64}}, "another file"),
        ("parity", {"wheels": {}}, "needs none"),
        ("parity", {"kernels": {"fast_kernel": "k2"}}, "folder of kernel fast_kernel changed"),
        ("parity", {"torch": "2.14.0"}, "torch: needs 2.14, got 2.13"),
        ("parity", {"compiler": "GNU 14"}, "compiler: needs GNU 14, got GNU 12"),
        ("parity", {"date": "2027-03-02"}, "91 days old, the limit is 90"),
        ("throughput", {"date": "2027-01-01"}, "31 days old, the limit is 30"),
    ],
)
def test_what_makes_a_record_stale(kind: str, change: dict[str, Any], because: str) -> None:
    """Another wheel, kernel, compiler or torch, and age, each make a record stale and say so."""
    found = state(cell(kind), [record(cell(kind))], now(**change))
    assert found.name == "stale"
    assert because in found.why


def test_what_does_not_make_a_record_stale() -> None:
    """A patch release of torch, another kernel's change, and torch for a speed record leave it alone."""
    assert state(cell(), [record(cell())], now(torch="2.13.9")).name == "parity"
    assert state(cell(), [record(cell())], now(kernels={"fast_kernel": "k1", "slow_kernel": "k2"})).name == "parity"
    fast = cell("throughput")
    assert state(fast, [record(fast)], now(torch="2.14.0")).name == "measured"
    portable = cell(library="")
    assert state(portable, [record(portable)], now(wheels={"quantfarm": farm_records.FRONT})).name == "parity"


def test_a_changed_tolerance_makes_parity_stale() -> None:
    """A record was judged by a derivation; another one needs a new record."""
    made = record(cell(), outcome={"figures": {"derivation": "old"}})
    assert state(cell(), [made], now(tolerances={"fast": "new"})).name == "stale"


def test_dirty_trees_and_foreign_machines_are_community() -> None:
    """Neither can raise a cell above community."""
    assert one(cell(), {"source": {"dirty": True}}) == "community"
    assert one(cell(), {"when": {"origin": "community"}}) == "community"


def of_lane(skip: tuple[str, ...] = (), **changes: dict[str, Any]) -> str:
    """Return the state of one record on one lane with records of all kinds but the skipped ones."""
    cells = {kind: cell(kind) for kind in KINDS}
    records = [record(each, **changes.get(kind, {})) for kind, each in cells.items() if kind not in skip]
    return summary(cells, {kind: state(each, records, now()) for kind, each in cells.items()}).name


def test_a_lane_shows_the_highest_step_without_a_gap() -> None:
    """Speed without parity is not measured; parity without a load record is only compiled."""
    assert of_lane() == "measured"
    assert of_lane(("throughput",)) == "parity"
    assert of_lane(("parity",)) == "loaded"
    assert of_lane(("identity",)) == "loaded"
    assert of_lane(("load",)) == "compiled"
    assert of_lane(tuple(KINDS)) == "untested"


def test_a_failing_kind_makes_the_lane_failing() -> None:
    """A backend that was not the one that ran invalidates the rest, whatever the speed."""
    bad = {"verdict": {"verdict": "fail", "reason": "another kernel ran", "failure_class": "product"}}
    assert of_lane(identity=bad) == "failing"
    assert of_lane(refusal=bad) == "failing"


def test_a_lane_without_a_machine_says_why() -> None:
    """On a lane with no runner a declared record stays declared, and the code says why nothing was tested."""
    absent = {kind: Cell(**{**cell(kind).__dict__, "reason": "no_runner", "note": "none here"}) for kind in KINDS}
    total = summary(absent, {kind: state(each, [], now()) for kind, each in absent.items()})
    assert (total.name, total.why) == ("declared", "the record says so; no_runner: none here")
