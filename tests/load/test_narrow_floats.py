"""Whole folders of narrow floats as other tools write them, loaded and compared with the dense model in fp32."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from load_cases import VOCABULARY, edit, logits, stored, tiny
from safetensors.torch import save_file

import quantfarm
from quantfarm.errors import CheckpointError, TensorMismatch
from quantfarm.formats import fp8
from quantfarm.formats.config import parse
from quantfarm.runtime.linear import QuantLinear

IDS = torch.arange(1, 17).reshape(2, 8) % VOCABULARY
Packed = tuple[dict[str, torch.Tensor], torch.Tensor]
"""The stored tensors of one module by suffix, and the weight they stand for."""

FINE_GRAINED = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [48, 40],
    "modules_to_not_convert": ["lm_head"],
}


def fine_grained(w: torch.Tensor) -> Packed:
    """Round as transformers' fine-grained FP8 does: blocks whose scale multiplies, partial at the edges."""
    weight = fp8.pack(w, parse(FINE_GRAINED, source="test"))
    return dict(weight.source), weight.decoded()


def folder_of(
    path: Path, settings: Mapping[str, Any], pack: Callable[[torch.Tensor], Packed]
) -> tuple[Path, torch.Tensor]:
    """Write a tiny model with every projection packed; return the folder and what the dense model answers."""
    from transformers import AutoModelForCausalLM

    folder = tiny(path)
    kept, dense = {}, {}
    for name, tensor in stored(folder).items():
        if name.endswith("proj.weight"):
            packed, dense[name] = pack(tensor)
            kept |= {f"{name.removesuffix('weight')}{suffix}": t.contiguous() for suffix, t in packed.items()}
        else:
            kept[name] = tensor
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.load_state_dict(dense, strict=False)
    expected = logits(model.eval(), IDS)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": dict(settings)}))
    return folder, expected


def bytes_of(state: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.dtype, bytes]]:
    """Return dtypes and bytes; torch compares no narrow floats."""
    return {name: (t.dtype, t.reshape(-1).view(torch.uint8).numpy().tobytes()) for name, t in state.items()}


def test_fine_grained_fp8_answers_as_the_dense_model(tmp_path: Path) -> None:
    """A folder of transformers' FP8 with partial blocks loads, says its convention once, and keeps its bytes."""
    folder, expected = folder_of(tmp_path / "m", FINE_GRAINED, fine_grained)
    model = quantfarm.load(folder, device="cpu", dtype=torch.float32)
    assert {m.spec.backend.value for m in model.modules() if isinstance(m, QuantLinear)} == {"fp8_torch"}
    assert torch.allclose(logits(model, IDS), expected, rtol=1e-4, atol=1e-5)
    notes = [note for note in model.quantfarm.notes if "times weight_scale_inv" in note]
    assert len(notes) == 1
    state = {name: t for name, t in model.state_dict().items() if "proj" in name}
    assert bytes_of(state) == bytes_of({name: t for name, t in stored(folder).items() if "proj" in name})


def test_r19_a_scale_without_a_module_stops_the_load(tmp_path: Path) -> None:
    """R19: a scale key that belongs to no module of the model is an error that names it, not skipped."""
    folder, _ = folder_of(tmp_path / "m", FINE_GRAINED, fine_grained)
    edit(folder, lambda t: t.update({"model.layers.0.mlp.gate.weight_scale_inv": torch.ones(1, 1)}))
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.mlp\.gate: needs a linear module"):
        quantfarm.load(folder, device="cpu")


def test_codes_without_a_scale_stop_the_load(tmp_path: Path) -> None:
    """A weight of 8-bit codes whose scale is missing is not taken for plain values."""
    folder, _ = folder_of(tmp_path / "m", FINE_GRAINED, fine_grained)
    edit(folder, lambda t: t.pop("model.layers.0.mlp.up_proj.weight_scale_inv"))
    with pytest.raises(TensorMismatch, match=r"up_proj\.weight: needs a float of 16 bits or more, got F8_E4M3"):
        quantfarm.load(folder, device="cpu")
