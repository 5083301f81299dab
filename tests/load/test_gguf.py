"""Models loaded from .gguf files: blocks kept as they are, the numbers of transformers' own dense import."""

from __future__ import annotations

from pathlib import Path

import gguf
import gguf_files
import gguf_models
import numpy as np
import pytest
import torch
from gguf_models import IDS, mixed, model_of
from load_cases import logits
from torch import nn

import quantfarm
from quantfarm.declare.names import METHOD
from quantfarm.errors import CheckpointError, ConfigError, UnknownFormat
from quantfarm.load.gguf_model import ARCHITECTURES
from quantfarm.runtime.linear import QuantLinear


def imported(path: Path) -> torch.Tensor:
    """Return the logits of transformers' own import of a file, decoded to fp32."""
    from transformers import AutoModelForCausalLM

    return logits(AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32), IDS)


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Say whether two sets of logits agree but for rounding in fp32."""
    return float((found - wanted).norm() / wanted.norm()) < 1e-5


def _type(layer: QuantLinear) -> str:
    return layer.weight_tensor().code_type


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_r91_mixed_types_load_unfused(tmp_path: Path, architecture: str) -> None:
    """R91: q, k, v, gate and up of five types load as a layer each, a plain one as a linear, and the numbers agree."""
    path = gguf_models.write(tmp_path / "model.gguf", model_of(architecture))
    model = quantfarm.load(path, device="cpu")
    attention = model.get_submodule("model.layers.0.self_attn")
    assert type(attention.v_proj) is nn.Linear
    assert [_type(getattr(attention, f"{name}_proj")) for name in "qko"] == ["q4_0", "q8_0", "q5_1"]
    assert _type(model.lm_head) == "q5_1"
    assert not any("settings say" in note for note in model.quantfarm.notes)
    assert model.quantfarm.config.method is METHOD.GGUF
    assert close(logits(model, IDS), imported(path))


def test_rows_of_queries_and_keys_come_back_in_order(tmp_path: Path) -> None:
    """The reordering that llama.cpp does is undone on packed rows: they are the bytes of the model's own rows."""
    source = model_of("llama", attention_bias=True)
    path = gguf_models.write(tmp_path / "model.gguf", source)
    state = quantfarm.load(path, device="cpu").state_dict()
    kinds = {"q_proj": "Q4_0", "k_proj": "Q8_0", "o_proj": "Q5_1"}
    for name, kind in kinds.items():
        module = f"model.layers.1.self_attn.{name}"
        weight = source.get_submodule(module).weight.detach().numpy()
        packed = gguf.quants.quantize(weight, gguf.GGMLQuantizationType[kind])
        assert torch.equal(state[f"{module}.qweight"], torch.from_numpy(packed)), module
        assert torch.equal(state[f"{module}.bias"], source.get_submodule(module).bias), module


def test_tied_embeddings_are_decoded_and_shared(tmp_path: Path) -> None:
    """Without output.weight the head is the embedding, decoded once; the numbers agree."""
    path = gguf_models.write(tmp_path / "model.gguf", model_of("llama", tied=True))
    model = quantfarm.load(path, device="cpu", dtype=torch.float32)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert close(logits(model, IDS), imported(path))


