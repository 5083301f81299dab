"""Shared libraries compiled from a few lines of C for the broken environments of the doctor's tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compile_library(source: str, target: Path) -> None:
    """Compile a few lines of C to a shared library, or skip where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    code = target.with_suffix(".c")
    code.write_text(source, encoding="utf-8")
    command = [compiler, "-shared", "-fPIC", "-o", str(target), str(code)]
    subprocess.run(command, check=True, capture_output=True)
    code.unlink()
