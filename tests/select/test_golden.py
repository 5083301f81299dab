"""The golden table: request x host gives this choice and these codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from select_asks import ask
from select_hosts import HOSTS

from quantfarm.declare.registry import KERNELS
from quantfarm.errors import KernelRefused
from quantfarm.select.choose import choose
from quantfarm.select.explain import explain
from quantfarm.select.selection import Selection

ROWS: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("golden.yaml").read_text(encoding="utf-8"))


def outcome(row: dict[str, Any]) -> tuple[str, Selection]:
    """Return the chosen record's name, or ``refused``, and the trace."""
    host = HOSTS[row["host"]]
    try:
        selection = choose(ask(row["ask"], host, row.get("backend", "auto")), host, KERNELS)
    except KernelRefused as error:
        return "refused", cast("Selection", error.trace)
    assert selection.chosen is not None
    return selection.chosen.name, selection


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_row(row: dict[str, Any]) -> None:
    """The choice and every code ahead of it are those of the table, in order."""
    chosen, selection = outcome(row)
    candidates = selection.trace[:1] if chosen == "refused" and not selection.request.automatic else selection.ahead
    codes = {candidate.spec_name: [reason.code for reason in candidate.reasons] for candidate in candidates}
    assert (chosen, codes) == (row["chosen"], row["codes"])


def test_ids_are_unique() -> None:
    """Each row has a name of its own."""
    assert len({row["id"] for row in ROWS}) == len(ROWS) >= 40


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_explain_says_the_same_without_raising(row: dict[str, Any]) -> None:
    """The explanation of a row has the trace that choosing had; strict refusals still show what would run."""
    host = HOSTS[row["host"]]
    chosen, selection = outcome(row)
    shown = explain(ask(row["ask"], host, row.get("backend", "auto")), host)
    assert shown.trace == selection.trace
    if chosen != "refused":
        assert shown.chosen is selection.chosen
