"""Backend over torch's int4 operator for CPUs, run in bf16 with its rounding undone where the result needs it.

The operator sums in fp32 but rounds its output to bf16. Two remedies, both by the operator itself:
a private addend per row goes into the fp32 sum through a group of code 8 (see ``layout.pack``), so corrections
are added before the rounding; and adding minus the rounded result gives the part that the rounding lost.
"""

from __future__ import annotations

import torch

from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.kernels.aten_int4.layout import Prepared, pack
from quantfarm.runtime import panels
from quantfarm.runtime.epilogue import finish
from quantfarm.runtime.launches import LaunchCounter

_LAUNCHES = LaunchCounter()
_DECODE_ABOVE_EXACT = 64
_DECODE_ABOVE = 8
"""More rows than this and decoding tiles once is cheaper than several passes (measured, NOTES.md)."""


def prepare(tensor: QuantTensor, device: torch.device) -> Prepared:
    """Repack for the operator; ``device`` is the processor.

    Raises:
        ValueError: the codes are not in canonical form on the processor.
    """
    if tensor.codes is None or tensor.codes.device != device:
        found = "none" if tensor.codes is None else tensor.codes.device
        raise ValueError(f"codes: needs canonical codes on {device}, got {found}")
    return pack(tensor)


def run(prepared: Prepared, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply x [M, K] to [M, N] in x.dtype (fp16, bf16); few rows by the operator, many by decoded tiles."""
    _LAUNCHES.add()
    rounded_once = x.dtype is torch.bfloat16 and bias is None
    passes_once = rounded_once and prepared.fine is None
    if x.shape[0] > (_DECODE_ABOVE_EXACT if passes_once else _DECODE_ABOVE):
        return finish(panels.multiply(x, prepared.tensor), bias, x.dtype)
    if rounded_once:
        return _rounded(prepared, prepared.place(x))
    return finish(_wide(prepared, x), bias, x.dtype)


def restore(prepared: Prepared) -> torch.Tensor:
    """Return the canonical codes, which are kept beside the operator's layout."""
    assert prepared.tensor.codes is not None
    return prepared.tensor.codes


def calls() -> int:
    """Return how often ``run`` computed in this process."""
    return _LAUNCHES.value


def _rounded(prepared: Prepared, placed: torch.Tensor) -> torch.Tensor:
    """Return x W^T in bf16, rounded once: what the metadata lost joins the fp32 sum."""
    if prepared.fine is None:
        return _product(prepared, placed, prepared.coarse)
    return _with_addend(prepared, placed, _product(prepared, placed, prepared.fine))


def _wide(prepared: Prepared, x: torch.Tensor) -> torch.Tensor:
    """Return x W^T in fp32, right to about 2^-16: bf16 result, plus its lost part, plus the corrections."""
    rows = x.shape[0]
    stacked = x if x.dtype is torch.bfloat16 else torch.cat([x, _below_bf16(x)])
    placed = prepared.place(stacked)
    result = _product(prepared, placed, prepared.coarse)
    top, below = result[:rows], result[rows:]
    lost = _with_addend(prepared, placed[:rows], -top).to(torch.float32)
    if below.shape[0]:
        lost += below
    if prepared.fine is not None:
        lost += _product(prepared, placed[:rows], prepared.fine)
    return torch.where(torch.isfinite(top), lost, 0.0) + top


def _below_bf16(x: torch.Tensor) -> torch.Tensor:
    """Return what bf16 loses of x, exactly representable in x.dtype; zero where x is not finite."""
    rest = x.to(torch.float32) - x.to(torch.bfloat16).to(torch.float32)
    return torch.nan_to_num(rest, nan=0.0, posinf=0.0, neginf=0.0).to(x.dtype)


def _with_addend(prepared: Prepared, placed: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
    """Return bf16(x W^T + addend) for an addend bf16 [M, N], a few rows a call; not finite addends count as zero."""
    addend = torch.nan_to_num(addend, nan=0.0, posinf=0.0, neginf=0.0)
    first = placed.shape[1] - prepared.injected * prepared.group_size
    parts = []
    for start in range(0, placed.shape[0], prepared.injected):
        rows = placed[start : start + prepared.injected].clone()
        rows[:, first :: prepared.group_size].fill_diagonal_(1.0)
        with prepared.lock:
            prepared.workspace[: rows.shape[0]] = addend[start : start + rows.shape[0]]
            parts.append(_product(prepared, rows, prepared.coarse))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _product(prepared: Prepared, placed: torch.Tensor, metadata: torch.Tensor) -> torch.Tensor:
    """Call the operator: bf16 [M, slots] to bf16 [M, N]."""
    operator = torch.ops.aten._weight_int4pack_mm_for_cpu  # noqa: SLF001
    out: torch.Tensor = operator(placed, prepared.packed, prepared.group_size, metadata)
    return out if out.shape[1] == prepared.tensor.n else out[:, : prepared.tensor.n].contiguous()
