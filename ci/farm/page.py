"""The support matrix: site/index.html, site/support-matrix.json and docs/support-matrix.md, made from evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from farm import build, declarations, evidence, matrix, places
from farm.errors import PageStale, PlanInvalid
from farm.view import Source, now_of, view

TEMPLATES = Path(__file__).with_name("templates")
BARS = 40


def sources(*, with_wheels: bool) -> Source:
    """Read declarations, matrix, evidence and, for the site, what was built.

    Raises:
        EvidenceInvalid: a line that is no record.
        WheelDiffers: a wheel in dist/ is not the one that was built.
    """
    rules, declared = matrix.load(places.MATRIX), declarations.read()
    records = evidence.read_all(places.EVIDENCE)
    built = build.read().record if with_wheels and places.BUILD_RECORD.is_file() else None
    return Source(matrix=rules, declarations=declared, records=records, now=now_of(rules, declared, records, built))


def files() -> dict[Path, str]:
    """Return every generated file with its text.

    The site speaks of the wheels in dist/. The page under docs/ is checked in, so it speaks of the wheels of the
    newest record, whatever lies in dist/.
    """
    site, kept = view(sources(with_wheels=True)), view(sources(with_wheels=False))
    return {
        places.SITE / "index.html": render("index.html.j2", site),
        places.SITE / "support-matrix.json": json.dumps(site, indent=1, sort_keys=True) + "\n",
        places.SUPPORT_PAGE: render("support-matrix.md.j2", kept),
    }


def render(template: str, values: Mapping[str, Any]) -> str:
    """Fill in a template; an undefined name is an error."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    engine = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        autoescape=template.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return engine.get_template(template).render(values)


def write() -> list[Path]:
    """Write all files and return their paths."""
    made = files()
    for path, text in made.items():
        places.write_atomic(path, text)
    return list(made)


def check() -> None:
    """Compare the checked-in page with what it would be now.

    Raises:
        PageStale: it differs.
    """
    text = files()[places.SUPPORT_PAGE]
    found = places.SUPPORT_PAGE.read_text(encoding="utf-8") if places.SUPPORT_PAGE.is_file() else ""
    if found != text:
        raise PageStale(
            f"docs/{places.SUPPORT_PAGE.name} is not what declarations and evidence give", remedy="python -m farm page"
        )


def explain(cell_id: str) -> str:
    """Return one cell as text: the same facts and words as on the page.

    Raises:
        PlanInvalid: no such cell.
    """
    values = view(sources(with_wheels=True))
    cells = {
        kind["id"]: (row, square, kind)
        for row in values["rows"]
        for square in row["squares"]
        for kind in square["kinds"]
    }
    if cell_id not in cells:
        record = cell_id.partition("@")[0]
        near = [name for name in cells if name.startswith(record)] or list(cells)
        raise PlanInvalid(f"cannot explain {cell_id}: no such cell", lines=near[:8], remedy="python -m farm plan")
    _, square, kind = cells[cell_id]
    return render("cell.txt.j2", {"square": square, "cell": kind})
