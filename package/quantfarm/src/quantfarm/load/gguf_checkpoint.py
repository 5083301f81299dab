"""A .gguf file behind the face of a checkpoint folder: the model's tensor names, packed rows kept as they are.

The checkpoint tensors of a native file are those of the safetensors form (formats, section 10): ``qweight`` uint8
[N, bytes], rows in the order of the model, for every linear layer whose type has blocks; plain tensors under their
names for everything else. Blocks run along K, so a reordering of outputs moves whole rows and rounds nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quantfarm.declare import ggml
from quantfarm.declare.ggml import GgmlType
from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import CheckpointError, UnknownFormat
from quantfarm.formats import table
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.gguf_file import GgufFile, GgufTensor, open_gguf, unknown_type
from quantfarm.formats.rules import DynamicRule
from quantfarm.load import gguf_model
from quantfarm.load.checkpoint import Checkpoint, shortened

_PLAIN: Mapping[str, torch.dtype] = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_PACKED = "qweight"


@dataclass(frozen=True, kw_only=True)
class GgufCheckpoint(Checkpoint):
    """The tensors of one file by the model's names.

    Attributes:
        file: the opened file.
        places: name in the model to the tensor of the file.
        orders: for packed tensors whose rows the file has in another order: the file's row for each of the model's.
        undo: takes back what llama.cpp's converter did to a plain tensor.
    """

    file: GgufFile
    places: Mapping[str, GgufTensor]
    orders: Mapping[str, torch.Tensor]
    undo: Any = field(repr=False)

    def tensor(self, name: str) -> torch.Tensor:
        """Read one tensor into memory of its own: rows of blocks for a packed one, decoded values for a plain one."""
        place = self.places[name]
        if not name.endswith(f".{_PACKED}"):
            values: torch.Tensor = self.undo(place.name, decoded(self.file, place)).contiguous()
            return values
        rows = _bytes(self.file, place).view(place.shape[0], -1)
        return rows.index_select(0, self.orders[name]) if name in self.orders else rows

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that ``tensor`` gives."""
        place = self.places[name]
        if name.endswith(f".{_PACKED}"):
            return place.shape[0], place.size // place.shape[0]
        return place.shape

    def dtype(self, name: str) -> str:
        """Return the dtype that ``tensor`` gives, in the spelling of safetensors."""
        kind = self.places[name].type
        return "U8" if name.endswith(f".{_PACKED}") else "F16" if kind and kind.name == "f16" else "F32"


def find_file(path: Path) -> Path | None:
    """Return the .gguf file that a path names: itself, or the only one (or first part) of a folder without others.

    Raises:
        CheckpointError: a folder with several such files and nothing else.
    """
    if path.suffix == ".gguf" and not path.is_dir():
        return path if path.exists() else None
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    found = sorted(path.glob("*.gguf"))
    first = [file for file in found if not re.search(r"-\d{5}-of-\d{5}\.gguf$", file.name) or "-00001-of-" in file.name]
    if len(first) > 1:
        raise CheckpointError(
            f"cannot open {path}: several .gguf files in it",
            lines=[f"*.gguf: needs one, got {', '.join(file.name for file in first)}"],
            remedy="name one of the files",
        )
    return first[0] if first else None


def open_native(path: Path) -> GgufFile:
    """Open a file for loading: every type must be known, every byte in place.

    Raises:
        CheckpointError, UnknownFormat: see ``open_gguf``; a type that nothing here decodes, each tensor named.
    """
    file = open_gguf(path)
    unknown = [unknown_type(tensor) for tensor in file.tensors.values() if tensor.type is None]
    if unknown:
        raise UnknownFormat(
            f"cannot load {path}: tensors of unknown types", lines=shortened(unknown), remedy="use another file"
        )
    if file.big_endian:
        raise UnknownFormat(
            f"cannot load {path}: the file is big-endian", remedy="convert the file to little-endian first"
        )
    return file


