"""Small checkpoints for the tests of loading: a tiny model on disk, edits of its tensors, the real slices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from quantfarm.declare.registry import implemented_records
from quantfarm.declare.spec import ArtifactKind, KernelSpec, declared
from quantfarm.runtime.artifacts import load_library

# Workers share the cores: threads that wait for each other by spinning would make every product slower, not faster.
torch.set_num_threads(1)

DATA = Path(__file__).parent / "data"
SLICES = sorted(path.parent for path in DATA.glob("*/expected.safetensors"))
VOCABULARY = 151


def tiny(folder: Path, *, tied: bool = False, bias: bool = False, dtype: torch.dtype = torch.float32) -> Path:
    """Write a Llama of one layer with an odd vocabulary, hidden size 64, intermediate size 96."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        attention_bias=bias,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).to(dtype)
    if bias:
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a folder with one file."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def edit_settings(folder: Path, **settings: Any) -> None:
    """Change keys of the quantization settings in both files that state them."""
    for name, nested in (("config.json", True), ("quantize_config.json", False)):
        path = folder / name
        content = json.loads(path.read_text())
        (content["quantization_config"] if nested else content).update(settings)
        path.write_text(json.dumps(content))


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a folder, from all its files."""
    tensors: dict[str, torch.Tensor] = {}
    for path in folder.glob("model*.safetensors"):
        tensors |= load_file(path)
    return tensors


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits in fp32."""
    with torch.no_grad():
        out: torch.Tensor = model(ids).logits
    return out.float()


def usable(method: str, form: str, bits: int) -> list[KernelSpec]:
    """Return the records that read a pair at a width and whose code is present here."""
    return [
        spec
        for spec in implemented_records()
        if spec.method.value == method
        and any(form in {f.value for f in row.formats} and bits in declared(row.bits) for row in spec.accepts)
        and (spec.artifact.kind is ArtifactKind.NONE or load_library(spec.artifact.library).status == "loaded")
    ]


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Say whether two sets of tensors have equal names, dtypes and bytes."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )
