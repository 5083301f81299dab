"""KERNELS: every record, in order, as an explicit tuple. Nothing becomes a candidate by existing elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.spec import KernelSpec
from quantfarm.kernels.aten_int4 import spec as aten_int4
from quantfarm.kernels.int4_panel import spec as int4_panel
from quantfarm.kernels.panel_dequant import spec as panel_dequant

KERNELS: tuple[KernelSpec, ...] = (
    int4_panel.GPTQ,
    int4_panel.AWQ,
    aten_int4.GPTQ,
    aten_int4.AWQ,
    panel_dequant.GPTQ,
    panel_dequant.AWQ,
)


@dataclass(frozen=True, kw_only=True)
class Tie:
    """Two records of equal priority for one pair, and which goes first, with the reason."""

    method: METHOD
    format: FORMAT
    order: tuple[BACKEND, ...]
    reason: str


TIES: tuple[Tie, ...] = (
    Tie(
        method=METHOD.VPTQ,
        format=FORMAT.VPTQ,
        order=(BACKEND.VPTQ_CUDA, BACKEND.VPTQ_TORCH),
        reason="by string order the CUDA kernel could never be reached",
    ),
)
