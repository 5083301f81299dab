"""explain for a checkpoint folder and a supposed target, on a machine without GPU and without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from header_files import GPTQ, checkpoint
from select_hosts import BASE, HOSTS

from quantfarm.cli.suppose import SHARED_MEMORY, suppose
from quantfarm.declare.names import DEVICE

NO_TORCH = "import sys; sys.modules['torch'] = None; from quantfarm.cli import main; main()"


def model(folder: Path, layers: int = 3) -> Path:
    """Write a checkpoint of some layers of two shapes, its tensors empty."""
    shapes: dict[str, tuple[str, list[int]]] = {}
    for layer in range(layers):
        for name, k, n in (("q_proj", 4096, 4096), ("down_proj", 11008, 4096)):
            shapes[f"model.layers.{layer}.{name}.qweight"] = ("I32", [k // 8, n])
    return checkpoint(folder, GPTQ, shapes)


def explain(*words: str) -> tuple[int, str]:
    """Run the command in a process where torch can not be imported; return exit code and output."""
    command = [sys.executable, "-c", NO_TORCH, "explain", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_folder_is_explained_for_a_card_that_is_not_here(tmp_path: Path) -> None:
    """A laptop without GPU and torch says per kind of layer what an H200 would run, why, and what was supposed."""
    code, out = explain(str(model(tmp_path)), "--device", "cuda:0", "--arch", "9.0", "--json")
    plain = json.loads(out)
    assert code == 0
    assert [len(row["modules"]) for row in plain["layers"]] == [3, 3]
    assert {row["backend"] for row in plain["layers"]} == {"gptq_torch"}
    reasons = {c["record"]: [r["code"] for r in c["reasons"]] for c in plain["layers"][0]["trace"]}
    assert (reasons["machete-gptq"], reasons["swordfish-gptq"]) == (["artifact_absent"], ["arch", "artifact_absent"])
    assert plain["supposed"] == "a device sm_90; torch 2.10, which is not installed here; a cuda build of torch"
    assert all(row["next"] for row in plain["layers"])


def test_text_and_table_say_the_same(tmp_path: Path) -> None:
    """The text has the modules, every candidate and what was supposed; the table has the same candidates."""
    words = (str(model(tmp_path)), "--device", "cuda:0", "--arch", "9.0")
    (text_code, text), (table_code, table) = explain(*words), explain(*words, "--table")
    assert text_code == table_code == 0
    assert text.startswith("3 layers: model.layers.0.q_proj, model.layers.1.q_proj, model.layers.2.q_proj")
    for part in ("machete-gptq", "gptq_torch", "supposed: a device sm_90", "next: "):
        assert part in text
        assert part in table


@pytest.mark.parametrize(
    ("arch", "chosen"), [("sm_75", "marlin"), ("10.0", "swordfish"), ("gfx1201", "gptq_torch"), ("sm_90", "machete")]
)
def test_a_supposed_device_has_its_limits(arch: str, chosen: str) -> None:
    """The opt-in shared memory of a known target is supposed too, so that no limit is refused for want of a number."""
    from dataclasses import replace

    from select_asks import ask

    from quantfarm.select.explain import explain as look

    here = HOSTS["ALL-CPU-BF16"]
    host, said = suppose(replace(here, versions={**here.versions, "torch": "2.13.0"}), arch)
    assert said.startswith("a device ")
    selection = look(ask("gptq/gptq W4 g128 fp16", host), host)
    assert selection.backend is not None
    assert selection.backend.value == chosen


def test_supposing_keeps_what_is_here() -> None:
    """A supposed processor has the features of its level; torch is supposed only where it is absent."""
    host, said = suppose(BASE, "x86_64_avx2")
    assert (host.cpu_level, said) == ("x86_64_avx2", "a device x86_64_avx2")
    host, said = suppose(HOSTS["NO-TORCH"], "mps")
    assert host.devices[0].family is DEVICE.MPS
    assert host.versions["torch"] == "2.10"
    assert "not installed here" in said
    limits: Any = SHARED_MEMORY
    assert all(value >= 65536 for value in limits.values())
