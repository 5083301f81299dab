"""The layers of a checkpoint as requests, read from settings and file headers alone: no torch, no weights."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantfarm.declare.names import METHOD
from quantfarm.declare.scheme import Scheme
from quantfarm.errors import CheckpointError
from quantfarm.formats.config import QuantConfig, find_settings, parse
from quantfarm.select.request import Device, Request

_LENGTH = struct.Struct("<Q")
_LONGEST = 100_000_000
_WORD = 32
_PACKED = ".qweight"
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
    for name in tensors:
        module = name.removesuffix(_PACKED)
        mine = config.for_module(module) if name.endswith(_PACKED) else None
        if mine is None:
            continue
        request = _request(mine, module, tensors, dtype)
        asked: dict[str, Any] = {"devices": tuple(devices), "backend": backend, "sharded": files > 1}
        kinds.setdefault(replace(request, **asked), []).append(module)
    if not kinds:
        raise CheckpointError(f"cannot find quantized layers in {folder}: no tensor ends in {_PACKED}")
    return tuple(LayerKind(request=request, modules=tuple(modules)) for request, modules in kinds.items())


def _request(config: QuantConfig, module: str, tensors: Header, dtype: str) -> Request:
    rows, columns = tensors[module + _PACKED]["shape"]
    if config.method is METHOD.AWQ:
        inputs, outputs = rows, columns * _WORD // config.bits
    else:
        index = tensors.get(f"{module}.g_idx")
        inputs, outputs = (index["shape"][0] if index else rows * _WORD // config.bits), columns
    scales = tensors.get(f"{module}.scales", {}).get("dtype", "")
    return Request(
        method=config.method,
        format=config.format,
        scheme=Scheme(bits=config.bits, group_size=config.group_size, sym=config.sym, act_order=config.desc_act),
        in_features=inputs,
        out_features=outputs,
        activation_dtype=dtype or _DTYPES.get(scales),
        pack_dtype=config.pack_dtype,
    )


def _model_dtype(folder: Path) -> str:
    path = folder / "config.json"
    if not path.is_file():
        return ""
    settings = json.loads(path.read_text(encoding="utf-8"))
    return str(settings.get("dtype") or settings.get("torch_dtype") or "")