def test_a_folder_with_one_file_is_that_file(tmp_path: Path) -> None:
    """A folder that holds one .gguf file and no safetensors loads; with two it asks for one of them."""
    path = gguf_models.write(tmp_path / "model.gguf", model_of("llama"))
    packed = [m for m in quantfarm.load(tmp_path, device="cpu").modules() if isinstance(m, QuantLinear)]
    assert len(packed) == 13
    path.rename(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes((tmp_path / "a.gguf").read_bytes())
    with pytest.raises(CheckpointError, match=r"needs one, got a\.gguf, b\.gguf"):
        quantfarm.load(tmp_path, device="cpu")


def test_rope_factors_change_the_frequencies(tmp_path: Path) -> None:
    """The divisors that llama.cpp computed for a long context are applied, not left out."""
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    path = gguf_models.write(tmp_path / "model.gguf", model_of("llama"), extra={"rope_freqs.weight": factors})
    plain = gguf_models.write(tmp_path / "plain.gguf", model_of("llama"))
    scaled, usual = (quantfarm.load(p, device="cpu") for p in (path, plain))
    table = usual.model.rotary_emb.inv_freq / torch.from_numpy(factors)
    assert torch.equal(scaled.model.rotary_emb.inv_freq, table)
    assert not close(logits(scaled, IDS), logits(usual, IDS))


def test_what_can_not_be_read_is_refused_by_name(tmp_path: Path) -> None:
    """Other architectures, rotary scalings, tensors without a place and settings beside the file are named."""
    model = model_of("llama")
    path = gguf_models.write(tmp_path / "m.gguf", model, extra={"llama.rope.scaling.type": "yarn"})
    with pytest.raises(UnknownFormat, match="needs none or linear with a factor, got yarn"):
        quantfarm.load(path)
    path = gguf_models.write(tmp_path / "m.gguf", model, extra={"blk.0.extra.weight": np.ones(4, dtype=np.float32)})
    with pytest.raises(CheckpointError, match=r"blk\.0\.extra\.weight: no tensor of the model"):
        quantfarm.load(path)
    with pytest.raises(ConfigError, match="quantize_config: needs nothing"):
        quantfarm.load(path, {"bits": 4})
    other = {"general.architecture": ("str", "mamba")}
    gguf_files.write(path, gguf_files.encoded(other, gguf_files.three()))
    with pytest.raises(UnknownFormat, match=r"needs one of llama, .*, got mamba"):
        quantfarm.load(path)
    new = gguf_files.Entry(name="new", shape=(3, 32), number=200, data=bytes(96))
    gguf_files.write(path, gguf_files.encoded(gguf_files.SMALL, [*gguf_files.three(), new]))
    with pytest.raises(UnknownFormat, match="new: unknown type 200"):
        quantfarm.load(path)


def test_r88_a_cut_file_is_not_loaded(tmp_path: Path) -> None:
    """R88: a download that stopped is refused with both sizes before a model is built."""
    path = gguf_models.write(tmp_path / "model.gguf", model_of("llama"))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=rf"needs \d+ bytes, got {len(content) // 2}"):
        quantfarm.load(path)


def test_linear_scaling_is_applied(tmp_path: Path) -> None:
    """A linear rotary scaling of the metadata reaches the model."""
    extra = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    path = gguf_models.write(tmp_path / "model.gguf", model_of("llama"), mixed, extra)
    usual = gguf_models.write(tmp_path / "usual.gguf", model_of("llama"))
    tables = [quantfarm.load(p, device="cpu").model.rotary_emb.inv_freq for p in (path, usual)]
    assert torch.allclose(tables[0] * 4, tables[1])


def test_l08_one_bit_files_become_plain_unless_memory_is_asked_for(tmp_path: Path) -> None:
    """L08: profiles auto and fast decode Q1_0 and ignore a named backend, which the report says; low_memory packs."""
    source = model_of("llama", hidden_size=128, intermediate_size=128)
    path = gguf_models.write(tmp_path / "model.gguf", source, lambda name: "F16" if "_embd" in name else "Q1_0")
    backend = quantfarm.load(path, device="cpu", profile="low_memory").model.layers[0].mlp.up_proj.spec.backend
    models = [quantfarm.load(path, device="cpu", profile=p, backend=backend) for p in ("auto", "fast", "low_memory")]
    packed = [sum(isinstance(module, QuantLinear) for module in model.modules()) for model in models]
    assert packed == [0, 0, 15]
    for model in models[:2]:
        notes = "\n".join(model.quantfarm.notes)
        assert "q1_0 blocks of model.gguf were decoded to plain weights" in notes
        assert f"backend {backend.value} was ignored" in notes
        assert not hasattr(model.config, "quantization_config")
        assert close(logits(model, IDS), logits(models[2], IDS))
