"""The work of quantizing a model with plain weights by rounding to nearest."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantfarm.errors import InexactConversion
from quantfarm.formats import table
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.rules import names_path
from quantfarm.formats.weights.base import Weight
from quantfarm.load.dense_source import DenseSource
from quantfarm.load.work import Made, Unit, Work, about_layer, plain


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """Quantizes one layer after the other into the stored tensors of a format."""

    config: QuantConfig
    row: table.FormatRow
    force: bool

    def obstacle(self, k: int, n: int) -> str:
        """Return why a layer of this shape can not be written in the format, or nothing."""
        size = k if self.config.group_size == -1 else self.config.group_size
        if self.row.whole_groups and k % size:
            return f"K={k} is no multiple of group_size={size}"
        for side, value, multiple in (("K", k, self.row.k_multiple), ("N", n, self.row.n_multiple)):
            if value % multiple:
                return f"{side}={value} is no multiple of {multiple}"
        return ""

    def pack(self, name: str, weight: torch.Tensor) -> Made:
        """Round a weight [N, K] and return its stored tensors.

        Raises:
            InexactConversion: as the packer and the writer say, with the layer's name.
        """
        try:
            packed: Weight = self.row.pack()(weight, self.config)
            stored: dict[str, torch.Tensor] = self.row.write()(packed, self.config, force=self.force)
        except InexactConversion as error:
            raise about_layer(error, name) from error
        return Made(tensors={f"{name}.{part}": t for part, t in stored.items()}, scheme=packed.scheme)


def quantizing(source: DenseSource, rounding: Rounding) -> Work:
    """Return the units that quantize every linear layer but the head, and pass everything else on."""
    chosen, notes = _chosen(source, rounding)
    units = []
    for name in source.names:
        module, _, suffix = name.rpartition(".")
        if module in chosen and suffix == "weight":
            units.append(_unit(source, module, rounding))
        else:
            units.append(plain(name, source.tensor))
    return Work(
        label=source.label,
        verb="quantizing",
        units=tuple(units),
        model_config=source.config,
        dense=tuple(name for name in source.linear if name not in chosen),
        notes=tuple(notes),
        copy_rest=source.copy_rest,
    )


def _unit(source: DenseSource, module: str, rounding: Rounding) -> Unit:
    return Unit(name=module, packs=True, make=lambda: rounding.pack(module, source.tensor(f"{module}.weight")))


def _chosen(source: DenseSource, rounding: Rounding) -> tuple[dict[str, None], list[str]]:
    """Return the layers to quantize, in order, and notes on those that stay dense or end in a short group."""
    chosen: dict[str, None] = {}
    short: list[int] = []
    notes = [
        f"{entry} names no layer, so nothing stays dense for it"
        for entry in rounding.config.modules_to_not_convert
        if not any(names_path(entry, name) for name in source.linear)
    ]
    for name in source.linear:
        if any(names_path(entry, name) for entry in rounding.config.modules_to_not_convert):
            continue
        n, k = source.shape(f"{name}.weight")
        obstacle = rounding.obstacle(k, n)
        if obstacle:
            notes.append(f"{name} stays dense: {obstacle}")
            continue
        chosen[name] = None
        if rounding.config.group_size > 0 and k % rounding.config.group_size:
            short.append(k)
    if short:
        sizes = ", ".join(map(str, sorted(set(short))))
        notes.append(f"{len(short)} layers end in a short group (K = {sizes}), which some other programs refuse")
    return chosen, notes
