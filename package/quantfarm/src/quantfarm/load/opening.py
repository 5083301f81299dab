"""Opening what ``load`` is given: a folder or a .gguf file becomes an empty model, its tensors and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from quantfarm.declare import ggml
from quantfarm.declare.names import BACKEND, POLICIES, PROFILE
from quantfarm.errors import ConfigError
from quantfarm.formats.config import QuantConfig, find_settings, parse
from quantfarm.formats.table import rule_of
from quantfarm.load import gguf_checkpoint, gguf_model, skeleton
from quantfarm.load.adapters import Factors, read_adapters
from quantfarm.load.checkpoint import Checkpoint, open_checkpoint

_ARGUMENT = "the argument quantize_config"
_DENSE_BY_DEFAULT = "q1_0"


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the caller of ``load`` asked for, as far as opening depends on it.

    Attributes:
        settings: ``quantize_config``.
        dtype: as given.
        backend, profile: normalized.
        trust_remote_code: as transformers means it.
        hub, options: keywords for a download and for the model's constructor.
    """

    settings: Mapping[str, Any] | QuantConfig | None
    dtype: object
    backend: BACKEND
    profile: PROFILE
    trust_remote_code: bool
    hub: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An empty model with everything that is to be put into it."""

    model: Any
    dtype: torch.dtype
    checkpoint: Checkpoint
    config: QuantConfig
    adapters: Factors = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=())


def open_model(model_id_or_path: str | Path, wishes: Wishes) -> Opened:
    """Open a folder, a hub id or a .gguf file, and check all of it before any parameter is touched.

    Raises:
        CheckpointError, ConfigError, MissingPackage: see ``load``.
    """
    file = gguf_checkpoint.find_file(Path(model_id_or_path).expanduser())
    return _open_folder(model_id_or_path, wishes) if file is None else _open_native(file, wishes)


def _open_folder(model_id_or_path: str | Path, wishes: Wishes) -> Opened:
    folder = skeleton.find_folder(model_id_or_path, wishes.hub)
    config, adapters = _settings(folder, wishes.settings)
    checkpoint = open_checkpoint(folder)
    forced = rule_of(config.method, config.format, config.code_type).forced_dtype
    said = [f"activations are {forced}: the format {config.format.value} demands it"] if forced else []
    # Another dtype than the forced one that the caller named is refused by the selector.
    asked = forced if forced and wishes.dtype in (None, "auto") else wishes.dtype
    model, dtype = skeleton.build(folder, asked, trust_remote_code=wishes.trust_remote_code, options=wishes.options)
    skeleton.finish(model, folder)
    notes = (*said, *_without_meaning(wishes))
    return Opened(model=model, dtype=dtype, checkpoint=checkpoint, config=config, adapters=adapters, notes=notes)


def _open_native(path: Path, wishes: Wishes) -> Opened:
    """Open a .gguf file; Q1_0 is imported as plain weights unless little memory is asked for (selector, case L08)."""
    if wishes.settings:
        raise ConfigError(
            f"cannot load {path}: a .gguf file states the type of every tensor itself",
            lines=[f"quantize_config: needs nothing, got {wishes.settings!r}"],
            remedy="leave quantize_config out",
        )
    file = gguf_checkpoint.open_native(path)
    settings = gguf_model.model_config(file)
    model, dtype = skeleton.empty_model(settings, wishes.dtype, trust_remote_code=False, options=wishes.options)
    if gguf_model.ROPE_FACTORS in file.tensors:
        factors = gguf_checkpoint.decoded(file, file.tensors[gguf_model.ROPE_FACTORS])
        gguf_model.scale_rope(model, factors)
    checkpoint = gguf_checkpoint.checkpoint_of(file, model)
    config = gguf_checkpoint.settings_of(checkpoint, model)
    kind = ggml.named(config.code_type)[0]
    if kind.name != _DENSE_BY_DEFAULT:
        return Opened(model=model, dtype=dtype, checkpoint=checkpoint, config=config, notes=_without_meaning(wishes))
    if wishes.profile is PROFILE.LOW_MEMORY:
        return Opened(model=model, dtype=dtype, checkpoint=checkpoint, config=config)
    decoded = f"the {kind.name} blocks of {path.name} were decoded to plain weights, as large as an unquantized model's"
    notes = [f"profile {wishes.profile.value}: {decoded}; profile=low_memory keeps them packed"]
    if wishes.backend not in POLICIES:
        notes.append(f"backend {wishes.backend.value} was ignored: plain weights need none")
    dense = gguf_checkpoint.checkpoint_of(file, model, packed=False)
    return Opened(model=model, dtype=dtype, checkpoint=dense, config=config, notes=tuple(notes))


def _without_meaning(wishes: Wishes) -> tuple[str, ...]:
    if wishes.profile is PROFILE.AUTO:
        return ()
    return (f"profile {wishes.profile.value} has no meaning for a packed checkpoint",)


def _settings(folder: Path, given: Mapping[str, Any] | QuantConfig | None) -> tuple[QuantConfig, Factors]:
    """Return the effective settings, the folder's with the argument's keys on top, and the adapters that they name."""
    if isinstance(given, QuantConfig):
        return given, {}
    try:
        stored, source = find_settings(folder)
    except ConfigError:
        if not given:
            raise
        stored, source = {}, _ARGUMENT
    else:
        source = f"{source} and {_ARGUMENT}" if given else source
    settings = {**stored, **(given or {})}
    named = settings.get("adapter")
    return parse(settings, source=source), read_adapters(named, folder) if named else {}