def checkpoint_of(file: GgufFile, model: nn.Module, *, packed: bool = True) -> GgufCheckpoint:
    """Give the tensors of a file the names of a model that ``model_config`` describes.

    Args:
        file: from ``open_native``.
        model: its parameters may be on the meta device.
        packed: False decodes every tensor, so that the model is a plain one.

    Raises:
        CheckpointError: a tensor without a place in the model, or rows that are no reordering of the model's.
    """
    config: Any = model.config
    named = gguf_model.names_of(file, model.state_dict(), config.num_hidden_layers)
    undo = gguf_model.undo_of(file, config)
    places: dict[str, GgufTensor] = {}
    orders: dict[str, torch.Tensor] = {}
    for theirs, ours in named.items():
        tensor, (module, _, leaf) = file.tensors[theirs], ours.rpartition(".")
        if not packed or leaf != "weight" or _plain(tensor) or not isinstance(model.get_submodule(module), nn.Linear):
            places[ours] = tensor
            continue
        name = f"{module}.{_PACKED}"
        places[name] = tensor
        order = _row_order(file, tensor, undo)
        if order is not None:
            orders[name] = order
    where = {name: tensor.path for name, tensor in places.items()}
    return GgufCheckpoint(
        folder=file.path, files=file.parts, where=where, file=file, places=places, orders=orders, undo=undo
    )


def settings_of(checkpoint: GgufCheckpoint, model: nn.Module) -> QuantConfig:
    """Return settings that say of each module what the file says: the most frequent type, and rules for the others."""
    linear = (name for name, module in model.named_modules() if isinstance(module, nn.Linear))
    types = {n.removesuffix(f".{_PACKED}"): t.type for n, t in checkpoint.places.items() if n.endswith(f".{_PACKED}")}
    kinds = Counter(kind for kind in types.values() if kind)
    usual = kinds.most_common(1)[0][0] if kinds else ggml.named("f32")[0]
    groups: dict[GgmlType, list[str]] = {}
    for module, kind in types.items():
        if kind is not None and kind is not usual:
            groups.setdefault(kind, []).append(module)
    rules = tuple(
        DynamicRule(
            pattern=f"(?:{'|'.join(map(re.escape, modules))})$",
            exclude=False,
            overrides=(("bits", ggml.block_name(kind)),),
        )
        for kind, modules in groups.items()
    )
    return QuantConfig(
        method=METHOD.GGUF,
        format=FORMAT.GGUF,
        bits=usual.bits,
        group_size=-1,
        sym=True,
        code_type=ggml.block_name(usual),
        details={"bits": ggml.block_name(usual)},
        lm_head="lm_head" in types,
        modules_to_not_convert=tuple(name for name in linear if name not in types and name != "lm_head"),
        dynamic=rules,
        source=checkpoint.file.path.name,
    )


def decoded(file: GgufFile, tensor: GgufTensor) -> torch.Tensor:
    """Return the values of one tensor, fp32 in its shape (plain types in their own dtype)."""
    kind = tensor.type
    assert kind is not None
    content = _bytes(file, tensor)
    if kind.name in _PLAIN:
        return content.view(_PLAIN[kind.name]).view(tensor.shape)
    config = QuantConfig(
        method=METHOD.GGUF,
        format=FORMAT.GGUF,
        bits=kind.bits,
        group_size=-1,
        sym=True,
        code_type=ggml.block_name(kind),
        source=file.path.name,
    )
    k = tensor.shape[-1]
    rows = content.view(tensor.values // k, -1)
    read = table.find(METHOD.GGUF, FORMAT.GGUF).read()
    values: torch.Tensor = read({_PACKED: rows}, config, module=tensor.name, k=k).decoded()
    return values.reshape(tensor.shape)


def _row_order(file: GgufFile, tensor: GgufTensor, undo: Any) -> torch.Tensor | None:
    """Return which row of the file is each row of the model, or None for the same order.

    The converter's change is undone on row numbers instead of values: what comes out is the order.
    """
    numbers = torch.arange(tensor.shape[0]).view(-1, 1)
    order = undo(tensor.name, numbers).reshape(-1)
    if order.shape != numbers.view(-1).shape or not torch.equal(order.sort().values, numbers.view(-1)):
        raise CheckpointError(
            f"cannot load {file.path}: the rows of {tensor.name} are no reordering of the model's",
            lines=[f"{tensor.name}: needs {tensor.shape[0]} rows, each once, got {list(order.shape)}"],
            remedy="load a safetensors checkpoint of this model",
        )
    return None if torch.equal(order, numbers.view(-1)) else order.clone()


def _plain(tensor: GgufTensor) -> bool:
    return tensor.type is not None and tensor.type.name in _PLAIN


def _bytes(file: GgufFile, tensor: GgufTensor) -> torch.Tensor:
    """Return the bytes of a tensor as uint8 in memory of their own, which outlives the file."""
    return torch.frombuffer(bytearray(file.raw(tensor.name)), dtype=torch.uint8)
