"""Evidence: one JSON line a cell and run. Dataclasses and the standard library only, checked on write and on read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from farm.cells import KINDS, REASONS
from farm.errors import EvidenceInvalid
from farm.failure import CLASSES

SCHEMA = "quantfarm-evidence"
EDITION = 1
VERDICTS = ("pass", "fail", "refused", "error", "timeout", "untested")
ORIGINS = ("project", "community")
_SHA = re.compile(r"[0-9a-f]{64}")
_CELL = re.compile(r"([a-z0-9_-]+)@([a-z0-9_-]+)#([a-z]+)")

NEEDED: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "what": {
        "cell": str,
        "record": str,
        "lane": str,
        "kind": str,
        "kernel": str,
        "kernel_hash": str,
        "tier": str,
        "declarations": str,
    },
    "file": {"wheels": list, "bundle": str},
    "source": {"commit": str, "dirty": bool, "constraints": str},
    "build": {"compiler": str, "torch": str, "image": str},
    "device": {"name": str, "features": list, "cores": int, "memory_bytes": int, "isa": str},
    "software": {"python": str, "torch": str, "os": str, "libc": str},
    "health": {"steal": (float, int, str), "load": (float, int, str)},
    "outcome": {"run": int, "passed": int, "skipped": list, "failures": list, "figures": dict},
    "verdict": {"verdict": str, "reason": str, "failure_class": str},
    "when": {"runner": str, "origin": str, "attempt": int, "start": str, "end": str, "reproduce": str},
}
"""Group -> field -> type. A group may hold more; none of these may be absent."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One outcome of one cell. Groups are plain mappings; ``NEEDED`` says what each must hold.

    Attributes:
        what: the cell, its kernel folder hash, the tier, the hash of the declarations.
        file: wheels with name, sha256 and bytes; the hash of the test bundle.
        source, build, device, software, health: where the file came from and where it ran.
        outcome: counts, failures and error figures.
        speed: samples and ratios of a timed cell, else empty.
        verdict: one of ``VERDICTS``, a reason, and the failure class.
        when: who ran it, when, and the command that repeats it.
    """

    what: Mapping[str, Any]
    file: Mapping[str, Any]
    source: Mapping[str, Any]
    build: Mapping[str, Any]
    device: Mapping[str, Any]
    software: Mapping[str, Any]
    health: Mapping[str, Any]
    outcome: Mapping[str, Any]
    speed: Mapping[str, Any]
    verdict: Mapping[str, Any]
    when: Mapping[str, Any]

    @property
    def cell(self) -> str:
        """The id of the cell."""
        return str(self.what["cell"])

    @property
    def passed(self) -> bool:
        """Whether the cell met all of its limits, or was refused as it must be."""
        return self.verdict["verdict"] in ("pass", "refused")

    def wheel(self, name: str) -> str:
        """Return the sha256 of a wheel by its distribution name, or an empty string."""
        return next((row["sha256"] for row in self.file["wheels"] if row["distribution"] == name), "")


def problems(row: Any) -> list[str]:
    """Return every reason why a decoded line is no valid record; empty means valid."""
    if not isinstance(row, dict):
        return ["needs a JSON object"]
    if (row.get("schema"), row.get("edition")) != (SCHEMA, EDITION):
        return [f"schema: needs {SCHEMA} edition {EDITION}, got {row.get('schema')} edition {row.get('edition')}"]
    known = {f.name for f in fields(Record)} | {"schema", "edition"}
    found = [f"{name}: unknown group" for name in sorted(row.keys() - known)]
    found += [f"{name}: needs a group, got none" for name in sorted(known - row.keys())]
    for group, needed in NEEDED.items():
        found += _group_problems(group, row.get(group), needed)
    return found or _value_problems(row)


def _group_problems(group: str, got: Any, needed: Mapping[str, type | tuple[type, ...]]) -> list[str]:
    if not isinstance(got, dict):
        return [] if got is None else [f"{group}: needs an object, got {type(got).__name__}"]
    found = []
    for name, kind in needed.items():
        if name not in got:
            found.append(f"{group}.{name}: needs a value, got none")
        elif not isinstance(got[name], kind) or (isinstance(got[name], bool) and kind is not bool):
            found.append(f"{group}.{name}: needs {_spell(kind)}, got {type(got[name]).__name__}")
    return found


def _spell(kind: type | tuple[type, ...]) -> str:
    return " or ".join(k.__name__ for k in kind) if isinstance(kind, tuple) else kind.__name__


def _value_problems(row: dict[str, Any]) -> list[str]:
    found = []
    what, verdict, when = row["what"], row["verdict"], row["when"]
    match = _CELL.fullmatch(what["cell"])
    parts = match.groups() if match else ()
    if parts != (what["record"], what["lane"], what["kind"]):
        found.append(f"what.cell: needs {what['record']}@{what['lane']}#{what['kind']}, got {what['cell']}")
    closed = (
        ("what.kind", what["kind"], KINDS),
        ("verdict.verdict", verdict["verdict"], VERDICTS),
        ("verdict.failure_class", verdict["failure_class"], ("", *CLASSES)),
        ("when.origin", when["origin"], ORIGINS),
    )
    found += [
        f"{name}: needs one of {', '.join(known)}, got {got!r}" for name, got, known in closed if got not in known
    ]
    if verdict["verdict"] == "untested" and verdict["reason"] not in REASONS:
        found.append(f"verdict.reason: needs one of {', '.join(REASONS)}, got {verdict['reason']!r}")
    for position, wheel in enumerate(row["file"]["wheels"]):
        if not (isinstance(wheel, dict) and _SHA.fullmatch(str(wheel.get("sha256", ""))) and wheel.get("distribution")):
            found.append(f"file.wheels.{position}: needs distribution and a sha256 of 64 hexadecimal digits")
    for name in ("start", "end"):
        try:
            datetime.fromisoformat(when[name])
        except ValueError:
            found.append(f"when.{name}: needs an ISO date and time, got {when[name]!r}")
    return found


def to_line(record: Record) -> str:
    """Return the record as one JSON line, after checking it.

    Raises:
        EvidenceInvalid: the record lacks something.
    """
    row = {"schema": SCHEMA, "edition": EDITION, **asdict(record)}
    row = json.loads(json.dumps(row, allow_nan=False))
    wrong = problems(row)
    if wrong:
        raise EvidenceInvalid(f"cannot write evidence of {record.what.get('cell')}", lines=wrong)
    return json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n"


def append(path: Path, record: Record) -> None:
    """Append one record: a single write to a file opened for appending, so that lines never mix or break."""
    line = to_line(record).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line)
        os.fsync(handle)
    finally:
        os.close(handle)


def read_file(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield (line number, record).

    Raises:
        EvidenceInvalid: a line that is no valid record; names file and line.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise EvidenceInvalid(f"cannot read {path.name}, line {number}: no JSON: {error}") from error
        wrong = problems(row)
        if wrong:
            raise EvidenceInvalid(f"cannot read {path.name}, line {number}: no valid record", lines=wrong)
        yield number, Record(**{f.name: row[f.name] for f in fields(Record)})


def read_all(folder: Path) -> list[Record]:
    """Return every record of a folder, oldest first: by time of end, then by file and line."""
    rows = [
        (record.when["end"], path.name, number, record)
        for path in sorted(folder.glob("*.jsonl"))
        for number, record in read_file(path)
    ]
    return [row[3] for row in sorted(rows, key=lambda row: row[:3])]
