"""The declared facts as plain values: from the source tree, or from a JSON file on a machine without it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm.errors import PlanInvalid

SCHEMA = "quantfarm-declarations"
EDITION = 1
ANY_DEVICE = "all"
TORCH_FAMILIES = ("cuda", "rocm", "xpu", "mps", "cpu")
"""Families that a record for all devices reaches: it runs wherever torch runs."""


def read(source: Path | None = None) -> dict[str, Any]:
    """Return the export of ``quantfarm.declare.export``, or of a file that holds its JSON.

    Raises:
        PlanInvalid: another schema or edition.
    """
    if source is None:
        from quantfarm.declare import export  # the one import of the product

        found = export.export()
    else:
        found = json.loads(source.read_text(encoding="utf-8"))
    if (found.get("schema"), found.get("edition")) != (SCHEMA, EDITION):
        got = f"{found.get('schema')} edition {found.get('edition')}"
        raise PlanInvalid(f"cannot read the declarations: needs {SCHEMA} edition {EDITION}, got {got}")
    return dict(found)


def digest(declarations: Mapping[str, Any]) -> str:
    """Return one checksum of all declared facts."""
    return hashlib.sha256(json.dumps(declarations, sort_keys=True).encode()).hexdigest()


def library_of(record: Mapping[str, Any]) -> str:
    """Return the family of the native library a record needs, or an empty string."""
    artifact = record["artifact"]
    return str(artifact["library"]) if artifact["kind"] == "native" else ""


def accepts_lane(record: Mapping[str, Any], family: str, archs: list[str], platform: str) -> bool:
    """Say whether a record declares a lane's target: family, at least one of its archs, platform."""
    if record["retired"] or (record["platforms"] and platform not in record["platforms"]):
        return False
    devices = record["devices"]
    if family in devices:
        listed = devices[family]["archs"]
        return devices[family]["open_range"] or bool(set(listed) & set(archs))
    return ANY_DEVICE in devices and family in TORCH_FAMILIES
