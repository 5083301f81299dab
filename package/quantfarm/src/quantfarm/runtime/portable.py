"""The portable path of a kernel folder: keep the weight as it is, decode a panel in fp32, multiply in fp32, go on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantfarm.formats.weights.base import Weight
from quantfarm.runtime import panels
from quantfarm.runtime.epilogue import finish
from quantfarm.runtime.launches import LaunchCounter


@dataclass(frozen=True)
class Prepared:
    """The weight itself, on its device; nothing is derived, so nothing can go stale."""

    weight: Weight


class PortablePath:
    """The four functions of a backend over ``panels.multiply``; one object a kernel folder, with its own counter."""

    def __init__(self) -> None:
        self._launches = LaunchCounter()

    def prepare(self, tensor: Weight, device: torch.device) -> Prepared:
        """Keep the weight as it is.

        Raises:
            ValueError: its codes are absent, or it lies on another device.
        """
        if not tensor.complete:
            raise ValueError("the codes are held by another kernel's layout: restore them first")
        if tensor.device != device:
            raise ValueError(f"weight: needs device {device}, got {tensor.device}")
        return Prepared(weight=tensor)

    def run(self, prepared: Prepared, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Multiply x [M, K] to [M, N] in x.dtype; sums and bias in fp32, one cast."""
        self._launches.add()
        return finish(panels.multiply(x, prepared.weight), bias, x.dtype)

    def restore(self, prepared: Prepared) -> torch.Tensor:
        """Return the canonical codes where the weight has such; raise TypeError for a weight kept as stored."""
        codes: object = getattr(prepared.weight, "codes", None)
        if not isinstance(codes, torch.Tensor):
            raise TypeError(f"{type(prepared.weight).__name__} keeps its stored tensors and has no canonical codes")
        return codes

    def calls(self) -> int:
        """Return how often ``run`` computed in this process."""
        return self._launches.value
