"""Small checkpoints whose weights are looked up, loaded as a whole: logits of the decoded weights, bytes, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import trellis_cases
import vector_cases
from load_cases import VOCABULARY, edit, logits, same, stored
from safetensors.torch import save_file
from torch import nn

import quantfarm
from quantfarm.errors import ConfigError, TensorMismatch
from quantfarm.runtime.linear import QuantLinear

IDS = torch.tensor([[1, 7, 150, 3]])
PATH = "model.layers.0.mlp.down_proj"
Made = tuple[dict[str, torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def plain() -> nn.Module:
    """Build a Llama of one layer whose sides are multiples of 128."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        attention_bias=True,
    )
    return LlamaForCausalLM(config).eval()


def _checkpoint(plain: Any, folder: Path, settings: dict[str, Any], make: Callable[[int, int, int], Made]) -> Any:
    """Write a folder with every linear layer packed but the head; give ``plain`` the weights that they stand for."""
    tensors = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    layers = [(name, module) for name, module in plain.model.named_modules() if isinstance(module, nn.Linear)]
    for seed, (name, module) in enumerate(layers):
        packed, exact = make(module.in_features, module.out_features, seed)
        del tensors[f"model.{name}.weight"]
        tensors |= {f"model.{name}.{suffix}": tensor for suffix, tensor in packed.items()}
        module.weight.data = exact.float()
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    content = plain.config.to_dict() | {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(content))
    return plain


def _exl3(k: int, n: int, seed: int) -> Made:
    tensors = trellis_cases.stored(k, n, bits=seed % 8 + 1, codebook="mcg", seed=seed)
    return tensors, trellis_cases.literal(tensors)


def _case(k: int, n: int) -> vector_cases.Case:
    """Take every part that a layer can have; sizes that no vector divides."""
    parts: dict[str, Any] = {"outlier_size": 8, "outlier_vector": 3, "norm": True, "perm": True, "residual": 6}
    return vector_cases.Case(n=n, vector=6, groups=2, group_size=(k - 8) // 2, **parts)


def _vptq(k: int, n: int, seed: int) -> Made:
    case = replace(_case(k, n), seed=seed)
    tensors = case.stored()
    tensors["weight_scale"] *= 0.05
    tensors["weight_bias"] *= 0.05
    return tensors, vector_cases.literal(tensors, case.own())


_BY_TAIL = {"shared_layer_config": {f"{name}_proj": _case(128, 128).own() for name in "qkvo"}}
_BY_NAME = {
    "config_for_layers": {
        "model.layers.0.mlp.gate_proj": _case(128, 256).own(),
        "model.layers.0.mlp.up_proj": _case(128, 256).own(),
        PATH: _case(256, 128).own(),
    }
}
CASES = {
    "exl3": (trellis_cases.settings(bits=3.5, codebook="mcg", head_bits=None), _exl3),
    "vptq": ({"quant_method": "vptq", **_BY_TAIL, **_BY_NAME}, _vptq),
}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_computes_with_its_decoded_weights(name: str, plain: nn.Module, tmp_path: Path) -> None:
    """Logits are those of a dense model with the decoded weights; saved again, names and bytes are the same."""
    expected = logits(_checkpoint(plain, tmp_path / "packed", *CASES[name]), IDS)
    model = quantfarm.load(tmp_path / "packed", device="cpu", dtype=torch.float32)
    assert sum(isinstance(module, QuantLinear) for module in model.modules()) == 7
    assert float((logits(model, IDS) - expected).norm() / expected.norm()) < 1e-5
    model.save_pretrained(tmp_path / "again")
    assert same(stored(tmp_path / "again"), stored(tmp_path / "packed"))
    again = quantfarm.load(tmp_path / "again", device="cpu", dtype=torch.float32)
    assert torch.equal(logits(again, IDS), logits(model, IDS))


def test_a_cut_trellis_stops_the_load(plain: nn.Module, tmp_path: Path) -> None:
    """A trellis that misses its last tiles stops the load with the layer's name and both numbers."""
    _checkpoint(plain, tmp_path / "packed", *CASES["exl3"])
    edit(tmp_path / "packed", lambda t: t.update({f"{PATH}.trellis": t[f"{PATH}.trellis"][:15].clone()}))
    with pytest.raises(TensorMismatch, match=rf"(?s){PATH}.*trellis +tiles: needs 16 \(K=256\), got 15"):
        quantfarm.load(tmp_path / "packed", device="cpu")


def test_a_layer_that_no_setting_describes_stops_the_load(plain: nn.Module, tmp_path: Path) -> None:
    """Packed tensors of a layer whose settings are gone are refused with its name, not left out."""
    settings = {"quant_method": "vptq", **_BY_TAIL}
    _checkpoint(plain, tmp_path / "packed", settings, _vptq)
    with pytest.raises(ConfigError, match=r"cannot load model\.layers\.0\.mlp\..*the settings do not describe it"):
        quantfarm.load(tmp_path / "packed", device="cpu")
