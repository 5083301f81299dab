"""A back-end wheel's module made in a temporary folder and put first on the path."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doctor_wheels import compile_library

from quantfarm import __version__
from quantfarm.runtime.artifacts import sha256

LEVELS = ["x86_64_avx2", "x86_64_avx512", "x86_64_avx512_vnni"]
MakeWheel = Callable[..., Path]


@pytest.fixture
def make_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeWheel:
    """Return a function that makes the module: from C source or bytes, with changes to its manifest."""

    def make(source: str = "", content: bytes = b"", **manifest: Any) -> Path:
        folder = tmp_path / "quantfarm_cpu"
        folder.mkdir()
        library = folder / "libquantfarm_cpu.so"
        if source:
            compile_library(source, library)
        else:
            library.write_bytes(content)
        facts: dict[str, Any] = {
            "schema": 1,
            "package": "quantfarm-cpu",
            "version": __version__,
            "family": "cpu",
            "library": library.name,
            "sha256": sha256(library),
            "bytes": library.stat().st_size,
            "torch_abi": "2.10",
            "built_with": {"torch": "2.10.0", "compiler": "GNU"},
            "kernels": [{"kernel": "int4_panel", "ops": [], "archs": LEVELS, "symbols": {}}],
            "skipped": [],
        }
        (folder / "manifest.json").write_text(json.dumps(facts | manifest), encoding="utf-8")
        (folder / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "quantfarm_cpu", raising=False)
        return folder

    return make
