"""What the page shows, as plain values: matrix, counts, details. The text of a cell is made here, once."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farm import build, plan
from farm import declarations as facts
from farm.cells import REASONS, Cell
from farm.evidence import Record
from farm.matrix import Matrix
from farm.state import LADDER, SIDE, Now, State, state, summary

LETTERS = {
    "declared": "D",
    "compiled": "C",
    "loaded": "L",
    "parity": "P",
    "measured": "M",
    "refused": "R",
    "untested": "-",
    "failing": "F",
    "stale": "S",
    "quarantined": "Q",
    "community": "O",
}
MEANINGS = {
    "declared": "the record says so, nothing was tested",
    "compiled": "the finished wheel holds it; never run",
    "loaded": "loads on a clean environment, the named backend is the one that ran",
    "parity": "within the declared tolerance of float64 on this hardware",
    "measured": "parity, and a time with its interval",
    "refused": "the record must not serve this, and the refusal was tested",
    "untested": "no record; the reason stands in the cell",
    "failing": "the last record failed",
    "stale": "a record exists, but the file, the kernel, the compiler or the date moved on",
    "quarantined": "known bad, with an issue and an expiry date",
    "community": "a record from outside the project or from a tree with uncommitted changes",
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a page is made of."""

    matrix: Matrix
    declarations: Mapping[str, Any]
    records: Sequence[Record]
    now: Now


def now_of(
    matrix: Matrix, declarations: Mapping[str, Any], records: Sequence[Record], built: Mapping[str, Any] | None
) -> Now:
    """Return what records are compared with: the wheels that were built, else those of the newest record."""
    newest = records[-1] if records else None
    rows = built["wheels"] if built else (newest.file["wheels"] if newest else [])
    compiler = built["compiler"] if built else (newest.build["compiler"] if newest else "")
    return Now(
        wheels={row["distribution"]: row["sha256"] for row in rows},
        kernels=build.kernel_hashes(declarations),
        torch=newest.software["torch"] if newest else "",
        compiler=compiler,
        tolerances={record["name"]: record["tolerance"]["derivation"] for record in declarations["records"]},
        ages={str(kind): days for kind, days in matrix.ages.items()},
        date=newest.when["end"][:10] if newest else "1970-01-01",
        back_ends={name: target.wheel for name, target in matrix.targets.items()},
    )


def view(source: Source) -> dict[str, Any]:
    """Return everything the templates need; the same input gives the same output on any day."""
    tier = source.matrix.tier_order[1]
    cells = plan.cells(source.matrix, source.declarations, tier)
    states = {cell.id: state(cell, source.records, source.now) for cell in cells}
    rows = [_row(source, record, cells, states) for record in source.declarations["records"]]
    counts = Counter(found.name for found in states.values())
    squares = Counter(square["state"] for row in rows for square in row["squares"])
    return {
        "sentence": source.matrix.sentence.strip(),
        "date": source.now.date,
        "evidence_records": len(source.records),
        "wheels": dict(source.now.wheels),
        "version": source.declarations["version"],
        "source_hash": source_hash(source),
        "legend": [{"state": name, "letter": LETTERS[name], "meaning": MEANINGS[name]} for name in (*LADDER, *SIDE)],
        "lanes": [{"name": name, "title": lane.title, "note": lane.note} for name, lane in source.matrix.lanes.items()],
        "rows": rows,
        "counts": {name: counts[name] for name in LETTERS if counts[name]},
        "square_counts": {name: squares[name] for name in LETTERS if squares[name]},
    }


