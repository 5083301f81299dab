"""LoRA factors beside a checkpoint: the file that the settings name, and which layer each factor belongs to.

Two forms are read (formats, section 19). The own form holds ``<module>.lora_A`` [K, rank] and ``<module>.lora_B``
[rank, N], also with ``.weight`` behind them, and the product counts once. A folder whose adapter_config.json says
peft_type LORA holds both factors transposed, with names below ``base_model.model.``, and the product counts
lora_alpha / r times. The form follows from that file alone, never from shapes, which fit both where K = rank = N.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from quantfarm.errors import CheckpointError, ConfigError
from quantfarm.load.checkpoint import shortened
from quantfarm.runtime.adapter import LoraAdapter
from quantfarm.runtime.linear import QuantLinear

KIND = "lora"
"""The one kind of adapter that is read, as records declare it."""

_FILE, _CONFIG = "adapter_model.safetensors", "adapter_config.json"
_NAME = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?(?:\.weight)?")
_UNREAD = ("use_dora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "modules_to_save", "lora_bias")

Factors = Mapping[str, LoraAdapter]
"""Module name to its adapter."""


def read_adapters(stated: object, folder: Path) -> Factors:
    """Return the adapters that the settings' key ``adapter`` names.

    Args:
        stated: ``{name, path, rank}``: lora or eora; a folder or file, also relative to ``folder``; the rank, if said.
        folder: the checkpoint's.

    Raises:
        ConfigError: an entry of another kind, or without a local path; an adapter_config.json that asks for what is
            not read, or that states no lora_alpha or r.
        CheckpointError: a file that can not be read, or factors that are incomplete or do not fit each other or the
            rank; names every one.
    """
    entry = _entry(stated)
    path = _path(str(entry["path"]), folder)
    config = _peft(path.parent / _CONFIG)
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot load the adapter {path}: the file can not be read",
            lines=[f"cause: {error}"],
            remedy="copy it again",
        ) from error
    found: dict[str, dict[str, torch.Tensor]] = {}
    lines = []
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            lines.append(f"{name}: needs a name that ends in lora_A or lora_B")
        else:
            found.setdefault(match["module"], {})[match["side"]] = tensor
    adapters = {}
    for module, pair in found.items():
        try:
            adapters[module] = _adapter(pair, config, entry.get("rank"))
        except (ValueError, TypeError) as error:
            lines.append(f"{module}: {error}")
    if lines or not adapters:
        raise CheckpointError(
            f"cannot load the adapter {path}: its tensors do not fit",
            lines=shortened(lines) or ["tensors: needs lora_A and lora_B, got none"],
            remedy=f"without a {_CONFIG} that says LORA, factors are lora_A [K, rank] and lora_B [rank, N]",
        )
    return adapters


def attach(model: nn.Module, adapters: Factors) -> None:
    """Attach each adapter to its quantized layer, on that layer's device.

    Raises:
        CheckpointError: a module that is no quantized layer, or factors of another K or N; names every one.
    """
    modules = dict(model.named_modules())
    lines = []
    for name, adapter in adapters.items():
        layer = modules.get(name)
        if not isinstance(layer, QuantLinear):
            found = "none of that name" if layer is None else type(layer).__name__
            lines.append(f"{name}: needs a quantized layer, got {found}")
            continue
        try:
            layer.set_adapter(adapter.to(layer.weight_tensor(codes=False).device))
        except ValueError as error:
            lines.append(str(error))
    if lines:
        raise CheckpointError(
            "cannot attach the adapter: it does not fit the model",
            lines=shortened(lines),
            remedy="use the adapter that was trained for this model, or remove the key adapter",
        )


def _entry(stated: object) -> Mapping[str, Any]:
    entry = stated if isinstance(stated, Mapping) else {}
    name = str(entry.get("name", KIND)).lower()
    lines = [] if isinstance(stated, Mapping) else [f"adapter: needs an object with name and path, got {stated!r}"]
    if name not in (KIND, "eora"):
        lines.append(f"adapter.name: needs lora or eora, got {entry['name']!r}")
    if isinstance(stated, Mapping) and not entry.get("path"):
        lines.append("adapter.path: needs a local folder or file, got none")
    if lines:
        raise ConfigError(
            "cannot load an adapter: the settings do not say which", lines=lines, remedy="correct the key"
        )
    return entry


def _path(text: str, folder: Path) -> Path:
    for place in (folder / text, Path(text).expanduser()):
        path = place / _FILE if place.is_dir() else place
        if path.is_file():
            return path
    raise ConfigError(
        "cannot load an adapter: this version fetches none",
        lines=[f"adapter.path: needs a local file or a folder with {_FILE}, got {text!r}"],
        remedy="download it and give its folder, or attach factors with QuantLinear.set_adapter",
    )


def _peft(path: Path) -> Mapping[str, Any] | None:
    """Return the settings of a PEFT folder that the factors need; None where the file is in the own form."""
    if not path.is_file():
        return None
    config = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        f"{key}: needs a positive number, got {config.get(key)!r}" for key in ("lora_alpha", "r") if not config.get(key)
    ]
    lines += [f"{key}: needs nothing, got {config[key]!r}" for key in _UNREAD if config.get(key)]
    if config.get("peft_type") != "LORA":
        lines = [f"peft_type: needs LORA, got {config.get('peft_type')!r}"]
    if config.get("bias", "none") != "none":
        lines.append(f"bias: needs none, got {config['bias']!r}")
    if lines:
        raise ConfigError(
            f"cannot load an adapter: {path} asks for more than LoRA", lines=lines, remedy=f"correct {path}"
        )
    checked: Mapping[str, Any] = config
    return checked


def _adapter(pair: Mapping[str, torch.Tensor], config: Mapping[str, Any] | None, rank: object) -> LoraAdapter:
    absent = [f"lora_{side}" for side in "AB" if side not in pair]
    if absent:
        raise ValueError(f"needs both factors, got no {absent[0]}")
    a, b, scale = pair["A"], pair["B"], 1.0
    if config is not None:
        a, b = a.t(), b.t()
        scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config.get("use_rslora") else config["r"])
    adapter = LoraAdapter(a, b, scale=scale)
    wanted = config["r"] if config is not None else rank
    if wanted is not None and adapter.lora_A.shape[1] != wanted:
        raise ValueError(f"needs rank {wanted}, got {adapter.lora_A.shape[1]}")
    return adapter
