"""What tests/test_layout.py measures: the files, their syntax trees, and the table of import arrows."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FRONT = ROOT / "package" / "quantfarm" / "src" / "quantfarm"
FARM = ROOT / "ci" / "farm"
CODE_SUFFIXES = {".py", ".cpp", ".h", ".cu", ".cuh", ".sh", ".cmake", ".txt", ".toml", ".yml", ".j2"}

FARM_LIGHT = {"runner", "evidence", "statistics", "cells"}
"""Modules of the farm that also run on machines without network, with the light set of packages only."""

_LOW = {"declare", "errors"}
_PACKING = {"formats.packing", "formats.packing_tiles", "formats.packing_codebooks"}
_WEIGHTS = {"formats.quant_tensor", "formats.weights", *_PACKING}
ARROWS: dict[str, set[str]] = {
    "declare": {"declare"},
    "errors": {"declare"},
    "callable_package": set(),
    "formats": {*_LOW, "formats"},
    "reference": {*_LOW, "reference"},
    "select": {*_LOW, "select", "formats.table"},
    "runtime": {*_LOW, "runtime", *_WEIGHTS},
    "kernels": {*_LOW, "runtime", *_WEIGHTS, "kernels"},
    "load": {*_LOW, "formats", "reference", "select", "runtime", "load"},
    "doctor": {*_LOW, "select", "runtime.artifacts", "doctor"},
    "cli": {*_LOW, "select", "doctor", "load", "formats", "cli"},
}
"""Folder (or module) of quantfarm -> what it may import of quantfarm; ``__init__`` may import what it forwards to."""

EXTRA_ARROWS: dict[str, set[str]] = {
    # Says what a folder does not give: the version, and the forwarding of a call.
    "select/host.py": {"runtime.artifacts"},
    "declare/registry.py": {"kernels"},
}
"""Single files with one more arrow; each is named in architecture or in docs/decisions."""

PARAMETER_EXCEPTIONS = {
    "quantfarm.select.compat.select_quant_linear": "the published signature, also positionally",
    "quantfarm.select.compat.hf_select_quant_linear": "the published signature, also positionally",
    "quantfarm.select.compat.hf_select_quant_linear_v2": "the published signature, also positionally",
    "quantfarm.load.model.load": "the published signature of load",
    "quantfarm.load.convert.convert": "the options of the command line, one to one",
}
"""Public signatures that are fixed from outside, with the reason."""


@functools.cache
def tracked() -> tuple[Path, ...]:
    """Return every file that git tracks or would track, so that a forgotten `git add` hides nothing."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(sorted(ROOT / line for line in listing.splitlines() if (ROOT / line).is_file()))


def hand_written() -> Iterator[Path]:
    """Yield source files that people write: code and build files, without data and vendored folders."""
    for path in tracked():
        relative = path.relative_to(ROOT)
        if "third_party" in relative.parts or relative.parts[:2] == ("tests", "data"):
            continue
        if path.suffix in CODE_SUFFIXES:
            yield path


def python_files(*folders: Path) -> Iterator[Path]:
    """Yield the Python files below the folders, or all hand-written ones."""
    for path in hand_written():
        if path.suffix == ".py" and (not folders or any(folder in path.parents for folder in folders)):
            yield path


@functools.cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a file, nested ones included."""
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the physical lines of a function, its decorators left out."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of parameters, ``self`` and ``cls`` left out."""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([n for n in names if n not in ("self", "cls")])


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) for every import; ``from a.b import c`` yields ``a.b.c``."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            prefix = "." * node.level
            yield from ((node.lineno, f"{prefix}{base}.{alias.name}") for alias in node.names)


def where(path: Path, line: int = 0) -> str:
    """Return a short location for messages."""
    name = str(path.relative_to(ROOT))
    return f"{name}:{line}" if line else name
