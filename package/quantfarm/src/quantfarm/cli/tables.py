"""A trace as a table for the terminal; the facts are those of its text and JSON."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from quantfarm.select.selection import Selection
from quantfarm.select.wording import verdict


def trace_table(selection: Selection, heading: str = "") -> Table:
    """Return one row a candidate: its name, its number, whether it is the choice, and why not."""
    title = "\n".join(part for part in (heading, str(selection.request)) if part)
    table = Table(title=Text(title), title_justify="left")
    for name in ("backend", "priority", "choice", "reasons"):
        table.add_column(name, overflow="fold")
    for candidate in selection.trace:
        chosen = selection.chosen is not None and candidate.spec_name == selection.chosen.name
        number = "" if candidate.priority is None else str(candidate.priority)
        row = (candidate.spec_name, number, "chosen" if chosen else "", verdict(candidate))
        table.add_row(*map(Text, row))
    return table
