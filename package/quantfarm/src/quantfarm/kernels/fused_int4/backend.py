"""Backend over torch's int4 operator for CPUs, every group size and dtype; the rest is ``runtime.int4_operator``."""

from __future__ import annotations

import torch

from quantfarm.runtime import int4_operator
from quantfarm.runtime.int4_operator import Prepared
from quantfarm.runtime.launches import LaunchCounter

_LAUNCHES = LaunchCounter()
prepare = int4_operator.prepare


def run(prepared: Prepared, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply x [M, K] to [M, N] in x.dtype; sums and bias in fp32, one rounding."""
    _LAUNCHES.add()
    return int4_operator.multiply(prepared, x, bias)


def restore(prepared: Prepared) -> torch.Tensor:
    """Return the canonical codes, which are kept beside the operator's layout."""
    return prepared.tensor.held_codes()


def calls() -> int:
    """Return how often ``run`` computed in this process."""
    return _LAUNCHES.value
