"""Torch's int4 operator for CPUs: its layout, packed nibbles and bf16 pairs of (scale, offset), and its product.

The operator computes ``(code - 8) * scale + offset`` in fp32 from bf16 metadata, so a value is exact when its
metadata is. What bf16 loses is kept as a second pair ("fine"), whose product is a small correction.

The operator sums in fp32 but rounds its output to bf16. Two remedies, both by the operator itself:
a private addend per row goes into the fp32 sum through a group of code 8 (see ``pack``), so corrections
are added before the rounding; and adding minus the rounded result gives the part that the rounding lost.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import torch

from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.runtime import panels
from quantfarm.runtime.epilogue import finish

_MIDDLE = 8
_LANES = 16
_INJECTED_INPUTS = 128
_GROUPS = (32, 64, 128, 256)
"""Group sizes that the operator has."""
_USUAL_GROUP = 128
_DECODE_ABOVE_EXACT = 64
_DECODE_ABOVE = 8
"""More rows than this and decoding tiles once is cheaper than several passes (measured, kernels/aten_int4/NOTES.md)."""


@dataclass(frozen=True)
class Prepared:
    """One weight in the operator's layout.

    Attributes:
        tensor: the canonical form; the layout has no declared inverse, so the source stays.
        group_size: inputs per group of the operator; the weight's own groups take one or more of them.
        packed: the operator's own packing, [N padded to 16, K slots / 2] bytes.
        coarse: bf16 [slot groups + injected, N padded, 2]; the last ``injected`` groups are workspace.
        fine: what bf16 lost, in the same shape, or None when nothing was lost.
        slots: input of each slot, K meaning a padded slot; None when slot and input agree.
        injected: rows that one call can carry a private addend for.
        lock: held while the workspace groups of ``coarse`` are in use.
    """

    tensor: QuantTensor
    group_size: int
    packed: torch.Tensor
    coarse: torch.Tensor
    fine: torch.Tensor | None
    slots: torch.Tensor | None
    injected: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def workspace(self) -> torch.Tensor:
        """The offsets of the injected groups, bf16 [injected, N]: a view of ``coarse``."""
        return self.coarse[-self.injected :, : self.tensor.n, 1]

    def place(self, x: torch.Tensor) -> torch.Tensor:
        """Put x [M, K] into slots as dense bf16 [M, slots]; padded and injected slots hold zero."""
        x = x.to(torch.bfloat16)
        width = self.packed.shape[1] * 2
        if self.slots is None:
            return torch.nn.functional.pad(x, (0, width - x.shape[1]))
        return torch.nn.functional.pad(x, (0, 1)).index_select(1, self.slots)


def prepare(tensor: QuantTensor, device: torch.device) -> Prepared:
    """Repack for the operator; ``device`` is the processor.

    Raises:
        ValueError: the codes are not in canonical form on the processor.
    """
    if tensor.codes is None or tensor.codes.device != device:
        found = "none" if tensor.codes is None else tensor.codes.device
        raise ValueError(f"codes: needs canonical codes on {device}, got {found}")
    return pack(tensor)


def pack(tensor: QuantTensor) -> Prepared:
    """Repack one 4-bit weight.

    Every group is padded to whole groups of the operator with code 8 under a zero input, which contributes exactly
    zero; so a group of 16 takes one of 32, and a whole row several of 128. Inputs are sorted by group with a stable
    sort. After the groups come ``injected`` groups of code 8 whose offset is a
    free addend: a one in their first slot adds it to the fp32 sum before the operator rounds.
    """
    size, n_padded = _operator_group(tensor), -(-tensor.n // _LANES) * _LANES
    injected = max(_INJECTED_INPUTS // size, 1)
    groups = tensor.group_of_inputs()
    spans = -(-torch.bincount(groups, minlength=tensor.scales.shape[0]) // size)
    order = torch.argsort(groups, stable=True)
    position = _slot_positions(groups[order], spans, size)
    width = (int(spans.sum()) + injected) * size
    codes = torch.full((width, n_padded), _MIDDLE, dtype=torch.int32)
    codes[position, : tensor.n] = tensor.unpacked()[order].to(torch.int32)
    slots = torch.full((width,), tensor.k, dtype=torch.int64)
    slots[position] = order
    in_place = bool((slots[: tensor.k] == torch.arange(tensor.k)).all())
    coarse, fine = _metadata(tensor, spans, injected, n_padded)
    return Prepared(
        tensor=tensor,
        group_size=size,
        packed=torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.t().contiguous(), 1),  # noqa: SLF001
        coarse=coarse,
        fine=fine,
        slots=None if in_place else slots,
        injected=injected,
    )


def _operator_group(tensor: QuantTensor) -> int:
    if tensor.group_size in _GROUPS:
        return tensor.group_size
    return _GROUPS[0] if tensor.group_size < _GROUPS[0] else _USUAL_GROUP


def _slot_positions(sorted_groups: torch.Tensor, spans: torch.Tensor, size: int) -> torch.Tensor:
    """Return the slot of each input in sorted order; ``spans`` is how many operator groups each group takes."""
    first_slot = (torch.cumsum(spans, 0) - spans) * size
    counts = torch.bincount(sorted_groups, minlength=spans.shape[0])
    first_input = torch.cumsum(counts, 0) - counts
    rank = torch.arange(sorted_groups.shape[0]) - first_input[sorted_groups]
    return first_slot[sorted_groups] + rank


def _metadata(
    tensor: QuantTensor, spans: torch.Tensor, injected: int, n_padded: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return coarse and fine pairs. ``(q - z) * s = (q - 8) * s + (8 - z) * s``; both factors split into two bf16."""
    scales = tensor.scales.to(torch.float32)
    offsets = (_MIDDLE - tensor.zeros).to(torch.float32) * scales
    pairs = torch.stack([scales, offsets], dim=-1).repeat_interleave(spans, dim=0)
    pairs = torch.nn.functional.pad(pairs, (0, 0, 0, n_padded - tensor.n, 0, injected))
    coarse = pairs.to(torch.bfloat16).contiguous()
    rest = pairs - coarse.to(torch.float32)
    return coarse, rest.to(torch.bfloat16).contiguous() if bool(rest.any()) else None


def multiply(prepared: Prepared, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Multiply x [M, K] to [M, N] in x.dtype; few rows of fp16 and bf16 by the operator, the rest by decoded tiles.

    fp32 needs more bits than two bf16 halves have, and the operator's own fp32 form is a scalar loop.
    """
    rounded_once = x.dtype is torch.bfloat16 and bias is None
    passes_once = rounded_once and prepared.fine is None
    few = x.shape[0] <= (_DECODE_ABOVE_EXACT if passes_once else _DECODE_ABOVE)
    if x.dtype is torch.float32 or not few:
        return finish(panels.multiply(x, prepared.tensor), bias, x.dtype)
    if rounded_once:
        return _rounded(prepared, prepared.place(x))
    return finish(_wide(prepared, x), bias, x.dtype)


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
