"""Adapters that the settings name: found beside the checkpoint, read in both forms, refused by name otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from load_cases import DATA
from safetensors.torch import save_file
from torch import nn

from quantfarm.errors import CheckpointError, ConfigError
from quantfarm.load.adapters import attach, read_adapters

MODULE = "model.layers.0.self_attn.k_proj"
K, N, RANK = 12, 6, 3


def drawn(kind: torch.dtype = torch.float16) -> tuple[torch.Tensor, torch.Tensor]:
    """Return lora_A [K, rank] and lora_B [rank, N]."""
    source = torch.Generator().manual_seed(0)
    return torch.randn(K, RANK, generator=source).to(kind), torch.randn(RANK, N, generator=source).to(kind)


def own(folder: Path, a: torch.Tensor, b: torch.Tensor, ending: str = "") -> Path:
    """Write the own form as one file."""
    path = folder / "lora.safetensors"
    save_file({f"{MODULE}.lora_A{ending}": a, f"{MODULE}.lora_B{ending}": b}, path)
    return path


def peft(folder: Path, a: torch.Tensor, b: torch.Tensor, **config: Any) -> Path:
    """Write a folder as PEFT does: both factors transposed, settings beside them."""
    folder.mkdir(exist_ok=True)
    name = f"base_model.model.{MODULE}"
    tensors = {f"{name}.lora_A.weight": a.t().contiguous(), f"{name}.lora_B.weight": b.t().contiguous()}
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "bias": "none", "use_dora": False, **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("ending", ["", ".weight"])
def test_r94_the_own_form_is_read_in_any_dtype(tmp_path: Path, kind: torch.dtype, ending: str) -> None:
    """R94: fp16, bf16 and fp32 factors keep their dtype and values, by a path relative to the checkpoint or not."""
    a, b = drawn(kind)
    path = own(tmp_path, a, b, ending)
    for stated in (path.name, str(path)):
        adapter = read_adapters({"name": "lora", "path": stated, "rank": RANK}, tmp_path)[MODULE]
        assert torch.equal(adapter.lora_A, a)
        assert torch.equal(adapter.lora_B, b)
        assert (adapter.scale, adapter.lora_A.dtype) == (1.0, kind)


def test_r92_the_form_of_peft_is_turned_and_scaled(tmp_path: Path) -> None:
    """R92: an adapter_config.json means transposed factors and alpha / r, or alpha / sqrt(r) where it says so."""
    a, b = drawn()
    stated = {"name": "lora", "path": "lora"}
    peft(tmp_path / "lora", a, b)
    adapter = read_adapters(stated, tmp_path)[MODULE]
    assert torch.equal(adapter.lora_A, a)
    assert torch.equal(adapter.lora_B, b)
    assert adapter.scale == 2.0
    peft(tmp_path / "lora", a, b, use_rslora=True)
    assert read_adapters(stated, tmp_path)[MODULE].scale == pytest.approx(6 / 3**0.5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lora_alpha": None}, "lora_alpha: needs a positive number, got None"),
        ({"r": 0}, "r: needs a positive number, got 0"),
        ({"use_dora": True}, "use_dora: needs nothing, got True"),
        ({"rank_pattern": {"x": 2}}, "rank_pattern"),
        ({"bias": "all"}, "bias: needs none, got 'all'"),
        ({"peft_type": "IA3"}, "peft_type: needs LORA, got 'IA3'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_r94_what_is_no_plain_lora_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    """R94: a missing alpha, rank 0 and settings that change the product are named, never ignored."""
    peft(tmp_path / "lora", *drawn(), **change)
    with pytest.raises(ConfigError, match=says):
        read_adapters({"path": "lora"}, tmp_path)


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"name": "lora", "path": "someone/an-adapter", "rank": 8}, "fetches none\n.*got 'someone/an-adapter'"),
        ({"name": "ia3", "path": "x"}, "needs lora or eora, got 'ia3'"),
        ({"name": "lora"}, "adapter.path: needs a local folder or file, got none"),
        ("lora", "needs an object with name and path, got 'lora'"),
    ],
)
def test_entries_that_name_no_local_file_are_refused(tmp_path: Path, stated: object, says: str) -> None:
    """A hub name, another kind of adapter and an entry without a path are clear errors."""
    with pytest.raises(ConfigError, match=says):
        read_adapters(stated, tmp_path)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Transposed factors without PEFT's settings, another rank, rank 0, NaN, one factor alone, foreign tensors."""
    a, b = drawn()
    stated = {"path": "lora.safetensors", "rank": RANK}

    def refused(says: str) -> None:
        with pytest.raises(CheckpointError, match=says):
            read_adapters(stated, tmp_path)

    own(tmp_path, a.t().contiguous(), b.t().contiguous())
    refused(r"needs lora_A \[K, rank\] and lora_B \[rank, N\](.|\n)*without a adapter_config\.json")
    own(tmp_path, a[:, :2].contiguous(), b[:2].contiguous())
    refused("needs rank 3, got 2")
    own(tmp_path, a[:, :0].contiguous(), b[:0].contiguous())
    refused("rank of at least 1, got 0")
    own(tmp_path, a, torch.full_like(b, torch.nan))
    refused("lora_B needs finite values, got 18 that are not")
    save_file({f"{MODULE}.lora_A": a, "head.weight": b}, tmp_path / "lora.safetensors")
    refused(r"head\.weight: needs a name(.|\n)*got no lora_B")
    (tmp_path / "lora.safetensors").write_bytes(b"cut off")
    refused("can not be read")


def test_an_adapter_for_no_quantized_layer_is_refused(tmp_path: Path) -> None:
    """Modules that the model lacks or holds dense are named; nothing is dropped silently."""
    own(tmp_path, *drawn())
    adapters = read_adapters({"path": "lora.safetensors"}, tmp_path)
    with pytest.raises(CheckpointError, match=rf"{MODULE}: needs a quantized layer, got none of that name"):
        attach(nn.Module(), adapters)
    with pytest.raises(CheckpointError, match="needs a quantized layer, got Linear"):
        attach(nn.ModuleDict({"fc": nn.Linear(2, 2)}), {"fc": adapters[MODULE]})


def test_r95_a_model_loads_with_the_adapter_of_its_settings(tmp_path: Path) -> None:
    """R95: load() attaches the factors; the layer adds their product and gives them gradients when it trains."""
    from quantfarm import load

    stored = DATA / "gptq-4bit-g64-sym"
    plain = load(stored, device="cpu", dtype=torch.float32, backend="auto_trainable")
    layer = plain.get_submodule(MODULE)
    a = torch.randn(layer.in_features, RANK) * 0.1
    b = torch.randn(RANK, layer.out_features) * 0.1
    entry = {"name": "lora", "path": str(own(tmp_path, a, b)), "rank": RANK}
    model = load(stored, {"adapter": entry}, device="cpu", dtype=torch.float32, backend="auto_trainable")
    adapted = model.get_submodule(MODULE)
    x = torch.randn(2, layer.in_features)
    assert torch.allclose(adapted(x), layer(x) + x @ a @ b, atol=1e-5)
    adapted(x).sum().backward()
    assert adapted.adapter.lora_A.grad.any()
    assert sum(getattr(module, "adapter", None) is not None for module in model.modules()) == 1
    assert not any("adapter" in note for note in model.quantfarm.notes)
