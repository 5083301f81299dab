"""The validation cache: results of ``check`` as values, bounded, least recently used first out, safe under threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from quantfarm.declare.reason import Reason
from quantfarm.declare.spec import KernelSpec
from quantfarm.select.check import check
from quantfarm.select.host import Host
from quantfarm.select.request import Request

CAPACITY = 1024
"""Entries kept by default."""

Check = Callable[[KernelSpec, Request, Host], tuple[Reason, ...]]
_Key = tuple[Check, int, Request, str]

_BUGS = (ArithmeticError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What a faulty record can make its check raise; it becomes a reason of that one record."""


@dataclass(frozen=True)
class _Entry:
    """A result, with the record it belongs to: holding it keeps the identity in the key unique."""

    spec: KernelSpec
    reasons: tuple[Reason, ...]


class CheckCache:
    """Remembers what ``check`` answered. Only values are kept, never an exception or its traceback."""

    def __init__(self, function: Check = check, *, capacity: int = CAPACITY) -> None:
        """Start empty, over one check function."""
        self._function = function
        self._capacity = capacity
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        """Return how many results are kept."""
        return len(self._entries)

    def __call__(self, spec: KernelSpec, request: Request, host: Host) -> tuple[Reason, ...]:
        """Return the reasons against a record, computed at most once for equal contracts on equal hosts.

        A check that raises is a fault of its record: the text becomes ``artifact_failed`` and choosing goes on.
        """
        key: _Key = (self._function, id(spec), request, host.key)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = _Entry(spec, self._run(spec, request, host))
                self._entries[key] = entry
                if len(self._entries) > self._capacity:
                    self._entries.popitem(last=False)
            self._entries.move_to_end(key)
            return entry.reasons

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()

    def _run(self, spec: KernelSpec, request: Request, host: Host) -> tuple[Reason, ...]:
        try:
            return self._function(spec, request, host)
        except _BUGS as error:
            text = f"{type(error).__name__}: {error}"
            return (Reason("artifact_failed", "a check that returns", "a check that raises", note=text),)


CHECKS = CheckCache()
"""The cache that ``choose`` uses."""
