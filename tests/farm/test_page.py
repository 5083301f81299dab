"""The page shows what records prove, in the same words as the terminal, on any day."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import farm_records
import pytest

from farm import build, cells, declarations, errors, evidence, matrix, page, places, plan
from farm.state import LADDER, SIDE
from farm.view import LETTERS, MEANINGS, now_of, source_hash, view

RULES = matrix.load(places.MATRIX)
DECLARED = declarations.read()
PLANNED = plan.cells(RULES, DECLARED, "default")
SPEED = {
    "roof_read_gbs": 30.0,
    "threads": 2,
    "weights": "cold",
    "rows": [
        {
            "n": 4096,
            "k": 4096,
            "group_size": 128,
            "m": 1,
            "dtype": "bfloat16",
            "noise": 0.01,
            "median_us": 300.0,
            "p10_us": 290.0,
            "p90_us": 310.0,
            "percent_of_read_roof": 88.0,
            "peers": {
                "torch int4 operator": {
                    "median_us": 600.0,
                    "ratio": {"median": 0.5, "low": 0.48, "high": 0.52},
                    "verdict": "faster",
                }
            },
        }
    ],
}


def made(cell: cells.Cell, **changes: Any) -> evidence.Record:
    """Return a passing record of a planned cell with the kernel's real checksum."""
    kernel_hash = build.kernel_hashes(DECLARED)[cell.kernel]
    return farm_records.record(cell, what={"kernel_hash": kernel_hash}, **changes)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Send all output into a temporary folder, with evidence for every cell that would run."""
    for name in ("EVIDENCE", "SITE", "DIST"):
        monkeypatch.setattr(places, name, tmp_path / name.lower())
    monkeypatch.setattr(places, "BUILD_RECORD", tmp_path / "dist" / "build.json")
    monkeypatch.setattr(places, "SUPPORT_PAGE", tmp_path / "docs" / "support-matrix.md")
    monkeypatch.setattr(places, "ROOT", places.ROOT)
    for cell in (c for c in PLANNED if c.runs):
        speed = {"speed": SPEED} if cell.kind == "throughput" else {}
        evidence.append(tmp_path / "evidence" / "2026-12-01-abc-default.jsonl", made(cell, **speed))
    return tmp_path


def states(tree: Path) -> dict[str, str]:
    """Write the site and return the state of each cell as the JSON says it."""
    page.write()
    values = json.loads((tree / "site" / "support-matrix.json").read_text())
    return {kind["id"]: kind["state"] for row in values["rows"] for sq in row["squares"] for kind in sq["kinds"]}


def test_every_cell_is_shown_with_a_letter_and_a_way_to_repeat_it(tree: Path) -> None:
    """Each planned cell stands on the page with its command; every state has a letter and a meaning of its own."""
    found = states(tree)
    assert set(found) == {cell.id for cell in PLANNED}
    html = (tree / "site" / "index.html").read_text()
    assert all(f'id="{name}"' in html for name in found)
    assert set(LETTERS) == set(MEANINGS) == {*LADDER, *SIDE}
    assert len(set(LETTERS.values())) == len(LETTERS)
    assert "<script" not in html
    assert RULES.sentence.split()[0] in html


def test_links_have_their_targets(tree: Path) -> None:
    """Every link of the matrix leads to a section of the page."""
    page.write()
    html = (tree / "site" / "index.html").read_text()
    targets = set(re.findall(r'id="([^"]+)"', html))
    links = set(re.findall(r'href="#([^"]+)"', html))
    assert links
    assert links <= targets


def test_deleting_one_line_of_evidence_lowers_exactly_that_cell(tree: Path) -> None:
    """One line less: one cell untested, all others as before."""
    before = states(tree)
    path = next((tree / "evidence").glob("*.jsonl"))
    lines = path.read_text().splitlines(keepends=True)
    gone = json.loads(lines[3])["what"]["cell"]
    path.write_text("".join(lines[:3] + lines[4:]))
    after = states(tree)
    assert {name for name in before if before[name] != after[name]} == {gone}
    assert after[gone] == "untested"


def test_the_page_does_not_depend_on_the_day_or_the_order(tree: Path) -> None:
    """Two runs over the same input give the same bytes, and a changed record gives another source hash."""
    page.write()
    first = (tree / "docs" / "support-matrix.md").read_bytes()
    page.write()
    assert (tree / "docs" / "support-matrix.md").read_bytes() == first
    source = page.sources(with_wheels=False)
    other = page.Source(
        matrix=RULES,
        declarations=DECLARED,
        records=source.records[1:],
        now=now_of(RULES, DECLARED, source.records[1:], None),
    )
    assert source_hash(source) != source_hash(other)


def test_the_checked_in_page_is_compared(tree: Path) -> None:
    """--check passes right after writing and fails after an edit by hand."""
    page.write()
    page.check()
    path = tree / "docs" / "support-matrix.md"
    path.write_text(path.read_text().replace("untested", "measured", 1))
    with pytest.raises(errors.PageStale, match="python -m farm page"):
        page.check()


def test_the_page_is_refused_for_another_wheel_or_bad_evidence(tree: Path) -> None:
    """A wheel in dist/ that is not the built one, and a broken line of evidence, end the page with their codes."""
    (tree / "dist").mkdir()
    row = {"distribution": "quantfarm", "name": "front.whl", "sha256": farm_records.FRONT}
    (tree / "dist" / "build.json").write_text(json.dumps({"wheels": [row], "compiler": "GNU 12"}))
    (tree / "dist" / "front.whl").write_bytes(b"another file")
    with pytest.raises(errors.WheelDiffers):
        page.write()
    (tree / "dist" / "build.json").unlink()
    (tree / "evidence" / "bad.jsonl").write_text("{}\n")
    with pytest.raises(errors.EvidenceInvalid, match=r"bad\.jsonl, line 1"):
        page.write()
    assert not (tree / "site" / "index.html").exists()


def test_other_built_wheels_make_every_cell_stale(tree: Path) -> None:
    """A record of another file can not raise a cell above stale."""
    (tree / "dist").mkdir()
    (tree / "dist" / "front.whl").write_bytes(b"new")
    digest = places.sha256(tree / "dist" / "front.whl")
    row = {"distribution": "quantfarm", "name": "front.whl", "sha256": digest}
    (tree / "dist" / "build.json").write_text(json.dumps({"wheels": [row], "compiler": "GNU 12"}))
    found = states(tree)
    assert {found[cell.id] for cell in PLANNED if cell.runs} == {"stale"}


def test_the_terminal_prints_the_words_of_the_page(tree: Path) -> None:
    """explain-cell gives state, reason, figures and command of the page's cell."""
    cell = next(c for c in PLANNED if c.runs and c.kind == "throughput")
    text = page.explain(cell.id)
    page.write()
    html = (tree / "site" / "index.html").read_text()
    values = view(page.sources(with_wheels=True))
    mine = next(k for row in values["rows"] for sq in row["squares"] for k in sq["kinds"] if k["id"] == cell.id)
    for words in (mine["state"], mine["why"], *mine["facts"]):
        assert words in text
        assert words in html
    assert "2.00 [1.92, 2.08], faster" in text
    assert mine["reproduce"] in text
    with pytest.raises(errors.PlanInvalid, match="no such cell"):
        page.explain("nobody@nowhere#parity")


def test_the_table_names_every_record_of_the_declarations(tree: Path) -> None:
    """R76: the page under docs/ is made from the declarations, so no record can be missing or invented."""
    page.write()
    text = (tree / "docs" / "support-matrix.md").read_text()
    table = text.split("## Wheels")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) == [r["name"] for r in DECLARED["records"]]
    assert text.startswith("<!-- Generated")
