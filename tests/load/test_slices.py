"""Real checkpoints of peers: logits, kernels, saved bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from load_cases import SLICES, logits, same, stored, usable
from safetensors.torch import load_file

import quantfarm
from quantfarm.errors import KernelRefused
from quantfarm.formats.config import find_settings, parse
from quantfarm.load.report import LoadReport
from quantfarm.runtime.instruction_set import force
from quantfarm.runtime.linear import QuantLinear
from quantfarm.select.choose import select

every_slice = pytest.mark.parametrize("folder", SLICES, ids=lambda path: path.name)
BOUNDS = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Relative L2 of the logits after a whole layer in the dtype; 1e-5 is what the data's README demands in fp32."""


def _facts(folder: Path) -> tuple[str, str, int]:
    settings, source = find_settings(folder)
    config = parse(settings, source=source)
    return config.method.value, config.format.value, config.bits


@every_slice
def test_logits_match_in_every_backend(folder: Path) -> None:
    """Each backend that reads the slice gives the writer's logits, in each of its dtypes, and is the one that ran."""
    expected = load_file(folder / "expected.safetensors")
    for spec in usable(*_facts(folder)):
        for dtype in spec.activations:
            try:
                model = quantfarm.load(folder, backend=spec.backend, dtype=dtype, device="cpu")
            except KernelRefused:
                # Refused by group size or shape, as declared; test_a_demanded_backend_is_never_replaced has the text.
                continue
            found = logits(model, expected["input_ids"])
            error = float((found - expected["logits"]).norm() / expected["logits"].norm())
            assert error < BOUNDS[dtype], f"{spec.name} {dtype}: {error:.3g}"
            layers = [m for m in model.modules() if isinstance(m, QuantLinear)]
            assert len(layers) == 7
            assert {layer.spec.name for layer in layers} == {spec.name}
            assert dict(model.quantfarm.counts) == {spec.backend.value: 7, "dense": 1}


@every_slice
def test_r26_saved_again_the_bytes_are_the_same(folder: Path, tmp_path: Path) -> None:
    """R26: after load and a forward pass, save_pretrained writes the checkpoint's names and bytes, and it reopens."""
    model = quantfarm.load(folder, device="cpu")
    ids = load_file(folder / "expected.safetensors")["input_ids"]
    before = logits(model, ids)
    model.save_pretrained(tmp_path)
    assert same(stored(tmp_path), stored(folder))
    again = quantfarm.load(tmp_path, device="cpu")
    assert torch.equal(logits(again, ids), before)
    assert again.quantfarm.config.facts() == model.quantfarm.config.facts()
    portable = usable(*_facts(folder))[-1]
    other = quantfarm.load(tmp_path, device="cpu", backend=portable.backend)
    assert torch.allclose(logits(other, ids), before, atol=0.3)


def test_a_model_outlives_its_file(tmp_path: Path) -> None:
    """R22: saving over the folder that a model came from works, and changes of the file do not reach the model."""
    folder = tmp_path / "copy"
    shutil.copytree(SLICES[0], folder)
    model, ids = quantfarm.load(folder, device="cpu"), torch.tensor([[1, 2, 3]])
    before = logits(model, ids)
    model.save_pretrained(folder)
    assert torch.equal(logits(quantfarm.load(folder, device="cpu"), ids), before)
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.write(b"\xff" * 100_000)
    assert torch.equal(logits(model, ids), before)


def test_the_report_says_what_runs_and_why(caplog: pytest.LogCaptureFixture) -> None:
    """One line per kind of layer with the reasons of better backends; JSON and text hold the same facts."""
    folder = next(path for path in SLICES if "g64-sym" in path.name)
    with caplog.at_level("INFO", logger="quantfarm"):
        report = quantfarm.load(folder, device="cpu").quantfarm
    assert isinstance(report, LoadReport)
    assert len(report.kinds) == 4
    assert sum(len(kind.modules) for kind in report.kinds) == 7
    lines = [record.message for record in caplog.records]
    assert lines == report.lines() or lines == [line.removeprefix("note: ") for line in report.lines()]
    for kind, line in zip(report.kinds, lines, strict=False):
        assert f"{select(kind.selection.request).backend} for {len(kind.modules)} layers" in line
    content = json.loads(json.dumps(report.as_json()))
    assert content["counts"] == dict(report.counts)
    assert str(report).startswith(str(folder))


def test_a_loaded_model_generates() -> None:
    """Greedy decoding works through transformers' own generate, twice the same."""
    model = quantfarm.load(SLICES[0], device="cpu")
    ids = torch.tensor([[1, 5, 9]])
    first = model.generate(ids, max_new_tokens=6, do_sample=False, attention_mask=torch.ones_like(ids))
    assert first.shape[1] <= 9
    assert torch.equal(
        first, model.generate(ids, max_new_tokens=6, do_sample=False, attention_mask=torch.ones_like(ids))
    )


def test_a_demanded_backend_is_never_replaced() -> None:
    """A backend that can not serve the slice is refused with the layer, its reasons and one that would run."""
    folder = next(path for path in SLICES if "8bit" in path.name)
    method, form, bits = _facts(folder)
    readers = {spec.backend for spec in usable(method, form, bits)}
    other = next(spec.backend for spec in usable(method, form, 4) if spec.backend not in readers)
    with pytest.raises(KernelRefused, match=r"(?s)\(layer model\.layers\.0\..*scheme_bits.*use backend="):
        quantfarm.load(folder, backend=other, device="cpu")


@pytest.mark.parametrize("isa", ["avx2", "auto"])
def test_the_forced_code_path_computes(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """QUANTFARM_CPU_ISA reaches the library through load: every launch of the model is on the named path."""
    folder = next(path for path in SLICES if path.name.startswith("gptq-4bit-g64-sym"))
    native = [spec for spec in usable(*_facts(folder)) if spec.artifact.library == "cpu"]
    if not native:
        pytest.skip("quantfarm-cpu is not installed")
    count = torch.ops.quantfarm_cpu.int4_panel_calls
    monkeypatch.setenv("QUANTFARM_CPU_ISA", isa)
    try:
        model = quantfarm.load(folder, backend=native[0].backend, device="cpu")
        before, all_before = count(1), count(0)
        logits(model, torch.tensor([[1, 2, 3]]))
        grown, all_grown = count(1) - before, count(0) - all_before
    finally:
        force("auto")
    assert all_grown > 0
    assert grown == (all_grown if isa == "avx2" else 0)
