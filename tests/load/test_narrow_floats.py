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
from quantfarm.formats import fp4, fp8
from quantfarm.formats.config import parse
from quantfarm.formats.packer import quantize_rtn
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


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    """Return settings of compressed-tensors with one group."""
    group = {"targets": ["Linear"], "weights": {"symmetric": True, **weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"g": group}, "ignore": ["lm_head"]}


def by_channel(w: torch.Tensor) -> Packed:
    """Round to float8 with a multiplier for each output, weight_scale [N, 1]."""
    says = parse({"method": "fp8", "weight_scale_method": "row", "weight_scale_semantics": "multiply"}, source="test")
    weight = fp8.pack(w, says)
    return {"weight": weight.codes, "weight_scale": weight.scales}, weight.decoded()


def by_nvfp4(w: torch.Tensor) -> Packed:
    """Round to E2M1 with e4m3 scales and a scale over all that divides."""
    says = parse({"method": "fp8", "format": "nvfp4", "weight_global_scale_semantics": "divide"}, source="test")
    weight = fp4.pack(w, says)
    return {**weight.source, "input_global_scale": torch.tensor([2.0])}, weight.decoded()


def by_integers(w: torch.Tensor) -> Packed:
    """Round to 4 bits in groups of 32 with zero points, packed as weight_packed by plain loops over the fields."""
    found = quantize_rtn(w, bits=4, group_size=32, sym=False)
    (k, n), groups = found.codes.shape, found.scales.shape[0]
    scales = found.scales.half()
    spread = torch.arange(k) // 32
    dense = (found.codes.float() - found.zeros.float()[spread]) * scales.float()[spread]
    fields = found.codes.t().to(torch.int64).reshape(n, k // 8, 8)
    points = found.zeros.t().to(torch.int64).reshape(n // 8, 8, groups)
    lanes = 4 * torch.arange(8)
    packed = {
        "weight_packed": _as_words((fields << lanes).sum(2)),
        "weight_scale": scales.t(),
        "weight_zero_point": _as_words((points << lanes[:, None]).sum(1)),
        "weight_shape": torch.tensor([n, k]),
    }
    return packed, dense.t()


def _as_words(unsigned: torch.Tensor) -> torch.Tensor:
    return torch.where(unsigned >= 1 << 31, unsigned - (1 << 32), unsigned).to(torch.int32)


FOREIGN = {
    "float-quantized": (compressed("float-quantized", num_bits=8, type="float", strategy="channel"), by_channel),
    "nvfp4": (
        compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16),
        by_nvfp4,
    ),
    "pack-quantized": (
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=False),
        by_integers,
    ),
}


@pytest.mark.parametrize("name", list(FOREIGN))
def test_compressed_tensors_answer_as_the_dense_model(tmp_path: Path, name: str) -> None:
    """Folders of compressed-tensors load without a word of their own and keep every stored byte."""
    settings, pack = FOREIGN[name]
    folder, expected = folder_of(tmp_path / "m", settings, pack)
    model = quantfarm.load(folder, device="cpu", dtype=torch.float32)
    assert model.quantfarm.counts["dense"] == 1
    assert torch.allclose(logits(model, IDS), expected, rtol=1e-4, atol=1e-5)
    state = {name: t for name, t in model.state_dict().items() if "proj" in name}
    assert bytes_of(state) == bytes_of({name: t for name, t in stored(folder).items() if "proj" in name})


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
