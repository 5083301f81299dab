"""Inspection: what a look into a checkpoint gave, as values, as text and for programs. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "quantfarm-inspect/1"
CONSISTENT, CONTRADICTORY = 0, 1
"""The exit codes."""

_SHOWN = 12
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One packed layer: module name, scheme and type in words, sides, bytes of all its tensors."""

    module: str
    scheme: str
    k: int
    n: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """One checkpoint.

    Attributes:
        path: what was looked at.
        method, format: of the packed layers; empty where there are none.
        writer: what the files say made them; empty where they say nothing.
        source: where the settings stand; empty where there are none.
        files: name to size in bytes, of the files with tensors.
        layers: the packed ones.
        dense_tensors, dense_size, dense_values: the rest.
        odd: layers that are not as most, a sentence each.
        contradictions: what can not be true together, a sentence each.
        notes: what is worth knowing and is no contradiction.
    """

    path: str
    method: str
    format: str
    writer: str
    source: str
    files: Mapping[str, int]
    layers: tuple[Layer, ...]
    dense_tensors: int
    dense_size: int
    dense_values: int
    odd: tuple[str, ...]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 for a checkpoint that agrees with itself, 1 for one that does not."""
        return CONTRADICTORY if self.contradictions else CONSISTENT

    @property
    def packed_size(self) -> int:
        """Bytes of the packed layers: codes, scales, zero points, biases."""
        return sum(layer.size for layer in self.layers)

    @property
    def bits_per_weight(self) -> float:
        """Bits that a weight of a packed layer takes, scales and all; 0 where no header tells the shapes."""
        weights = 0 if any(not layer.k for layer in self.layers) else sum(layer.k * layer.n for layer in self.layers)
        return self.packed_size * 8 / weights if weights else 0.0

    @property
    def kinds(self) -> dict[str, int]:
        """Scheme to the number of its layers, the most frequent first."""
        return dict(Counter(layer.scheme for layer in self.layers).most_common())

    def as_json(self) -> dict[str, Any]:
        """Return the facts for programs."""
        return {
            "schema": SCHEMA,
            **{key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items() if key != "layers"},
            "total_size": sum(self.files.values()),
            "packed_size": self.packed_size,
            "bits_per_weight": round(self.bits_per_weight, 4),
            "kinds": self.kinds,
            "layers": [asdict(layer) for layer in self.layers],
            "consistent": not self.contradictions,
        }

    def __str__(self) -> str:
        """Return the facts as text."""
        what = f"{self.method} {self.format}" if self.layers else "no packed layers"
        total, count = sum(self.files.values()), len(self.files)
        share = f", {self.bits_per_weight:.2f} bits per weight" if self.bits_per_weight else ""
        size = f"{len(self.layers)} layers, {_size(self.packed_size)}{share}"
        lines = [
            f"{self.path}: {what}",
            _line("settings", self.source or "none"),
            _line("writer", self.writer or "not stated"),
            _line("files", f"{count} with tensors, {_size(total)}"),
            _line("packed", size) if self.layers else "",
            _line("dense", f"{self.dense_tensors} tensors, {_size(self.dense_size)}"),
            *_several("layers", (f"{count} x {scheme}" for scheme, count in self.kinds.items())),
            *_several("odd", self.odd),
            *_several("note", self.notes),
            *_several("contradiction", self.contradictions),
            "" if self.contradictions else "consistent: nothing here contradicts anything else",
        ]
        return "\n".join(line for line in lines if line)


def odd_layers(layers: Iterable[Layer]) -> list[str]:
    """Return a sentence for each layer whose scheme is not that of most layers."""
    every = list(layers)
    most = Counter(layer.scheme for layer in every).most_common(1)
    usual = most[0][0] if most else ""
    return [f"{layer.module}: {layer.scheme}, most are {usual}" for layer in every if layer.scheme != usual]


def _line(name: str, text: str) -> str:
    return f"  {name:<14} {text}"


def _several(name: str, texts: Iterable[str]) -> list[str]:
    every = list(texts)
    more = [_line(name, f"and {len(every) - _SHOWN} more")] if len(every) > _SHOWN else []
    return [*(_line(name, text) for text in every[:_SHOWN]), *more]


def _size(count: int) -> str:
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"
