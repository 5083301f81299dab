"""The layers of a checkpoint as requests, read from settings and file headers alone: no torch, no weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import CheckpointError
from quantfarm.formats.config import QuantConfig, find_settings, parse
from quantfarm.formats.facts import LayerFacts, TensorFact, facts_of
from quantfarm.formats.gguf_file import matrices, open_gguf
from quantfarm.formats.packed import packed_modules
from quantfarm.formats.safetensors_header import read_headers
from quantfarm.formats.settings.gguf import scheme_of
from quantfarm.formats.table import find
from quantfarm.select.request import Device, Request

_DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """Layers that ask for the same thing, and the names of the modules that do."""

    request: Request
    modules: tuple[str, ...]


def layer_kinds(folder: Path, devices: Iterable[Device], backend: str, dtype: str = "") -> tuple[LayerKind, ...]:
    """Return the distinct kinds of quantized layers of a checkpoint, in the order of first sight.

    Args:
        folder: holds settings and safetensors files; or a .gguf file.
        devices: where the layers are to run.
        backend: by what; blank for an automatic choice.
        dtype: the dtype of activations; blank takes that of config.json, else that of the scales.

    Raises:
        ConfigError, CheckpointError: settings or tensors can not be read.
    """
    if folder.suffix == ".gguf" and not folder.is_dir():
        return _native_kinds(folder, devices, backend, dtype)
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


def _native_kinds(path: Path, devices: Iterable[Device], backend: str, dtype: str) -> tuple[LayerKind, ...]:
    """Return the kinds of a .gguf file; a module has the name of its tensor there."""
    file = open_gguf(path)
    kinds: dict[Request, list[str]] = {}
    for name, tensor in matrices(file).items():
        n, k = tensor.shape
        assert tensor.type is not None
        request = Request(
            method=METHOD.GGUF,
            format=FORMAT.GGUF,
            scheme=scheme_of(tensor.type),
            in_features=k,
            out_features=n,
            activation_dtype=dtype or None,
            code_type=tensor.type.name,
            devices=tuple(devices),
            backend=backend,  # type: ignore[arg-type]
            sharded=len(file.parts) > 1,
        )
        kinds.setdefault(request, []).append(name)
    if not kinds:
        raise CheckpointError(f"cannot find quantized layers in {path}: no matrix has blocks")
    return tuple(LayerKind(request=request, modules=tuple(modules)) for request, modules in kinds.items())


def _request(config: QuantConfig, tensors: Mapping[str, TensorFact], dtype: str) -> Request:
    layer: LayerFacts = find(config.method, config.format, config.dialect).describe()(tensors, config)
    scales = tensors["scales"].dtype if "scales" in tensors else ""
    return Request(
        method=config.method,
        format=config.format,
        scheme=layer.scheme,
        in_features=layer.k or None,
        out_features=layer.n or None,
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
