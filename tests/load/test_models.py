"""Odd checkpoints: rules against tensors, tied heads, missing and surplus tensors, biases."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from load_cases import VOCABULARY, edit, edit_settings, logits, same, stored, tiny
from safetensors.torch import load_file, save_file
from torch import nn

import quantfarm
from quantfarm.errors import CheckpointError, TensorMismatch
from quantfarm.formats import packer, table
from quantfarm.load.convert import convert
from quantfarm.runtime.linear import QuantLinear

IDS = torch.tensor([[1, 7, 150, 3]])
PATH = "model.layers.0.mlp.down_proj"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the tiny dense model once."""
    return tiny(tmp_path_factory.mktemp("tiny") / "dense")


@pytest.fixture
def packed(dense: Path, tmp_path: Path) -> Path:
    """Quantize it for one test."""
    convert(dense, tmp_path / "packed", group_size=32)
    return tmp_path / "packed"


def _plain(tensors: dict[str, torch.Tensor], dense: Path, module: str = PATH) -> None:
    for name in [name for name in tensors if name.startswith(f"{module}.")]:
        del tensors[name]
    tensors[f"{module}.weight"] = load_file(dense / "model.safetensors")[f"{module}.weight"]


def test_r14_excluded_layers_stay_as_stored(dense: Path, packed: Path) -> None:
    """R14: a layer that a rule excludes and the file holds dense is a normal linear with the stored weight."""
    edit(packed, lambda tensors: _plain(tensors, dense))
    edit_settings(packed, dynamic={r"-:.*\.down_proj": {}})
    model = quantfarm.load(packed, device="cpu")
    module = model.get_submodule(PATH)
    assert isinstance(module, nn.Linear)
    assert torch.equal(module.weight, load_file(dense / "model.safetensors")[f"{PATH}.weight"])
    assert isinstance(model.get_submodule("model.layers.0.mlp.up_proj"), QuantLinear)
    assert not any(PATH in note for note in model.quantfarm.notes)


def test_r14_a_layer_without_any_tensor_stops_the_load(packed: Path) -> None:
    """R14: with neither weight nor qweight the load raises and names the layer; nothing stays empty."""
    edit(packed, lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith(PATH)])
    for rule in ({}, {r"-:.*\.down_proj": {}}):
        edit_settings(packed, dynamic=rule)
        with pytest.raises(CheckpointError, match=rf"(?s)modules without tensors.*{PATH}\.weight"):
            quantfarm.load(packed, device="cpu")


def test_r17_tensors_decide_against_the_rules(dense: Path, packed: Path) -> None:
    """R17: packed where the rules say dense, and dense where they say packed, both load and are reported by name."""
    edit_settings(packed, dynamic={r"-:.*\.down_proj": {}})
    model = quantfarm.load(packed, device="cpu")
    assert isinstance(model.get_submodule(PATH), QuantLinear)
    assert any(note.startswith(f"{PATH}: the settings say dense") for note in model.quantfarm.notes)
    edit_settings(packed, dynamic={})
    edit(packed, lambda tensors: _plain(tensors, dense))
    model = quantfarm.load(packed, device="cpu")
    assert isinstance(model.get_submodule(PATH), nn.Linear)
    assert any(note.startswith(f"{PATH}: the settings say packed") for note in model.quantfarm.notes)


def test_packed_tensors_need_a_home(packed: Path) -> None:
    """Packed tensors that no linear module of the model takes are an error with their names, not left out."""
    edit(packed, lambda tensors: tensors.update({"model.gone.qweight": torch.zeros(8, 8, dtype=torch.int32)}))
    with pytest.raises(CheckpointError, match=r"model\.gone: needs a linear module, got none of that name"):
        quantfarm.load(packed, device="cpu")


