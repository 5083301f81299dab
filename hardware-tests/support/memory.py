"""The highest memory of this process during a call, from the kernel's own high-water mark."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def can_measure() -> bool:
    """Say whether the mark can be set back, which only Linux offers."""
    try:
        _RESET.write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def extra_bytes(call: Callable[[], object]) -> int:
    """Return by how much the process grew at most while ``call`` ran, beyond what it held before."""
    gc.collect()
    _RESET.write_text(_RESET_PEAK, encoding="ascii")
    before = _read("VmRSS")
    kept = call()
    peak = _read("VmHWM")
    del kept
    return peak - before


def _read(name: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"{_STATUS} has no {name}")
