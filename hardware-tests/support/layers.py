"""A layer of the installed wheel over given tensors, behind exactly the backend of a record."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from quantfarm.declare.device import CPU_ISAS
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.spec import KernelSpec
from quantfarm.formats.config import parse
from quantfarm.formats.table import find
from quantfarm.formats.weights.base import Weight as AnyWeight
from quantfarm.runtime.artifacts import load_library
from quantfarm.runtime.linear import QuantLinear
from support.weights import Weight

CASE = "case"
"""The name of the only layer of a made-up checkpoint."""


def spec_of(record: Mapping[str, Any]) -> KernelSpec:
    """Return the installed wheel's record of that name."""
    return next(spec for spec in KERNELS if spec.name == record["name"])


def backend_of(spec: KernelSpec) -> ModuleType:
    """Return the kernel's backend module."""
    return importlib.import_module(f"quantfarm.kernels.{spec.kernel}.backend")


def launches_by_level(record: Mapping[str, Any]) -> dict[str, int]:
    """Return how often the record's native kernel computed on each instruction-set level; empty for other records."""
    library = record["artifact"]["library"]
    operators = getattr(torch.ops, f"quantfarm_{library}") if library else None
    if operators is None or load_library(library).status != "loaded":
        return {}
    count = getattr(operators, f"{record['kernel']}_calls")
    return {f"x86_64_{name}": int(count(isa)) for isa, name in enumerate(CPU_ISAS) if isa}


def build(weight: Weight, record: Mapping[str, Any]) -> QuantLinear:
    """Return the layer of a random weight."""
    spec = spec_of(record)
    return QuantLinear(read(weight), backend_of(spec), spec, name=CASE)


def from_tensors(
    tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any], record: Mapping[str, Any], name: str
) -> QuantLinear:
    """Read checkpoint tensors and put the record's backend behind them."""
    spec = spec_of(record)
    return QuantLinear(_read(tensors, settings, name), backend_of(spec), spec, name=name)


def read(weight: Weight) -> AnyWeight:
    """Return a random weight as the reader of its format gives it."""
    return _read(weight.tensors(), weight.settings(), CASE, (weight.k, weight.n))


def _read(
    tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any], name: str, shape: tuple[int, int] | None = None
) -> AnyWeight:
    config = parse(settings, source=name)
    k, n = shape or (None, None)
    row = find(config.method, config.format, config.dialect)
    tensor: AnyWeight = row.read()(tensors, config, module=name, k=k, n=n)
    return tensor
