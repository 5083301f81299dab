"""Facts of the machine and its health while a cell ran. What cannot be read is an empty value with a reason."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")
_STAT = Path("/proc/stat")
_MEMINFO = Path("/proc/meminfo")


def cpu_features() -> frozenset[str]:
    """Return the instruction sets the kernel lists, and the machine type; without the list only the latter."""
    flags = _field(_CPUINFO, "flags").split()
    return frozenset([*flags, platform.machine()])


def device() -> dict[str, Any]:
    """Return the processor's facts for a record."""
    memory = _field(_MEMINFO, "MemTotal").split()
    relevant = sorted(f for f in cpu_features() if f.startswith(("avx", "amx", "fma", "f16c", "x86")))
    return {
        "name": _field(_CPUINFO, "model name") or platform.processor() or "unknown",
        "features": relevant,
        "cores": os.cpu_count() or 0,
        "memory_bytes": int(memory[0]) * 1024 if memory else 0,
    }


def _field(path: Path, name: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name), "")


def ticks() -> tuple[int, int]:
    """Return (stolen, all) processor ticks since boot; (0, 0) where the system does not tell."""
    try:
        values = [int(v) for v in _STAT.read_text(encoding="utf-8").splitlines()[0].split()[1:]]
    except (OSError, ValueError, IndexError):
        return 0, 0
    return (values[7] if len(values) > 7 else 0), sum(values[:8])


def between(before: tuple[int, int], after: tuple[int, int]) -> dict[str, Any]:
    """Return the health of the time between two readings of ``ticks``."""
    spent = after[1] - before[1]
    steal = (after[0] - before[0]) / spent if spent > 0 else "not told by this system"
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else "not told by this system"
    return {
        "steal": round(steal, 5) if isinstance(steal, float) else steal,
        "load": load,
        "clocks": "",
        "clocks_reason": "no library in the light set reads them",
        "temperature": "",
        "temperature_reason": "a virtual machine does not tell",
    }


def software() -> dict[str, str]:
    """Return system facts for a record."""
    return {
        "os": platform.platform(),
        "libc": " ".join(platform.libc_ver()) or "unknown",
        "python": platform.python_version(),
    }


def lacking(needed: list[str]) -> list[str]:
    """Return the capabilities that this machine does not have."""
    return sorted(set(needed) - cpu_features())
