"""The state of a cell: a pure function of its records, the declarations' hashes and the wheels. No input, no output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from farm.cells import REASONS, Cell
from farm.evidence import Record

LADDER = ("declared", "compiled", "loaded", "parity", "measured")
SIDE = ("refused", "untested", "failing", "stale", "quarantined", "community")
RAISES = {
    "presence": "compiled",
    "load": "loaded",
    "identity": "loaded",
    "refusal": "refused",
    "parity": "parity",
    "model": "parity",
    "throughput": "measured",
}
"""The state that one passing record of a kind gives its cell."""

PATH = ("presence", "load", "identity", "parity", "throughput")
"""The kinds that a record climbs on one lane, in order; each needs all before it."""

TORCH_BOUND = ("load", "identity", "parity", "model")
"""Kinds that age when the minor version of torch changes."""


@dataclass(frozen=True, kw_only=True)
class Now:
    """What records are compared with.

    Attributes:
        wheels: distribution name to the sha256 of the wheel that counts.
        kernels: kernel folder to the checksum of its two halves.
        torch: the installed version that counts, such as ``2.13.0``; empty compares nothing.
        compiler: the compiler of the wheels; empty compares nothing.
        tolerances: record name to the id of its tolerance derivation.
        ages: kind to days.
        date: the day the page speaks of, ISO.
        back_ends: library family to the distribution that carries it.
    """

    wheels: Mapping[str, str]
    kernels: Mapping[str, str]
    torch: str = ""
    compiler: str = ""
    tolerances: Mapping[str, str] = field(default_factory=dict)
    ages: Mapping[str, int]
    date: str
    back_ends: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class State:
    """A state, the sentence that says why, and the record it rests on."""

    name: str
    why: str
    record: Record | None = None


def latest(cell_id: str, records: Iterable[Record]) -> Record | None:
    """Return the newest record of a cell; records come oldest first. Skipped runs are no records."""
    found = [r for r in records if r.cell == cell_id and r.verdict["verdict"] != "untested"]
    return found[-1] if found else None


def state(cell: Cell, records: Sequence[Record], now: Now) -> State:
    """Return the state of one cell. It rises only through its own record and falls by itself."""
    record = latest(cell.id, records)
    if record is None:
        code = cell.reason or "not_yet"
        if code == "no_budget":
            code, note = "not_yet", REASONS["not_yet"]
        else:
            note = cell.note or REASONS[code]
        return State(name="untested", why=f"{code}: {note}")
    if not record.passed:
        verdict = record.verdict
        text = f"last record: {verdict['verdict']} ({verdict['failure_class']}) {verdict['reason']}"
        return State(name="failing", why=text.strip(), record=record)
    old = staleness(cell, record, now)
    if old:
        return State(name="stale", why="; ".join(old), record=record)
    if record.when["origin"] != "project" or record.source["dirty"]:
        why = "the tree had changes that no commit holds" if record.source["dirty"] else "run outside the project"
        return State(name="community", why=why, record=record)
    return State(name=RAISES[cell.kind], why=f"record of {record.when['end'][:10]} passed", record=record)


def staleness(cell: Cell, record: Record, now: Now) -> list[str]:
    """Return every reason why a passing record no longer counts; empty means it does."""
    back_end = now.back_ends.get(cell.library, "")
    found = [
        f"{name} is another file: needs {now.wheels.get(name, 'none')[:12]}, got {record.wheel(name)[:12]}"
        for name in ("quantfarm", back_end)
        if name and now.wheels.get(name, "") != record.wheel(name)
    ]
    if now.kernels.get(cell.kernel, record.what["kernel_hash"]) != record.what["kernel_hash"]:
        found.append(f"the folder of kernel {cell.kernel} changed")
    if cell.library and now.compiler and now.compiler != record.build["compiler"]:
        found.append(f"compiler: needs {now.compiler}, got {record.build['compiler']}")
    if cell.kind in TORCH_BOUND and now.torch and _minor(now.torch) != _minor(record.software["torch"]):
        found.append(f"torch: needs {_minor(now.torch)}, got {_minor(record.software['torch'])}")
    derivation = record.outcome["figures"].get("derivation")
    if cell.kind == "parity" and derivation and derivation != now.tolerances.get(cell.record, derivation):
        found.append("the derivation of the tolerance changed")
    days = (datetime.fromisoformat(now.date[:10]) - datetime.fromisoformat(record.when["end"][:10])).days
    if days > now.ages[cell.kind]:
        found.append(f"{days} days old, the limit is {now.ages[cell.kind]}")
    return found


def _minor(version: str) -> str:
    return ".".join(version.split("+", maxsplit=1)[0].split(".")[:2])


def summary(cells: Mapping[str, Cell], states: Mapping[str, State]) -> State:
    """Return the state of one record on one lane from its cells by kind: the highest step without a gap below.

    A failing cell of any kind wins, then a stale or outside one lowers the path at its own step.
    """
    if set(cells) == {"refusal"}:
        return states["refusal"]
    for kind in cells:
        if states[kind].name == "failing":
            return State(name="failing", why=f"{kind}: {states[kind].why}", record=states[kind].record)
    reached = State(name="declared", why="the record says so, nothing was tested")
    first = states[PATH[0]]
    if first.name == "untested" and first.why.startswith("excluded"):
        return first
    if first.name == "untested" and first.why.startswith(("no_runner", "not_written")):
        return State(name="declared", why=f"the record says so; {first.why}")
    for kind in PATH:
        if states[kind].name in SIDE:
            if reached.name == "declared" or states[kind].name != "untested":
                return states[kind] if reached.name == "declared" else _stopped(reached, kind, states[kind])
            return _stopped(reached, kind, states[kind])
        if LADDER.index(states[kind].name) >= LADDER.index(reached.name):
            reached = states[kind]
    return reached


def _stopped(reached: State, kind: str, blocker: State) -> State:
    if blocker.name in ("stale", "community"):
        return State(name=blocker.name, why=f"{kind}: {blocker.why}", record=blocker.record)
    return State(name=reached.name, why=f"{reached.why}; {kind}: {blocker.why}", record=reached.record)
