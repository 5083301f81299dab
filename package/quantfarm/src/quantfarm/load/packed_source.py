"""A quantized checkpoint as ``convert`` sees it: a folder or a .gguf file, read module by module."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quantfarm.errors import CheckpointError
from quantfarm.formats.config import QuantConfig, find_settings, parse
from quantfarm.formats.packed import packed_modules
from quantfarm.formats.settings_files import has_settings
from quantfarm.formats.table import find
from quantfarm.formats.weights.base import Weight
from quantfarm.load import gguf_checkpoint, gguf_model, skeleton
from quantfarm.load.checkpoint import Checkpoint, open_checkpoint
from quantfarm.load.dense_source import copy_gguf_rest, rest_of
from quantfarm.load.layers import linear_sizes


@dataclass(frozen=True, kw_only=True)
class PackedSource:
    """A quantized model to rewrite or to decode.

    Attributes:
        label: where it comes from, for messages.
        checkpoint: its tensors.
        config: its settings.
        packed: module to suffix to tensor name.
        model_config: the content of config.json.
        sizes: returns K and N of a module, or None where only the tensors tell them.
        copy_rest: writes tokenizer, generation settings and the like into a folder.
        dtype: what plain tensors become; None leaves them as they are stored.
    """

    label: str
    checkpoint: Checkpoint
    config: QuantConfig
    packed: Mapping[str, Mapping[str, str]]
    model_config: Mapping[str, Any]
    sizes: Callable[[str], tuple[int, int] | None]
    copy_rest: Callable[[Path], None]
    dtype: torch.dtype | None = None

    @property
    def plain(self) -> tuple[str, ...]:
        """The tensors that belong to no packed module."""
        taken = {name for names in self.packed.values() for name in names.values()}
        return tuple(name for name in self.checkpoint.where if name not in taken)

    def read_plain(self, name: str) -> torch.Tensor:
        """Read a tensor that belongs to no packed module."""
        stored = self.checkpoint.tensor(name)
        return stored if self.dtype is None or not stored.is_floating_point() else stored.to(self.dtype)

    def read(self, module: str) -> Weight:
        """Read the weight of one module; raises what the reader of its format raises."""
        mine = self.config.for_module(module) or self.config
        row = find(mine.method, mine.format, mine.dialect)
        names = self.packed[module]
        tensors = {suffix: self.checkpoint.tensor(name) for suffix, name in names.items() if suffix in row.suffixes}
        k, n = self.sizes(module) or (None, None)
        weight: Weight = row.read()(tensors, mine, module=module, k=k, n=n)
        return weight


def is_quantized(path: Path) -> bool:
    """Say whether a source is quantized already: a folder with such settings, or a GGUF file with blocks."""
    file = gguf_checkpoint.find_file(path)
    if file is None:
        return path.is_dir() and has_settings(path)
    return any(t.type is not None and t.type.block > 1 for t in gguf_checkpoint.open_native(file).tensors.values())


def open_packed(path: Path) -> PackedSource:
    """Open a quantized folder or a .gguf file.

    Raises:
        CheckpointError, ConfigError, MissingPackage: as the parts of ``load`` that open such sources.
    """
    file = gguf_checkpoint.find_file(path)
    return _folder(path) if file is None else _native(file)


def _folder(folder: Path) -> PackedSource:
    settings, source = find_settings(folder)
    config, checkpoint = parse(settings, source=source), open_checkpoint(folder)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"cannot read {folder}: no config.json in it", remedy="fetch the whole folder")
    # Only rows that are padded to whole blocks leave K open; building the model for its shapes costs seconds.
    padded = find(config.method, config.format, config.dialect).pads_k
    model = skeleton.build(folder, None, trust_remote_code=False, options={})[0] if padded else None
    return PackedSource(
        label=str(folder),
        checkpoint=checkpoint,
        config=config,
        packed=packed_modules(checkpoint.where, config),
        model_config=json.loads((folder / "config.json").read_text(encoding="utf-8")),
        sizes=lambda module: None if model is None else linear_sizes(model, module),
        copy_rest=lambda target: rest_of(folder, target),
    )


def _native(path: Path) -> PackedSource:
    """Open a .gguf file; what it holds in fp32 or decodes becomes fp16, the dtype of its own scales."""
    file = gguf_checkpoint.open_native(path)
    described = gguf_model.model_config(file)
    described.dtype = torch.float16
    model: Any = skeleton.empty_model(described, None, trust_remote_code=False, options={})[0]
    checkpoint = gguf_checkpoint.checkpoint_of(file, model)
    config = gguf_checkpoint.settings_of(checkpoint, model)
    return PackedSource(
        label=str(path),
        checkpoint=checkpoint,
        config=config,
        packed=packed_modules(checkpoint.where, config),
        model_config=json.loads(described.to_json_string(use_diff=False)),
        sizes=lambda module: linear_sizes(model, module),
        copy_rest=lambda target: copy_gguf_rest(path, model, target),
        dtype=torch.float16,
    )
