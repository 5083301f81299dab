"""What a random weight is to be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Scheme and shape; ``variant`` is what else a format leaves open, such as a ggml type or a codebook."""

    method: str
    format: str
    bits: int
    group_size: int
    sym: bool
    act_order: bool
    n: int
    k: int
    variant: str = ""
