"""Putting quantized layers into a model: the tensors that are present decide, the settings say how to read them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from quantfarm.declare.names import BACKEND
from quantfarm.errors import CheckpointError, KernelRefused, QuantfarmError, TensorMismatch
from quantfarm.formats import table
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packed import packed_modules
from quantfarm.formats.weights.base import Weight
from quantfarm.load.adapters import KIND, Factors
from quantfarm.load.checkpoint import Checkpoint, shortened
from quantfarm.load.report import LayerKind
from quantfarm.runtime.linear import QuantLinear
from quantfarm.select.choose import select
from quantfarm.select.host import Host
from quantfarm.select.request import Device, Request
from quantfarm.select.selection import Selection


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every layer of one load shares: settings, machine, wishes; ``adapters`` go to their modules in the end."""

    config: QuantConfig
    host: Host
    device: torch.device
    devices: tuple[Device, ...]
    backend: BACKEND
    dtype: torch.dtype
    adapters: Factors = field(default_factory=dict)
    _chosen: dict[Request, Selection] = field(default_factory=dict, repr=False)
    _modules: dict[Request, list[str]] = field(default_factory=dict, repr=False)

    def choose(self, tensor: Weight, name: str, *, sharded: bool) -> Selection:
        """Select the backend of one layer by its true scheme and shape; equal requests are answered once.

        Raises:
            KernelRefused: no backend, or not the demanded one, can serve this layer; names it.
        """
        request = Request(
            method=tensor.method,
            format=tensor.format,
            scheme=tensor.scheme,
            in_features=tensor.k,
            out_features=tensor.n,
            activation_dtype=str(self.dtype),
            pack_dtype=self.config.pack_dtype,
            code_type=tensor.code_type,
            devices=self.devices,
            backend=self.backend,
            adapter=KIND if name in self.adapters else None,
            sharded=sharded,
        )
        if request not in self._chosen:
            try:
                self._chosen[request] = select(request, self.host)
            except KernelRefused as error:
                first, *rest = str(error).split("\n")
                raise KernelRefused("\n".join([f"{first} (layer {name})", *rest]), trace=error.trace) from None
        self._modules.setdefault(request, []).append(name)
        return self._chosen[request]

    def kinds(self) -> tuple[LayerKind, ...]:
        """Return each selection with the layers it serves."""
        return tuple(LayerKind(selection=self._chosen[r], modules=tuple(names)) for r, names in self._modules.items())


def replace_layers(model: nn.Module, checkpoint: Checkpoint, plan: Plan) -> tuple[set[str], list[str]]:
    """Replace every linear module whose packed tensors are in the checkpoint by a prepared QuantLinear.

    Returns:
        The names of the tensors that were used, and notes.

    Raises:
        CheckpointError: packed tensors without a linear module in the model; names them.
        TensorMismatch: shapes that fit neither the settings nor the model.
        KernelRefused: a layer that the demanded backend, or every backend, refuses.
    """
    packed = packed_modules(checkpoint.where, plan.config)
    homeless = [
        f"{name}: needs a linear module, got {_kind(model, name)}"
        for name in packed
        if linear_sizes(model, name) is None
    ]
    if homeless:
        raise CheckpointError(
            f"cannot load {checkpoint.folder}: packed tensors have no linear module in the model",
            lines=shortened(homeless),
            remedy="the installed transformers may build this model with other modules than the writer of the file had",
        )
    used, notes = set(), []
    for name, tensors in packed.items():
        settings, note = _settings(plan.config, name)
        read = _reader(settings, name, linear_sizes(model, name))
        suffixes = _known_suffixes(settings)
        loaded = {s: checkpoint.tensor(full).to(plan.device) for s, full in tensors.items() if s in suffixes}
        tensor = read(loaded)
        notes += [*note, *tensor.notes]
        layer = _layer(tensor, read, plan, name, sharded=checkpoint.sharded)
        _check_bias(model, layer, name, settings)
        _set_module(model, name, layer)
        used |= {tensors[s] for s in loaded}
    return used, notes


def _layer(tensor: Weight, read: partial[Weight], plan: Plan, name: str, *, sharded: bool) -> QuantLinear:
    chosen = plan.choose(tensor, name, sharded=sharded).chosen
    assert chosen is not None
    backend: Any = importlib.import_module(f"quantfarm.kernels.{chosen.kernel}.backend")
    try:
        return QuantLinear(tensor, backend, chosen, name=name, read=read)
    except QuantfarmError:
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        message = f"cannot prepare {name} for {chosen.backend.value}\n  first cause    {type(error).__name__}: {error}"
        raise KernelRefused(f"{message}\nload the model with another backend") from error


def _settings(config: QuantConfig, name: str) -> tuple[QuantConfig, list[str]]:
    settings = config.for_module(name)
    if settings is not None:
        return settings, []
    return config, [f"{name}: the settings say dense, the checkpoint holds it packed; the stored tensors decide"]


def _reader(settings: QuantConfig, name: str, sizes: tuple[int, int] | None) -> partial[Weight]:
    assert sizes is not None
    read = table.find(settings.method, settings.format, settings.dialect).read()
    return partial(read, config=settings, module=name, k=sizes[0], n=sizes[1])


def _known_suffixes(settings: QuantConfig) -> set[str]:
    return set(table.find(settings.method, settings.format, settings.dialect).suffixes)


def _check_bias(model: nn.Module, layer: QuantLinear, name: str, settings: QuantConfig) -> None:
    """A module that the model builds with a bias must find one; a stored bias without such a module is applied."""
    wanted = getattr(model.get_submodule(name), "bias", None)
    if wanted is not None and layer.bias is None:
        raise TensorMismatch(
            f"cannot load {name}: tensors do not match the model",
            lines=[f"bias           tensor: needs [{layer.out_features}], got none"],
            remedy=f"compare {settings.source} with the tensor list",
        )


def linear_sizes(model: nn.Module, name: str) -> tuple[int, int] | None:
    """Return K and N of a linear module (also of the transposed kind with ``nf``), or None for anything else."""
    try:
        module = model.get_submodule(name)
    except AttributeError:
        return None
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    weight = getattr(module, "weight", None)
    if hasattr(module, "nf") and isinstance(weight, torch.Tensor) and weight.dim() == 2:
        return weight.shape[0], weight.shape[1]
    return None


def _kind(model: nn.Module, name: str) -> str:
    try:
        return type(model.get_submodule(name)).__name__
    except AttributeError:
        return "none of that name"


def _set_module(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


def stays_dense(model: nn.Module, config: QuantConfig, checkpoint: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the linear modules that stay dense, and a note for each that the settings would have packed."""
    dense = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    notes = [
        f"{name}: the settings say packed, the checkpoint holds it dense; the stored tensors decide"
        for name in dense
        if config.for_module(name) is not None and f"{name}.weight" in checkpoint
    ]
    return dense, notes
