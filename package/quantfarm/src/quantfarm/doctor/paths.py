"""Copies of one package on the path: the first wins, and nothing says so until the doctor looks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from quantfarm.doctor.finding import Finding
from quantfarm.select.remedy import installer


def copies(module: str, path: Sequence[str]) -> tuple[Path, ...]:
    """Return the folders of a module on a search path, the winning one first, each once."""
    found = [(Path(entry or ".") / module).resolve() for entry in path]
    return tuple(dict.fromkeys(folder for folder in found if folder.is_dir()))


def is_source_tree(folder: Path) -> bool:
    """Say whether a module's folder lies in a source tree: a project file stands one or two levels above it."""
    return any((parent / "pyproject.toml").is_file() for parent in list(folder.parents)[:2])


def duplicate_findings(modules: Sequence[str], path: Sequence[str] | None = None) -> tuple[Finding, ...]:
    """Return one finding for each module that lies on the path more than once."""
    findings = []
    for module in modules:
        found = copies(module, sys.path if path is None else path)
        if len(found) < 2:
            continue
        winner, loser = found[:2]
        kind = "a source tree shadows the installed package" if is_source_tree(winner) else "two copies on the path"
        findings.append(
            Finding(
                code="duplicate",
                evidence=", ".join(map(str, found)),
                sentence=f"{module}: {kind}: {winner} wins over {loser}",
                command=f"{installer().removesuffix(' install')} uninstall {module.replace('_', '-')}",
            )
        )
    return tuple(findings)
