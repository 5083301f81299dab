"""The layout of torch's int4 operator for CPUs: packed nibbles and bf16 pairs of (scale, offset) per group.

The operator computes ``(code - 8) * scale + offset`` in fp32 from bf16 metadata, so a value is exact when its
metadata is. What bf16 loses is kept as a second pair ("fine"), whose product is a small correction.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import torch

from quantfarm.formats.quant_tensor import QuantTensor

_MIDDLE = 8
_LANES = 16
_INJECTED_INPUTS = 128


@dataclass(frozen=True)
class Prepared:
    """One weight in the operator's layout.

    Attributes:
        tensor: the canonical form; the layout has no declared inverse, so the source stays.
        packed: the operator's own packing, [N padded to 16, K slots / 2] bytes.
        coarse: bf16 [slot groups + injected, N padded, 2]; the last ``injected`` groups are workspace.
        fine: what bf16 lost, in the same shape, or None when nothing was lost.
        slots: input of each slot, K meaning a padded slot; None when slot and input agree.
        injected: rows that one call can carry a private addend for.
        lock: held while the workspace groups of ``coarse`` are in use.
    """

    tensor: QuantTensor
    packed: torch.Tensor
    coarse: torch.Tensor
    fine: torch.Tensor | None
    slots: torch.Tensor | None
    injected: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def group_size(self) -> int:
        """Inputs per group of the operator."""
        return self.tensor.group_size

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


def pack(tensor: QuantTensor) -> Prepared:
    """Repack one 4-bit weight.

    Every group is padded to the group size with code 8 under a zero input, which contributes exactly zero; inputs
    are sorted by group with a stable sort. After the groups come ``injected`` groups of code 8 whose offset is a
    free addend: a one in their first slot adds it to the fp32 sum before the operator rounds.
    """
    size, n_padded = tensor.group_size, -(-tensor.n // _LANES) * _LANES
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
        packed=torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.t().contiguous(), 1),  # noqa: SLF001
        coarse=coarse,
        fine=fine,
        slots=None if in_place else slots,
        injected=injected,
    )


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
