"""The command line: plan, build, presence, run, evidence, page, explain-cell. Errors carry their exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from farm import places
from farm.errors import FarmError, PresenceFailed

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
evidence_app = typer.Typer(no_args_is_help=True, help="Look at the records.")
app.add_typer(evidence_app, name="evidence")
CONSOLE = Console(highlight=False, soft_wrap=True)

Tier = Annotated[str, typer.Option("--tier", help="quick, default, pr, nightly or release")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]


def main() -> None:
    """Run the command line; an error of the farm becomes its message and its exit code."""
    try:
        app()
    except FarmError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def say(text: str) -> None:
    """Print one line of progress at once."""
    CONSOLE.print(text, markup=False)
    sys.stdout.flush()


def show(rows: Any) -> None:
    """Print values as JSON."""
    print(json.dumps(rows, indent=2))


@app.command()
def matrix(schema: Annotated[bool, typer.Option("--schema", help="print the JSON Schema")] = False) -> None:
    """Check matrix.yaml."""
    from farm import matrix as matrix_file

    if schema:
        show(matrix_file.schema())
        return
    found = matrix_file.load(places.MATRIX)
    say(f"matrix.yaml is valid: {len(found.lanes)} lanes, {len(found.tiers)} tiers, {len(found.exclusions)} exclusions")


@app.command()
def plan(
    tier: Tier = "default",
    as_json: AsJson = False,
    declarations: Annotated[
        Path | None, typer.Option(help="JSON of the declarations instead of the source tree")
    ] = None,
) -> None:
    """Print the cells; nothing is built or run."""
    from farm import declarations as facts
    from farm import matrix as matrix_file
    from farm import plan as planning

    cells = planning.cells(matrix_file.load(places.MATRIX), facts.read(declarations), tier)
    if as_json:
        show({"tier": tier, "cells": [cell.as_json() for cell in cells]})
        return
    table = Table("cell", "runs", "why not", title=f"{sum(c.runs for c in cells)} of {len(cells)} cells run in {tier}")
    for cell in cells:
        table.add_row(cell.id, "yes" if cell.runs else "no", f"{cell.reason}: {cell.note}" if cell.reason else "")
    CONSOLE.print(table)


@app.command()
def build(
    target: Annotated[list[str] | None, typer.Option(help="back end to build; may be given again")] = None,
) -> None:
    """Build the wheels into dist/."""
    from farm import build as building
    from farm import matrix as matrix_file

    found = matrix_file.load(places.MATRIX)
    building.build(found, target or [name for name, row in found.targets.items() if row.built], say)


@app.command()
def presence(wheels: Annotated[list[Path] | None, typer.Argument()] = None, as_json: AsJson = False) -> None:
    """Compare finished wheels with the declarations; without names, those in dist/."""
    from farm import build as building
    from farm import declarations as facts
    from farm import matrix as matrix_file
    from farm import presence as gate
    from farm.wheel import Wheel

    paths = wheels or [places.DIST / row["name"] for row in building.read().wheels]
    report = gate.inspect([Wheel(path) for path in paths], facts.read(), matrix_file.load(places.MATRIX))
    if as_json:
        show({"wheels": report.wheels, "findings": [vars(f) for f in report.findings]})
    else:
        table = Table("record", "arch", "proof in the wheel")
        for (record, arch), proof in report.present.items():
            table.add_row(record, arch, proof)
        CONSOLE.print(table)
        for name, row in report.wheels.items():
            say(
                f"{name}: {row['bytes']} bytes, tag {row['tag']}, measured {row.get('measured_tag', 'no machine code')}"
            )
    if report.findings:
        lines = [str(finding) for finding in report.findings]
        raise PresenceFailed("the wheels are not what is declared", lines=lines, remedy="python -m farm build")


@app.command()
def run(
    tier: Tier = "default",
    cell: Annotated[str, typer.Option(help="id of a cell, or a pattern such as '*@cpu-avx512#parity'")] = "*",
    lane: Annotated[str, typer.Option(help="only this lane")] = "",
) -> None:
    """Run the cells of this machine from the wheels in dist/; every cell becomes a line under evidence/."""
    from farm import ordering, runner

    order = ordering.make(tier, cell, lane)
    records = runner.run(order, say)
    ordering.conclude(order, records, say)


@evidence_app.command("check")
def evidence_check() -> None:
    """Read every line under evidence/ and say what is wrong with the first bad one."""
    from farm import evidence

    records = evidence.read_all(places.EVIDENCE)
    say(f"{len(records)} records, all valid")


@app.command()
def page(
    check: Annotated[
        bool, typer.Option("--check", help="write nothing; fail when the checked-in page differs")
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="show it in a browser, where there is one")] = False,
) -> None:
    """Make the support matrix from declarations and evidence."""
    from farm import page as pages

    if check:
        pages.check()
        say("docs/support-matrix.md is current")
        return
    for path in pages.write():
        say(f"wrote {path.relative_to(places.ROOT)}")
    values = json.loads((places.SITE / "support-matrix.json").read_text(encoding="utf-8"))
    say("cells by state: " + ", ".join(f"{name} {count}" for name, count in values["counts"].items()))
    if open_it:
        browse(places.SITE / "index.html")


def browse(path: Path) -> None:
    """Open a file in a browser; on a machine without one, say where it lies."""
    import os
    import webbrowser

    seen = sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if not (seen and webbrowser.open(path.as_uri())):
        say(f"open {path.relative_to(places.ROOT)} in a browser")


@app.command("explain-cell")
def explain_cell(cell: Annotated[str, typer.Argument(help="id, such as RECORD@LANE#KIND")]) -> None:
    """Print one cell as on the page: state, why, figures, how to reproduce."""
    from farm import page as pages

    print(pages.explain(cell), end="")


if __name__ == "__main__":
    main()
