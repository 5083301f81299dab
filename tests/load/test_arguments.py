"""What load() takes: every argument does something or says why not."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from load_cases import SLICES, tiny

import quantfarm
from quantfarm.declare.names import BACKEND, PROFILE, BadType, UnknownName
from quantfarm.errors import CheckpointError, ConfigError
from quantfarm.load.model import load
from quantfarm.load.skeleton import find_folder
from quantfarm.runtime.linear import QuantLinear

SLICE = next(path for path in SLICES if "g64-sym" in path.name)


def test_the_signature_is_the_published_one() -> None:
    """Names, order and defaults are those that callers of the seed use, by position too."""
    parameters = inspect.signature(load).parameters
    assert list(parameters) == [
        "model_id_or_path",
        "quantize_config",
        "device_map",
        "device",
        "backend",
        "profile",
        "trust_remote_code",
        "allow_remote_adapter",
        "adapter_revision",
        "adapter_sha256",
        "kwargs",
    ]
    assert parameters["backend"].default is BACKEND.AUTO
    assert parameters["profile"].default is PROFILE.AUTO


@pytest.mark.parametrize("value", [torch.float16, "float16", "torch.float16"])
@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtype_is_that_of_dense_weights_and_outputs(key: str, value: object) -> None:
    """Both spellings work; packed words, scales and their bytes are untouched by it."""
    model = load(SLICE, device="cpu", **{key: value})
    assert model.get_input_embeddings().weight.dtype == torch.float16
    assert model(torch.tensor([[1, 2]])).logits.dtype == torch.float16
    assert model.quantfarm.dtype == "float16"


def test_dtype_defaults_to_the_configuration() -> None:
    """Left out, or auto, the dtype of config.json is used."""
    for value in ({}, {"dtype": "auto"}, {"dtype": None}):
        assert load(SLICE, device="cpu", **value).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"dtype": torch.float64}, ConfigError, r"dtype: needs float16, bfloat16, float32, got float64"),
        ({"dtype": "float16", "torch_dtype": "float32"}, ConfigError, "two dtypes"),
        ({"backend": "gptq_torhc"}, UnknownName, "nearest known names"),
        ({"backend": 3}, BadType, "backend"),
        ({"profile": "quick"}, UnknownName, "profile"),
        ({"allow_remote_adapter": True}, ConfigError, "allow_remote_adapter: needs nothing, got True"),
        ({"adapter_revision": "main"}, ConfigError, "adapter_revision"),
        ({"adapter_sha256": "00"}, ConfigError, r"set_adapter"),
        ({"quantize_config": {"adapter": {"name": "lora", "path": "x", "rank": 8}}}, ConfigError, "fetches none"),
        ({"quantize_config": {"bits": 5}}, ConfigError, "bits"),
        ({"device_map": {"model": "cpu", "lm_head": "cuda:0"}}, ConfigError, "several devices"),
        ({"device": "cpu:x"}, UnknownName, "device"),
        ({"offload_folder": "x"}, TypeError, "unknown keyword offload_folder; known: dtype"),
    ],
)
def test_bad_arguments_are_clear_errors(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    """Nothing that was asked for is ignored: an unknown or unsupported value raises and says what is known."""
    with pytest.raises(error, match=text):
        load(SLICE, **{"device": "cpu", **arguments} if "device_map" not in arguments else arguments)


@pytest.mark.parametrize(
    "device_map", ["cpu", "auto", {"": "cpu"}, {"model": "cpu", "lm_head": "cpu"}, torch.device("cpu")]
)
def test_one_device_in_any_spelling(device_map: object) -> None:
    """A device map that names one device places everything there."""
    if device_map == "auto" and torch.accelerator.is_available():
        pytest.skip("auto means the accelerator here")
    model = load(SLICE, device_map=device_map)
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_settings_can_be_overridden() -> None:
    """quantize_config replaces keys of the folder's settings, and the report says so."""
    report = load(SLICE, {"zeros_rule": "per_field"}, device="cpu").quantfarm
    assert report.config.zeros_rule.value == "per_field"
    assert "the argument quantize_config" in report.config.source
    assert load(SLICE, report.config, device="cpu").quantfarm.config is report.config


def test_trainable_layers_train() -> None:
    """AUTO_TRAINABLE gives a model whose train() works and whose input embeddings get gradients."""
    model = load(SLICE, device="cpu", backend="auto_trainable")
    assert not model.training
    model.train()
    model(torch.tensor([[1, 2, 3]])).logits.float().sum().backward()
    assert bool(model.get_input_embeddings().weight.grad.any())
    assert all(m.trainable for m in model.modules() if isinstance(m, QuantLinear))


def test_a_profile_is_noted() -> None:
    """A packed checkpoint has no choice of strategy: the profile is accepted and the report says it did nothing."""
    assert any("profile fast" in note for note in load(SLICE, device="cpu", profile=1).quantfarm.notes)


def test_dense_folders_and_files_are_told_apart(tmp_path: Path) -> None:
    """A dense model, a GGUF file, a missing path and an unknown hub id each say what they are."""
    with pytest.raises(ConfigError, match="not a quantized checkpoint"):
        load(tiny(tmp_path / "dense"), device="cpu")
    (tmp_path / "model.gguf").touch()
    with pytest.raises(CheckpointError, match="the file is empty"):
        load(tmp_path / "model.gguf", device="cpu")
    with pytest.raises(CheckpointError, match="no such folder"):
        load("./nowhere/at-all", device="cpu")
    with pytest.raises(CheckpointError, match="the hub does not give it"):
        find_folder("quantfarm-tests/no-such-model", {"local_files_only": True, "cache_dir": tmp_path})


def test_the_package_is_callable() -> None:
    """quantfarm.load(path) and quantfarm.load.model both work."""
    assert quantfarm.load(SLICE, device="cpu").quantfarm.counts
