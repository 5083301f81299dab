"""docs/formats.md is what the table, the records and the tests say today."""

from __future__ import annotations

from formats_page import PAGE, render


def test_the_page_of_formats_is_current() -> None:
    """The checked-in page is the rendered one; `python tests/formats_page.py` writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == render()
