"""The declarations as JSON, for the build, the farm and the documents: ``python -m quantfarm.declare.export``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from quantfarm import __version__
from quantfarm.declare.device import Arch
from quantfarm.declare.names import ALIASES, BACKEND, DEVICE, FORMAT, LEGACY, METHOD, PROFILE
from quantfarm.declare.reason import SENTENCES
from quantfarm.declare.registry import KERNELS, implemented
from quantfarm.declare.spec import KernelSpec, Undeclared

SCHEMA = "quantfarm-declarations"
EDITION = 1
"""Raised by one whenever a key changes meaning or goes away."""


def export() -> dict[str, Any]:
    """Return every declared fact as JSON-ready values: members as their strings, undeclared facts as null."""
    return {
        "schema": SCHEMA,
        "edition": EDITION,
        "version": __version__,
        "backends": [b.value for b in BACKEND],
        "methods": [m.value for m in METHOD],
        "formats": [f.value for f in FORMAT],
        "devices": [d.value for d in DEVICE],
        "profiles": [p.value for p in PROFILE],
        "legacy": _plain(LEGACY),
        "aliases": _plain(ALIASES),
        "reasons": dict(SENTENCES),
        "records": [record(spec) for spec in KERNELS],
    }


def record(spec: KernelSpec) -> dict[str, Any]:
    """Return one record as JSON-ready values: its unique name and whether its code is in this version first."""
    return {"name": spec.name, "implemented": spec.kernel in implemented() and not spec.retired, **_plain(spec)}


def _plain(value: Any) -> Any:
    if isinstance(value, Undeclared):
        return None
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Arch):
        return str(value)
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(_plain(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        return [_plain(v) for v in value]
    return value


if __name__ == "__main__":
    print(json.dumps(export(), indent=2))
