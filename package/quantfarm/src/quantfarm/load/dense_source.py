"""Where ``convert`` reads from: a folder with plain weights, tensor by tensor, or a GGUF file through transformers."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quantfarm.errors import CheckpointError, MissingPackage
from quantfarm.formats.safetensors_header import INDEX
from quantfarm.load import skeleton
from quantfarm.load.checkpoint import open_checkpoint

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
_OWN = ("config.json", "quantize_config.json", "quant_config.json", INDEX)


@dataclass(frozen=True, kw_only=True)
class DenseSource:
    """A model to quantize.

    Attributes:
        label: where it comes from, for messages.
        config: the content of config.json.
        linear: modules that can be quantized, the output head left out.
        names: every tensor.
        tensor: reads one tensor.
        shape: returns a tensor's shape without its values.
        copy_rest: writes tokenizer, generation settings and the like into a folder.
    """

    label: str
    config: Mapping[str, Any]
    linear: tuple[str, ...]
    names: tuple[str, ...]
    tensor: Callable[[str], torch.Tensor]
    shape: Callable[[str], tuple[int, ...]]
    copy_rest: Callable[[Path], None]


def open_source(path: Path) -> DenseSource:
    """Open a folder of transformers or a GGUF file.

    Raises:
        CheckpointError: nothing there, incomplete, or quantized already.
        MissingPackage: transformers, accelerate, or gguf for a GGUF file, is not installed.
    """
    if path.is_file() and path.suffix == ".gguf":
        return _from_gguf(path)
    if not path.is_dir():
        found = "another file" if path.exists() else "nothing"
        raise CheckpointError(
            f"cannot read {path}: needs a folder of transformers or a .gguf file, got {found}",
            remedy="name the folder that holds config.json",
        )
    return _from_folder(path)


def _from_folder(folder: Path) -> DenseSource:
    checkpoint = open_checkpoint(folder)
    model, _ = skeleton.build(folder, None, trust_remote_code=False, options={})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    packed = [name for name in checkpoint.where if name.endswith(".qweight")]
    if packed or config.get("quantization_config"):
        found = f"{len(packed)} packed tensors" if packed else "quantization_config in config.json"
        raise CheckpointError(
            f"cannot quantize {folder}: it is quantized already",
            lines=[f"weights: needs plain ones, got {found}"],
            remedy="name the folder of the original model, or pass requantize",
        )

    return DenseSource(
        label=str(folder),
        config=config,
        linear=_linear_modules(model, checkpoint.where),
        names=tuple(checkpoint.where),
        tensor=checkpoint.tensor,
        shape=checkpoint.shape,
        copy_rest=lambda target: rest_of(folder, target),
    )


def rest_of(folder: Path, target: Path) -> None:
    """Copy what lies beside the weights: tokenizer, generation settings, code of the model."""
    for file in folder.iterdir():
        if file.is_file() and file.suffix not in _WEIGHTS and file.name not in _OWN:
            shutil.copyfile(file, target / file.name)


def _from_gguf(path: Path) -> DenseSource:
    """Let transformers decode the file; its weights become fp16, the dtype of the file's own scales."""
    for package, extra in (("transformers", "transformers"), ("gguf", "gguf")):
        if importlib.util.find_spec(package) is None:
            raise MissingPackage(package, needed_for=f"reading {path.name}", extra=extra)
    from transformers import AutoModelForCausalLM

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float16)
    state = {name: t.detach() for name, t in model.named_parameters()}
    state |= {name: t for name, t in model.state_dict().items() if name not in state and not _tied(model, name)}

    return DenseSource(
        label=str(path),
        config=json.loads(model.config.to_json_string(use_diff=False)),
        linear=_linear_modules(model, state),
        names=tuple(state),
        tensor=state.__getitem__,
        shape=lambda name: tuple(state[name].shape),
        copy_rest=lambda target: copy_gguf_rest(path, model, target),
    )


def copy_gguf_rest(path: Path, model: Any, target: Path) -> None:
    """Write the generation settings of a model and the tokenizer that a GGUF file holds into a folder."""
    from transformers import AutoTokenizer

    model.generation_config.save_pretrained(target)
    AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name).save_pretrained(target)


def _tied(model: nn.Module, name: str) -> bool:
    """Say whether a state entry is another name of a parameter that ``named_parameters`` lists once."""
    path, _, leaf = name.rpartition(".")
    return isinstance(getattr(model.get_submodule(path), leaf, None), nn.Parameter)


def _linear_modules(model: Any, stored: Mapping[str, Any]) -> tuple[str, ...]:
    head = model.get_output_embeddings()
    return tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and f"{name}.weight" in stored
    )
