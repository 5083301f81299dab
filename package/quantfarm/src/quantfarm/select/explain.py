"""explain(request, host): the same trace as ``select``, at any time, without an error for a refusal."""

from __future__ import annotations

from quantfarm.declare.registry import KERNELS
from quantfarm.select.choose import survey
from quantfarm.select.host import Host, probe
from quantfarm.select.request import Request
from quantfarm.select.selection import Selection
from quantfarm.select.wording import candidate_lines


def explain(request: Request, host: Host | None = None) -> Selection:
    """Return the selection of a request; ``chosen`` is None where it is refused.

    Args:
        request: what a layer needs.
        host: the facts of the machine; left out, the running machine is probed.
    """
    return survey(request, host or probe(), KERNELS)


def as_text(selection: Selection) -> str:
    """Return the selection as lines: what was asked, the choice, every candidate, notes."""
    chosen = selection.chosen.backend.value if selection.chosen else "nothing usable"
    lines = [f"{selection.request}: {chosen}", *candidate_lines(selection.trace)]
    return "\n".join([*lines, *(f"note: {note}" for note in selection.notes)])
