"""Selection: the choice together with every candidate and all its reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quantfarm.declare.names import BACKEND
from quantfarm.declare.reason import Reason
from quantfarm.declare.spec import KernelSpec
from quantfarm.select.request import Request

SCHEMA = "quantfarm-selection/1"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One record as seen by one request.

    Attributes:
        spec_name: the record's unique name; for a name without a record, the backend's value.
        backend: the user-facing member.
        priority: the record's number for the format; None where it has none.
        reasons: everything against it, in the order of the checks.
        usable: whether it could serve the request. A passed-over candidate is usable and carries prefer_trainable.
        state_note: an added sentence on its state; empty most of the time.
        inference_only: whether the record gives no gradients.
        written: whether this version holds the kernel's code; otherwise the record is declared only.
        serves: for several contracts, which of them it serves: ``base`` and the keys of the overrides.
    """

    spec_name: str
    backend: BACKEND
    priority: int | None
    reasons: tuple[Reason, ...]
    usable: bool
    state_note: str = ""
    inference_only: bool = False
    written: bool = True
    serves: tuple[str, ...] = ()

    @property
    def lost_to_installation(self) -> bool:
        """Whether nothing but the installation stands against it; a kernel that is not written is no such loss."""
        return self.written and not self.usable and all(reason.is_installation for reason in self.reasons)

    def as_json(self) -> dict[str, Any]:
        """Return the candidate as values for programs."""
        return {
            "record": self.spec_name,
            "backend": self.backend.value,
            "priority": self.priority,
            "usable": self.usable,
            "reasons": [reason.as_json() for reason in self.reasons],
            "note": self.state_note,
            "serves": list(self.serves),
        }


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What was asked, what was chosen (None: nothing), every candidate in order, and notes on the way there.

    ``listed`` holds, for a request with ``multi_select``, every record that serves at least one contract, in order.
    """

    request: Request
    chosen: KernelSpec | None
    trace: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()
    listed: tuple[KernelSpec, ...] = ()

    @property
    def backend(self) -> BACKEND | None:
        """The chosen member, or None."""
        return self.chosen.backend if self.chosen else None

    @property
    def ahead(self) -> tuple[Candidate, ...]:
        """The candidates before the chosen one; all of them when nothing was chosen."""
        names = [candidate.spec_name for candidate in self.trace]
        if self.chosen is None or self.chosen.name not in names:
            return self.trace
        return self.trace[: names.index(self.chosen.name)]

    def as_json(self) -> dict[str, Any]:
        """Return the whole selection as values for programs."""
        return {
            "schema": SCHEMA,
            "request": self.request.as_json(),
            "asked": str(self.request),
            "chosen": self.chosen.name if self.chosen else None,
            "backend": self.chosen.backend.value if self.chosen else None,
            "kernel": self.chosen.kernel if self.chosen else None,
            "trace": [candidate.as_json() for candidate in self.trace],
            "listed": [spec.name for spec in self.listed],
            "notes": list(self.notes),
        }
