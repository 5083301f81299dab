"""Portable backend: decode a tile of the weight in fp32, multiply in fp32, go on. Canonical codes are its layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.runtime import panels
from quantfarm.runtime.epilogue import finish
from quantfarm.runtime.launches import LaunchCounter

_LAUNCHES = LaunchCounter()


@dataclass(frozen=True)
class Prepared:
    """The quantized weight itself, on its device; nothing is derived, so nothing can go stale."""

    tensor: QuantTensor
    codes: torch.Tensor


def prepare(tensor: QuantTensor, device: torch.device) -> Prepared:
    """Keep the canonical form. The caller has placed its tensors on ``device``.

    Raises:
        ValueError: the codes are absent or on another device.
    """
    if tensor.codes is None:
        raise ValueError("the codes are held by another kernel's layout: restore them first")
    if tensor.codes.device != device:
        raise ValueError(f"codes: needs device {device}, got {tensor.codes.device}")
    return Prepared(tensor=tensor, codes=tensor.codes)


def run(prepared: Prepared, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply x [M, K] to [M, N] in x.dtype; sums and bias in fp32, one cast."""
    _LAUNCHES.add()
    return finish(panels.multiply(x, prepared.tensor), bias, x.dtype)


def restore(prepared: Prepared) -> torch.Tensor:
    """Return the canonical codes, which are kept as they came."""
    return prepared.codes


def calls() -> int:
    """Return how often ``run`` computed in this process."""
    return _LAUNCHES.value
