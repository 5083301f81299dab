"""The runner's half of the farm needs none of the heavy packages."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from farm import places

LIGHT = ("runner", "evidence", "statistics", "cells", "child", "state", "failure", "recording", "environment", "bundle")
HEAVY = ("pydantic", "duckdb", "altair", "docker", "hypothesis", "elftools", "nox", "auditwheel", "xdist", "psutil")
SCRIPT = """
import importlib, importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {heavy}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
for name in {light}:
    importlib.import_module("farm." + name)
"""


def test_the_runner_works_where_the_heavy_packages_are_blocked() -> None:
    """Runner, evidence, statistics and cells import in a process where heavy packages cannot be imported."""
    script = SCRIPT.replace("{heavy}", repr(set(HEAVY))).replace("{light}", repr(LIGHT))
    variables = {"PYTHONPATH": str(places.ROOT / "ci")}
    done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("path", sorted(places.HARDWARE_TESTS.rglob("*.py")), ids=lambda p: p.name)
def test_hardware_tests_keep_to_the_light_set(path: places.Path) -> None:
    """Hardware tests import torch, numpy, pytest, safetensors, the product and the light farm modules only."""
    allowed = {"torch", "numpy", "pytest", "safetensors", "transformers", "quantfarm", "support", "farm"}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    names += [alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names]
    outside = {name for name in names if name.split(".")[0] not in allowed | set(sys.stdlib_module_names)}
    assert outside == set()
    from farm.bundle import LIGHT as CARRIED

    used = {n.names[0].name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "farm"}
    assert used <= set(CARRIED)
