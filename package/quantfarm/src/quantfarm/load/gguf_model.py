"""What the metadata of a .gguf file means to transformers: the model's settings and the names of its tensors.

transformers and the package gguf have the tables: which key of the file is which setting, which tensor of the file is
which of the model, and what llama.cpp's converter did to a tensor that has to be undone. They are used as they are.
transformers' own loop over the file is not: it builds a Python object for every token of the vocabulary several times.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from quantfarm.errors import CheckpointError, MissingPackage, UnknownFormat
from quantfarm.formats.gguf_file import GgufFile

ARCHITECTURES: tuple[str, ...] = ("llama", "qwen2", "qwen3", "starcoder2")
"""Architectures whose matrices are the model's own: each linear layer is one tensor, its rows at most reordered."""

ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotary frequencies, which llama.cpp computes from the scaling rule of Llama 3.1 and later."""

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


def need_packages(path: Path) -> None:
    """Raise MissingPackage where transformers, accelerate or gguf is not installed."""
    for package, extra in (("transformers", "transformers"), ("accelerate", "transformers"), ("gguf", "gguf")):
        if importlib.util.find_spec(package) is None:
            raise MissingPackage(package, needed_for=f"loading {path.name}", extra=extra)


def model_config(file: GgufFile) -> Any:
    """Return transformers' configuration of the model in a file.

    Raises:
        UnknownFormat: an architecture that is not in ``ARCHITECTURES``, or a rotary scaling that is not applied here.
        CheckpointError: a setting that a model can not be without is not in the metadata.
    """
    need_packages(file.path)
    from transformers.integrations import GGUF_CONFIG_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    architecture = file.architecture
    if architecture not in ARCHITECTURES:
        raise UnknownFormat(
            f"cannot load {file.path}: architecture {architecture or 'not stated'}",
            lines=[f"general.architecture: needs one of {', '.join(ARCHITECTURES)}, got {architecture or 'nothing'}"],
            remedy="load a safetensors checkpoint of this model",
        )
    names: Mapping[str, str | None] = GGUF_CONFIG_MAPPING[architecture]
    found = {f"{architecture}.{key}": name for key, name in names.items() if name}
    found |= {f"tokenizer.{key}": name for key, name in GGUF_CONFIG_MAPPING["tokenizer"].items()}
    # Only some architectures of the table name these two, but every file may state them.
    found |= {f"{architecture}.rope.freq_base": "rope_theta", f"{architecture}.attention.key_length": "head_dim"}
    values: dict[str, Any] = {name: file.metadata[key] for key, name in found.items() if key in file.metadata}
    missing = [
        key for key, name in found.items() if name in ("hidden_size", "num_hidden_layers") and name not in values
    ]
    if missing:
        raise CheckpointError(
            f"cannot load {file.path}: metadata is missing",
            lines=[f"{key}: needs a number, got nothing" for key in missing],
            remedy="convert the model again",
        )
    if _EMBEDDING in file.tensors:
        values["vocab_size"] = file.tensors[_EMBEDDING].shape[0]
    # The metadata says nothing on biases; the tensors do. Models that always have them take no such setting.
    biases = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    values |= {name: True for name, tensor in biases.items() if architecture == "llama" and tensor in file.tensors}
    values |= _rope_scaling(file)
    return CONFIG_MAPPING[architecture].from_dict({**values, "tie_word_embeddings": _HEAD not in file.tensors})


def names_of(file: GgufFile, wanted: Iterable[str], layers: int) -> dict[str, str]:
    """Return tensor name of the file to tensor name of the model.

    Raises:
        CheckpointError: tensors of the file without a place in the model; leaving one out would change the results.
    """
    import gguf

    architecture = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == file.architecture)
    table = gguf.get_tensor_name_map(architecture, layers)
    places: dict[str, str] = {}
    for name in wanted:
        module, _, suffix = name.rpartition(".")
        theirs = table.get_name(module)
        if theirs is not None:
            places[f"{theirs}.{suffix}"] = name
    lines = [f"{name}: no tensor of the model" for name in file.tensors if name not in places and name != ROPE_FACTORS]
    if lines:
        raise CheckpointError(
            f"cannot load {file.path}: the model that transformers builds has no place for some tensors",
            lines=[*lines[:12], *([f"and {len(lines) - 12} more"] if len(lines) > 12 else [])],
            remedy="load a safetensors checkpoint of this model",
        )
    return {name: places[name] for name in file.tensors if name in places}


def undo_of(file: GgufFile, config: Any) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """Return the function that undoes what llama.cpp's converter did to a tensor of a name."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    processor = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)(config=config.to_dict())

    def undo(name: str, tensor: torch.Tensor) -> torch.Tensor:
        values = tensor.float() if tensor.dtype is torch.bfloat16 else tensor  # numpy has no bfloat16
        return torch.from_numpy(processor.process(weights=values.numpy(), name=name).weights)

    return undo


def scale_rope(model: Any, factors: torch.Tensor) -> None:
    """Divide the rotary frequencies of a model by the factors of its file, fp32 [head_dim / 2].

    Raises:
        CheckpointError: the model has no frequencies of this number.
    """
    done = 0
    for module in model.modules():
        table = getattr(module, "inv_freq", None)
        if isinstance(table, torch.Tensor) and table.shape == factors.shape:
            module.inv_freq = table / factors.to(table.device)
            module.original_inv_freq = module.inv_freq.clone()
            done += 1
    if not done:
        raise CheckpointError(
            f"cannot apply {ROPE_FACTORS}: the model has no rotary frequencies of this number",
            lines=[f"inv_freq: needs {list(factors.shape)}, got none"],
        )


def _rope_scaling(file: GgufFile) -> dict[str, Any]:
    """Return the rotary scaling in transformers' words; a file states its kind and factor."""
    prefix = f"{file.architecture}.rope.scaling"
    kind = file.metadata.get(f"{prefix}.type", "none")
    if kind == "none":
        return {}
    if kind == "linear" and f"{prefix}.factor" in file.metadata:
        return {"rope_scaling": {"rope_type": "linear", "factor": float(file.metadata[f"{prefix}.factor"])}}
    raise UnknownFormat(
        f"cannot load {file.path}: rotary scaling of another kind",
        lines=[f"{prefix}.type: needs none or linear with a factor, got {kind}"],
        remedy="load a safetensors checkpoint of this model",
    )