def test_surplus_dense_tensors_are_reported(packed: Path) -> None:
    """A plain tensor without a place is noted; a stored rotary table of older writers is not worth a word."""
    extra = {"model.extra.weight": torch.zeros(2), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    edit(packed, lambda tensors: tensors.update(extra))
    notes = "\n".join(quantfarm.load(packed, device="cpu").quantfarm.notes)
    assert "model.extra.weight" in notes
    assert "inv_freq" not in notes


def test_misshapen_tensors_are_named(packed: Path) -> None:
    """A dense shape that is not the model's, and packed ones that are not, stop the load with both numbers."""
    edit(packed, lambda tensors: tensors.update({"model.norm.weight": torch.ones(63)}))
    with pytest.raises(TensorMismatch, match=r"model\.norm\.weight: needs \[64\], got \[63\]"):
        quantfarm.load(packed, device="cpu")
    edit(packed, lambda tensors: tensors.update({f"{PATH}.scales": tensors[f"{PATH}.scales"][:2].clone()}))
    with pytest.raises(TensorMismatch, match=rf"(?s){PATH}.*scales.*needs 3 .*got 2"):
        quantfarm.load(packed, device="cpu")


def test_biases_are_applied_and_demanded(tmp_path: Path) -> None:
    """A model with attention biases computes with them, and a packed layer that lacks its bias stops the load."""
    source = tiny(tmp_path / "dense", bias=True)
    convert(source, tmp_path / "packed", bits=8, group_size=32)
    model = quantfarm.load(tmp_path / "packed", device="cpu", dtype=torch.float32)
    from transformers import AutoModelForCausalLM

    expected = logits(AutoModelForCausalLM.from_pretrained(source), IDS)
    assert float((logits(model, IDS) - expected).norm() / expected.norm()) < 0.02
    name = "model.layers.0.self_attn.q_proj.bias"
    edit(tmp_path / "packed", lambda tensors: tensors.__delitem__(name))
    with pytest.raises(TensorMismatch, match=r"q_proj.*\n.*bias.*needs \[64\], got none"):
        quantfarm.load(tmp_path / "packed", device="cpu")


def _tied(tmp_path: Path) -> Path:
    convert(tiny(tmp_path / "dense", tied=True), tmp_path / "packed", group_size=32)
    return tmp_path / "packed"


def _shared(model: nn.Module) -> bool:
    head, embedding = model.get_submodule("lm_head"), model.get_submodule("model.embed_tokens")
    return head.weight is embedding.weight


@pytest.mark.parametrize("both", [False, True])
def test_r22_tied_embeddings_share_storage(tmp_path: Path, both: bool) -> None:
    """R22: with the embedding alone, and with an equal stored head, both names are one parameter; saving keeps that."""
    folder = _tied(tmp_path)
    assert "lm_head.weight" not in stored(folder)
    if both:
        edit(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    model = quantfarm.load(folder, device="cpu")
    assert _shared(model)
    model.save_pretrained(tmp_path / "again")
    again = quantfarm.load(tmp_path / "again", device="cpu")
    assert _shared(again)
    assert torch.equal(logits(again, IDS), logits(model, IDS))


def test_a_different_dense_head_wins_over_the_tie(tmp_path: Path) -> None:
    """R22: a stored head that differs from the embedding is kept, and the untie is reported and saved."""
    folder = _tied(tmp_path)
    head = torch.randn(VOCABULARY, 64)
    edit(folder, lambda t: t.update({"lm_head.weight": head}))
    model = quantfarm.load(folder, device="cpu")
    assert torch.equal(model.get_submodule("lm_head").weight, head)
    assert any("lm_head" in note and "differs; not tied" in note for note in model.quantfarm.notes)
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(quantfarm.load(tmp_path / "again", device="cpu").get_submodule("lm_head").weight, head)


def test_r22_a_packed_head_wins_over_the_tie(tmp_path: Path) -> None:
    """R22: a packed head with an odd vocabulary is kept packed, the untie is reported, and saving keeps the state."""
    folder = _tied(tmp_path)
    result = packer.quantize_rtn(torch.randn(VOCABULARY, 64), bits=4, group_size=32, sym=True)
    config = quantfarm.load(folder, device="cpu").quantfarm.config
    tensors = table.find(config.method, config.format).write()(packer.to_quant_tensor(result, config), config)
    edit(folder, lambda t: t.update({f"lm_head.{name}": tensor for name, tensor in tensors.items()}))
    edit_settings(folder, lm_head=True)
    model = quantfarm.load(folder, device="cpu")
    assert isinstance(model.get_submodule("lm_head"), QuantLinear)
    assert any("lm_head" in note and "is packed; not tied" in note for note in model.quantfarm.notes)
    before = logits(model, IDS)
    model.save_pretrained(tmp_path / "again")
    assert same(stored(tmp_path / "again"), stored(folder))
    assert torch.equal(logits(quantfarm.load(tmp_path / "again", device="cpu"), IDS), before)


def test_r16_a_missing_shard_stops_the_load(dense: Path, tmp_path: Path) -> None:
    """R16: a packed model in several files loads whole, and with one file gone it raises instead of answering."""
    convert(dense, tmp_path / "packed", group_size=32, shard_bytes=20_000)
    files = sorted((tmp_path / "packed").glob("model-*.safetensors"))
    assert len(files) > 2
    quantfarm.load(tmp_path / "packed", device="cpu")
    files[1].unlink()
    with pytest.raises(CheckpointError, match=files[1].name):
        quantfarm.load(tmp_path / "packed", device="cpu")


def test_moved_words_of_another_layout_are_refused(packed: Path) -> None:
    """R26: a folder whose tensors are not in the layout that its settings name is refused by name."""
    path = packed / "model.safetensors"
    tensors = load_file(path)
    tensors[f"{PATH}.qweight"] = tensors[f"{PATH}.qweight"].reshape(-1, 32).clone()
    save_file(tensors, path)
    with pytest.raises(TensorMismatch, match=f"{PATH}"):
        quantfarm.load(packed, device="cpu")