def source_hash(source: Source) -> str:
    """Return the checksum of everything the page is made of."""
    parts = [
        facts.digest(source.declarations),
        json.dumps(source.matrix.model_dump(by_alias=True), sort_keys=True),
        json.dumps(source.now.__dict__, sort_keys=True, default=dict),
        *(json.dumps(record.__dict__, sort_keys=True, default=dict) for record in source.records),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _row(
    source: Source, record: Mapping[str, Any], cells: Sequence[Cell], states: Mapping[str, State]
) -> dict[str, Any]:
    squares = []
    for lane in source.matrix.lanes:
        mine = {cell.kind: cell for cell in cells if cell.record == record["name"] and cell.lane == lane}
        by_kind = {kind: states[cell.id] for kind, cell in mine.items()}
        total = summary(mine, by_kind)
        squares.append(
            {
                "lane": lane,
                "anchor": f"{record['name']}--{lane}",
                "state": total.name,
                "label": label(total),
                "letter": LETTERS[total.name],
                "why": total.why,
                "kinds": [detail(mine[kind], by_kind[kind]) for kind in mine],
            }
        )
    formats = sorted({fmt for row in record["accepts"] for fmt in row["formats"]})
    bits = sorted({b for row in record["accepts"] for b in row["bits"] or ()})
    return {
        "record": record["name"],
        "backend": record["backend"],
        "method": record["method"],
        "formats": formats,
        "bits": bits,
        "kernel": record["kernel"],
        "squares": squares,
    }


def label(found: State) -> str:
    """Return the state with the code of why nothing was run, where that is so."""
    code = next((code for code in REASONS if f"{code}:" in found.why), "")
    return f"{found.name} ({code})" if code and found.name in ("untested", "declared") else found.name


def detail(cell: Cell, found: State) -> dict[str, Any]:
    """Return one cell for page, JSON and terminal."""
    record = found.record
    return {
        "id": cell.id,
        "kind": cell.kind,
        "state": found.name,
        "letter": LETTERS[found.name],
        "why": found.why,
        "facts": _facts(record) if record else [],
        "errors": _errors(record) if record else [],
        "speed": list(record.speed.get("rows", [])) if record else [],
        "reproduce": record.when["reproduce"] if record else f"python -m farm run --cell '{cell.id}'",
    }


def _facts(record: Record) -> list[str]:
    outcome, figures = record.outcome, record.outcome["figures"]
    device = f"{record.device['name']}, {record.device['cores']} cores, code path {record.device['isa']}"
    if record.device.get("mark"):
        device += f" ({record.device['mark']})"
    found = [
        f"{record.verdict['verdict']} on {record.when['end']}, {outcome['passed']} of {outcome['run']} tests",
        device,
        f"torch {record.software['torch']}, Python {record.software['python']}, {record.software['os']}",
        f"commit {record.source['commit'][:10]}{' with uncommitted changes' if record.source['dirty'] else ''}",
        *(f"{row['name']} sha256 {row['sha256']}" for row in record.file["wheels"]),
    ]
    if outcome["skipped"]:
        found.append(f"skipped: {'; '.join(outcome['skipped'])}")
    found += [f"failed: {text.splitlines()[0][:300]}" for text in outcome["failures"]]
    for name in ("found", "repeatability", "injected_errors_detected", "isa_launches", "answer", "tokens_per_second"):
        if figures.get(name):
            found.append(f"{name.replace('_', ' ')}: {_plain(figures[name])}")
    if record.speed:
        found.append(
            f"read roof of this run {record.speed['roof_read_gbs']} GB/s, {record.speed['threads']} threads, "
            f"{record.speed['weights']}; the layer adds {record.speed.get('layer_overhead_us', '?')} us a call"
        )
    return found


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)


def _errors(record: Record) -> list[dict[str, Any]]:
    figures = record.outcome["figures"]
    return [
        {
            "dtype": dtype,
            "cases": int(row["cases"]),
            "e": f"{row['e']:.2e}",
            "e_over_e0": f"{row['e_over_e0']:.2f}",
            "e_row_max": f"{row['e_row_max']:.2e}",
            "cap": f"{figures['cap'][dtype]:.0e}",
            "floor": f"{figures['floor'][dtype]:.1e}",
            "derivation": figures["derivation"],
        }
        for dtype, row in sorted(figures.get("errors", {}).items())
    ]
