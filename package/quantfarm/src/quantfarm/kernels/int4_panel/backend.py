"""Native int4 backend for CPUs: one repack at load, then one operator a call. The layout is csrc's (problem.h)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from quantfarm.errors import ArtifactError
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.runtime.artifacts import load_library

_PANEL = 64
"""Columns of a full panel; the last one is as narrow as N padded to ``_LINE`` allows."""
_LINE = 16
_MIDPOINT = 8


@dataclass(frozen=True)
class Prepared:
    """One weight in the panel layout: codes, scales [G, N] in their stored dtype, zero points as bytes.

    ``zeros`` is None when every zero point is 8, ``order`` is None when inputs lie in group order already.
    """

    k: int
    n: int
    group_size: int
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    order: torch.Tensor | None


def prepare(tensor: QuantTensor, device: torch.device) -> Prepared:
    """Repack the codes into panels, sorted by group; the checkpoint's codes are not kept.

    Raises:
        ArtifactError: the native library is not usable.
        ValueError: the codes are absent, on another device, or their groups are of unequal size.
    """
    if tensor.codes is None:
        raise ValueError("the codes are held by another kernel's layout: restore them first")
    if device.type != "cpu" or tensor.codes.device != device:
        raise ValueError(f"codes: needs device cpu, got {tensor.codes.device} for {device}")
    _check_groups(tensor)
    order = tensor.permutation()
    order = None if order is None else order.to(torch.int32)
    symmetric = bool((tensor.zeros == _MIDPOINT).all())
    return Prepared(
        k=tensor.k,
        n=tensor.n,
        group_size=tensor.group_size,
        codes=_operators().int4_panel_pack(tensor.codes.contiguous(), order, tensor.n),
        scales=to_panels(tensor.scales),
        zeros=None if symmetric else to_panels(tensor.zeros.to(torch.uint8)),
        order=order,
    )


def run(prepared: Prepared, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply x [M, K] to [M, N] in x.dtype; sums and bias in fp32, one rounding. A strided x is copied first."""
    if bias is not None:
        # fp64 has no place in an fp32 sum; every narrower type is widened by the operator itself.
        bias = (bias.to(torch.float32) if bias.dtype == torch.float64 else bias).contiguous()
    result: torch.Tensor = _operators().int4_panel_mm(
        x.contiguous(),
        prepared.codes,
        prepared.scales,
        prepared.zeros,
        prepared.order,
        bias,
        prepared.group_size,
        prepared.n,
    )
    return result


def restore(prepared: Prepared) -> torch.Tensor:
    """Return the canonical codes, int32 [K/8, N], bit for bit."""
    codes: torch.Tensor = _operators().int4_panel_unpack(prepared.codes, prepared.order, prepared.k, prepared.n)
    return codes


def calls() -> int:
    """Return how often the operator computed in this process, as the library counts it."""
    return int(_operators().int4_panel_calls())


def to_panels(values: torch.Tensor) -> torch.Tensor:
    """Turn [G, N] into panel order: for each panel of columns, [G, width]; columns are padded with 0 to 16."""
    groups, n = values.shape
    values = torch.nn.functional.pad(values, (0, -n % _LINE))
    whole = values.shape[1] // _PANEL * _PANEL
    full = values[:, :whole].reshape(groups, -1, _PANEL).transpose(0, 1)
    return torch.cat([full.reshape(-1), values[:, whole:].reshape(-1)])


def _check_groups(tensor: QuantTensor) -> None:
    """The kernel finds a group by position after sorting, so each must hold exactly ``group_size`` inputs."""
    if tensor.g_idx is None:
        return
    counts = torch.bincount(tensor.g_idx.to(torch.int64), minlength=tensor.groups)
    odd = torch.nonzero(counts != tensor.group_size).flatten()
    if odd.numel():
        group = int(odd[0])
        raise ValueError(
            f"g_idx: needs {tensor.group_size} inputs in each group, got {int(counts[group])} in group {group}"
        )


@cache
def _operators() -> Any:
    """Return the operator namespace of the loaded library.

    Raises:
        ArtifactError: the library is absent or does not load; the loader's own sentence is kept.
    """
    state = load_library("cpu")
    if state.status != "loaded":
        raise ArtifactError(f"cannot run int4_panel: the library quantfarm-cpu is {state.status}\n  {state.text}")
    torch.library.register_fake("quantfarm_cpu::int4_panel_mm", _shape_of_product)
    return torch.ops.quantfarm_cpu


def _shape_of_product(x: torch.Tensor, *operands: Any) -> torch.Tensor:
    """Shape-only form for tracing: [M, N] like x."""
    return x.new_empty((x.shape[0], operands[-1]))
