"""Evidence records for the tests of the farm."""

from __future__ import annotations

from typing import Any

from farm.cells import Cell
from farm.evidence import Record
from farm.state import Now

FRONT, NATIVE = "a" * 64, "b" * 64
DATE = "2026-12-01"


def cell(kind: str = "parity", record: str = "fast", lane: str = "cpu", library: str = "cpu") -> Cell:
    """Return a cell of a made-up record with a native library."""
    return Cell(record=record, lane=lane, kind=kind, kernel=f"{record}_kernel", library=library, accepted=True)


def record(of: Cell, **changes: dict[str, Any]) -> Record:
    """Return a passing record of a cell; ``changes`` replace fields of groups."""
    groups: dict[str, dict[str, Any]] = {
        "what": {
            "cell": of.id,
            "record": of.record,
            "lane": of.lane,
            "kind": of.kind,
            "kernel": of.kernel,
            "kernel_hash": "k1",
            "tier": "default",
            "declarations": "d",
        },
        "file": {
            "wheels": [
                {"distribution": "quantfarm", "name": "front.whl", "sha256": FRONT, "bytes": 1},
                {"distribution": "quantfarm-cpu", "name": "cpu.whl", "sha256": NATIVE, "bytes": 2},
            ],
            "bundle": "t",
        },
        "source": {"commit": "c" * 40, "dirty": False, "constraints": "x"},
        "build": {"compiler": "GNU 12", "torch": "2.13.0", "image": "none"},
        "device": {"name": "cpu", "features": [], "cores": 2, "memory_bytes": 1, "isa": "auto"},
        "software": {"python": "3.11", "torch": "2.13.0+cpu", "os": "linux", "libc": "glibc"},
        "health": {"steal": 0.0, "load": 1.0},
        "outcome": {"run": 1, "passed": 1, "skipped": [], "failures": [], "figures": {}},
        "speed": {},
        "verdict": {"verdict": "pass", "reason": "", "failure_class": ""},
        "when": {
            "runner": "local",
            "origin": "project",
            "attempt": 1,
            "start": f"{DATE}T10:00:00+00:00",
            "end": f"{DATE}T10:00:01+00:00",
            "reproduce": f"python -m farm run --cell '{of.id}'",
        },
    }
    for group, fields in changes.items():
        groups[group] = {**groups[group], **fields}
    return Record(**groups)


def now(**changes: Any) -> Now:
    """Return what records are compared with: the wheels, kernel and versions that ``record`` carries."""
    values: dict[str, Any] = {
        "wheels": {"quantfarm": FRONT, "quantfarm-cpu": NATIVE},
        "kernels": {"fast_kernel": "k1", "slow_kernel": "k1"},
        "torch": "2.13.0",
        "compiler": "GNU 12",
        "tolerances": {},
        "ages": {
            "presence": 180,
            "load": 180,
            "refusal": 90,
            "identity": 90,
            "parity": 90,
            "throughput": 30,
            "model": 90,
        },
        "date": DATE,
        "back_ends": {"cpu": "quantfarm-cpu"},
    }
    return Now(**{**values, **changes})
