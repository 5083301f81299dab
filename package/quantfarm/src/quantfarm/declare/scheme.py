"""Scheme: the arithmetic contract of one quantized weight, independent of format, kernel and device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class WeightKind(str, Enum):
    """How a stored code becomes a number."""

    INT = "int"
    FLOAT = "float"
    TABLE = "table"
    TRELLIS = "trellis"
    VECTOR = "vector"


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What the codes mean.

    Attributes:
        weight_kind: affine integers here; table, trellis and vector codes have their own decoders.
        bits: code width.
        group_size: inputs that share one scale; -1 means one scale for the whole row.
        sym: True when every zero point equals 2^(bits-1).
        act_order: True when the group of an input is given by an explicit index instead of its position.
        activation_bits: 16 means activations stay in their float dtype.
    """

    weight_kind: WeightKind = WeightKind.INT
    bits: int
    group_size: int
    sym: bool
    act_order: bool = False
    activation_bits: int = 16

    def __str__(self) -> str:
        """Return the compact form used in every message, such as ``int4 g128 asym act-order``."""
        group = "g-1" if self.group_size == -1 else f"g{self.group_size}"
        parts = [f"{self.weight_kind.value}{self.bits}", group, "sym" if self.sym else "asym"]
        if self.act_order:
            parts.append("act-order")
        return " ".join(parts)
