"""What a conversion does, as a list of units: each makes the tensors of one module, or passes one tensor on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quantfarm.declare.scheme import Scheme
from quantfarm.errors import InexactConversion

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Made:
    """The tensors of a unit under their full names, and the scheme of the module they are; None for a plain tensor."""

    tensors: Tensors
    scheme: Scheme | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One step: its name is a module or a tensor; ``packs`` says whether a quantized module comes out."""

    name: str
    packs: bool
    make: Callable[[], Made]


@dataclass(frozen=True, kw_only=True)
class Work:
    """Everything that becomes of a source.

    Attributes:
        label: the source, for messages.
        verb: what happens to the modules: ``quantizing`` or ``rewriting``.
        units: in the order in which they are written.
        model_config: the content of config.json.
        dense: modules that stay as they are.
        notes: sentences for the report.
        copy_rest: writes tokenizer, generation settings and the like into a folder.
    """

    label: str
    verb: str
    units: tuple[Unit, ...]
    model_config: Mapping[str, Any]
    dense: tuple[str, ...]
    notes: tuple[str, ...]
    copy_rest: Callable[[Path], None]


def plain(name: str, read: Callable[[str], torch.Tensor]) -> Unit:
    """Return the unit that passes one tensor on."""
    return Unit(name=name, packs=False, make=lambda: Made(tensors={name: read(name)}))


def about_layer(error: InexactConversion, name: str) -> InexactConversion:
    """Return the error with the layer's name in its first line."""
    first, *rest = str(error).split("\n")
    return InexactConversion("\n".join([f"{first} (layer {name})", *rest]))
