"""The last step of every product: bias in fp32, one cast, and no autocast in between."""

from __future__ import annotations

import contextlib

import torch


def finish(accumulated: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Add the bias to the fp32 result [M, N] and cast once to the activation dtype.

    The bias is widened, never narrowed (``numerics`` rules A1 and A2). ``accumulated`` is consumed: a caller
    that still needs it passes a copy.
    """
    if bias is not None:
        accumulated = accumulated.add_(bias.to(torch.float32))
    return accumulated.to(dtype)


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which autocast does not narrow fp32 products; free of cost when autocast is off."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
