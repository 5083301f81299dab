"""load(path): a transformers model with quantized layers in place, and the report on every choice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from quantfarm.declare.names import BACKEND, PROFILE, normalize_backend, normalize_profile
from quantfarm.errors import ConfigError
from quantfarm.formats.config import QuantConfig
from quantfarm.load import dense, layers, skeleton
from quantfarm.load.adapters import attach
from quantfarm.load.opening import Opened, Wishes, open_model
from quantfarm.load.report import LoadReport
from quantfarm.runtime.instruction_set import force
from quantfarm.runtime.launches import failures
from quantfarm.select.host import Host, probe
from quantfarm.select.request import Device, normalize_devices

__all__ = ["load"]


def load(  # noqa: PLR0913, PLR0917 - the published signature
    model_id_or_path: str | Path,
    quantize_config: Mapping[str, Any] | QuantConfig | None = None,
    device_map: object = None,
    device: object = None,
    backend: BACKEND | str | None = BACKEND.AUTO,
    profile: PROFILE | str | int | None = PROFILE.AUTO,
    trust_remote_code: bool = False,
    allow_remote_adapter: bool = False,
    adapter_revision: str | None = None,
    adapter_sha256: str | None = None,
    **kwargs: Any,
) -> Any:
    """Load a quantized checkpoint into a transformers model, in evaluation mode, with ``model.quantfarm`` as report.

    Args:
        model_id_or_path: a local folder, a .gguf file (any part of a split one), or a hub id.
        quantize_config: settings that replace those of the folder, key by key, or a parsed QuantConfig.
        device_map: one device for everything, as a name or a mapping whose values are all the same.
        device: the same, as one value; with neither, the best family present.
        backend: AUTO and AUTO_TRAINABLE choose for each layer; any other name is a demand for all of them.
        profile: decides for .gguf files of Q1_0 whether they stay packed (LOW_MEMORY) or become plain weights; noted
            for everything else, which can be opened in one way only.
        trust_remote_code: whether code from the folder may run, as transformers means it.
        allow_remote_adapter: an error when given, as the next two; the settings may name a local adapter only.
        adapter_revision: see allow_remote_adapter.
        adapter_sha256: see allow_remote_adapter.
        **kwargs: ``dtype`` (or ``torch_dtype``), ``attn_implementation``, and the options of a hub download.

    Raises:
        ArtifactError: the environment forces a code path that processor or build lack.
        CheckpointError: the folder is incomplete or does not fit the model or its settings (TensorMismatch).
        ConfigError: settings or arguments are unknown, missing or contradict each other.
        KernelRefused: a layer that no backend, or not the demanded one, can serve.
        MissingPackage: transformers, accelerate or huggingface_hub is not installed.
        TypeError: an unknown keyword.
    """
    strategy, wanted = normalize_profile(profile), normalize_backend(backend) or BACKEND.AUTO
    _refuse_adapters(allow_remote_adapter, adapter_revision, adapter_sha256)
    dtype = _take_dtype(kwargs)
    hub = {key: kwargs.pop(key) for key in skeleton.HUB_OPTIONS if key in kwargs}
    options = {key: kwargs.pop(key) for key in skeleton.MODEL_OPTIONS if key in kwargs}
    _refuse_unknown(kwargs)
    host = probe(failed=failures())
    force(host.settings.cpu_isa)
    devices = _one_device(device_map, device, host)
    wishes = Wishes(
        settings=quantize_config,
        dtype=dtype,
        backend=wanted,
        profile=strategy,
        trust_remote_code=trust_remote_code,
        hub=hub,
        options=options,
    )
    opened = open_model(model_id_or_path, wishes)
    plan = _plan(opened, host, devices, wanted)
    opened.model.quantfarm = _fill(opened, plan)
    opened.model.quantfarm.log()
    return opened.model


def _plan(opened: Opened, host: Host, devices: tuple[Device, ...], backend: BACKEND) -> layers.Plan:
    return layers.Plan(
        config=opened.config,
        host=host,
        device=_torch_device(devices[0]),
        devices=devices,
        backend=backend,
        dtype=opened.dtype,
        adapters=opened.adapters,
    )


def _fill(opened: Opened, plan: layers.Plan) -> LoadReport:
    """Put every tensor into the empty model: quantized layers first, then plain tensors, ties and settings."""
    model, checkpoint = opened.model, opened.checkpoint
    used, notes = layers.replace_layers(model, checkpoint, plan)
    attach(model, plan.adapters)
    unpacked, more = layers.stays_dense(model, plan.config, checkpoint.where)
    notes += more + dense.fill(model, checkpoint, used, plan.device)
    if used and getattr(model.config, "quantization_config", None) is None:
        model.config.quantization_config = plan.config.as_settings()
    return LoadReport(
        source=str(checkpoint.folder),
        config=plan.config,
        dtype=str(plan.dtype).removeprefix("torch."),
        kinds=plan.kinds(),
        dense=tuple(unpacked),
        notes=tuple(dict.fromkeys([*plan.config.notes, *opened.notes, *notes])),
    )


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    if kwargs:
        known = ", ".join(("dtype", "torch_dtype", *skeleton.MODEL_OPTIONS, *skeleton.HUB_OPTIONS))
        raise TypeError(f"load: unknown keyword {', '.join(kwargs)}; known: {known}")


def _refuse_adapters(allow: bool, revision: str | None, sha256: str | None) -> None:
    given = {"allow_remote_adapter": allow, "adapter_revision": revision, "adapter_sha256": sha256}
    lines = [f"{key}: needs nothing, got {value!r}" for key, value in given.items() if value]
    if lines:
        raise ConfigError(
            "cannot load an adapter: this version fetches none",
            lines=lines,
            remedy="load the model without it, then attach factors with QuantLinear.set_adapter",
        )


def _take_dtype(kwargs: dict[str, Any]) -> object:
    both = {key: kwargs.pop(key, None) for key in ("dtype", "torch_dtype")}
    given = {key: value for key, value in both.items() if value is not None}
    if len({str(value).removeprefix("torch.") for value in given.values()}) > 1:
        lines = [f"{key}: {value}" for key, value in given.items()]
        raise ConfigError("cannot load: two dtypes were asked for", lines=lines, remedy="pass dtype only")
    return next(iter(given.values()), None)


def _one_device(device_map: object, device: object, host: Host) -> tuple[Device, ...]:
    """Return the one target of a load. Several targets need code that moves activations, which is not here yet."""
    mapped = tuple(dict.fromkeys(device_map.values())) if isinstance(device_map, Mapping) else device_map
    asked = [None if value == "auto" else value for value in (mapped, device) if value is not None]
    found = {normalize_devices(value, host) for value in asked} or {normalize_devices(None, host)}
    if len(found) > 1 or len(next(iter(found))) > 1:
        lines = [f"device_map: {device_map}", f"device: {device}"]
        raise ConfigError(
            "cannot load onto several devices: this version places a model on one",
            lines=lines,
            remedy='pass device="cpu" or another single device',
        )
    return next(iter(found))


def _torch_device(device: Device) -> torch.device:
    family = "cuda" if device.family.value == "rocm" else device.family.value
    return torch.device(family) if device.index is None else torch.device(family, device.index)
