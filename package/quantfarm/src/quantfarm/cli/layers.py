"""The layers of a checkpoint as requests, read from settings and file headers alone: no torch, no weights."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantfarm.errors import CheckpointError
from quantfarm.formats.config import QuantConfig, find_settings, parse
from quantfarm.formats.facts import LayerFacts, TensorFact, facts_of
from quantfarm.formats.packed import packed_modules
from quantfarm.formats.table import find
from quantfarm.select.request import Device, Request

_LENGTH = struct.Struct("<Q")
_LONGEST = 100_000_000
_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}

Header = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """Layers that ask for the same thing, and the names of the modules that do."""

    request: Request
    modules: tuple[str, ...]


def read_header(path: Path) -> dict[str, Any]:
    """Return the header of a safetensors file: tensor name to dtype, shape and place.

    Raises:
        CheckpointError: the file is cut off or is no safetensors file.
    """
    with path.open("rb") as stream:
        start = stream.read(_LENGTH.size)
        length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else 0
        text = stream.read(length) if 0 < length <= _LONGEST else b""
    try:
        header = json.loads(text)
    except ValueError as error:
        detail = f"header: needs {length} bytes of JSON, got {len(text)}: {error}"
        raise CheckpointError(
            f"cannot read {path}: no safetensors file", lines=[detail], remedy="fetch it again"
        ) from None
    return {name: facts for name, facts in header.items() if name != "__metadata__"}


def read_headers(folder: Path) -> tuple[dict[str, Any], int]:
    """Return the tensors of every safetensors file of a folder, and the number of files.

    Raises:
        CheckpointError: there is no such file.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"cannot find tensors in {folder}: no *.safetensors file", remedy="name another folder")
    tensors: dict[str, Any] = {}
    for path in files:
        tensors |= read_header(path)
    return tensors, len(files)


def layer_kinds(folder: Path, devices: Iterable[Device], backend: str, dtype: str = "") -> tuple[LayerKind, ...]:
    """Return the distinct kinds of quantized layers of a checkpoint, in the order of first sight.

    Args:
        folder: holds settings and safetensors files.
        devices: where the layers are to run.
        backend: by what; blank for an automatic choice.
        dtype: the dtype of activations; blank takes that of config.json, else that of the scales.

    Raises:
        ConfigError, CheckpointError: settings or tensors can not be read.
    """
    settings, source = find_settings(folder)
    config = parse(settings, source=source)
    tensors, files = read_headers(folder)
    dtype = dtype or _model_dtype(folder)
    kinds: dict[Request, list[str]] = {}
    for module, names in packed_modules(tensors, config).items():
        mine = config.for_module(module)
        if mine is None:
            continue
        found = facts_of({suffix: tensors[name] for suffix, name in names.items()})
        request = _request(mine, found, dtype)
        asked: dict[str, Any] = {"devices": tuple(devices), "backend": backend, "sharded": files > 1}
        kinds.setdefault(replace(request, **asked), []).append(module)
    if not kinds:
        row = find(config.method, config.format, config.dialect)
        raise CheckpointError(f"cannot find quantized layers in {folder}: no tensor ends in {' or '.join(row.markers)}")
    return tuple(LayerKind(request=request, modules=tuple(modules)) for request, modules in kinds.items())


def _request(config: QuantConfig, tensors: Mapping[str, TensorFact], dtype: str) -> Request:
    layer: LayerFacts = find(config.method, config.format, config.dialect).describe()(tensors, config)
    scales = tensors["scales"].dtype if "scales" in tensors else ""
    return Request(
        method=config.method,
        format=config.format,
        scheme=layer.scheme,
        in_features=layer.k,
        out_features=layer.n,
        activation_dtype=dtype or _DTYPES.get(scales),
        pack_dtype=config.pack_dtype,
        code_type=layer.code_type,
    )


def _model_dtype(folder: Path) -> str:
    path = folder / "config.json"
    if not path.is_file():
        return ""
    settings = json.loads(path.read_text(encoding="utf-8"))
    return str(settings.get("dtype") or settings.get("torch_dtype") or "")
