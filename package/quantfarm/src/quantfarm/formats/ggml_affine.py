"""ggml's plain 4- and 8-bit blocks as affine integer codes: the exact way from GGUF to GPTQ (formats, section 10).

Q4_0 is ``d * (q - 8)`` and Q8_0 is ``d * ((q + 128) - 128)``: scale and zero point as they stand. Q4_1 is ``d * q + m``
in two roundings; it has an integer zero point only where ``d * (q - z)`` gives the same number for every stored code.
"""

from __future__ import annotations

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme
from quantfarm.errors import InexactConversion
from quantfarm.formats import stored_codes
from quantfarm.formats.packing import pack_codes
from quantfarm.formats.packing_ggml import split_planes
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.formats.weights.ggml import GgmlWeight

AFFINE = ("q4_0", "q4_1", "q8_0")
"""The types that are affine in groups of 32 with one level of scales."""

_GROUP = 32
_TOP = 15


def to_affine(weight: GgmlWeight, *, force: bool = False) -> QuantTensor:
    """Return a weight of Q4_0, Q4_1 or Q8_0 as integer codes with fp16 scales and zero points in groups of 32.

    Values decode to the same fp32 numbers. It is labelled GPTQ_V2, whose zero points are the true ones; ``source`` is
    empty, since no file holds it.

    Args:
        weight: the blocks; a K that does not fill its last block leaves a short last group.
        force: take the nearest integer zero point where a block of Q4_1 has none; its values change then.

    Raises:
        InexactConversion: another type, or blocks of Q4_1 without an integer zero point from 0 to 15.
    """
    name = weight.type.name
    if name not in AFFINE:
        raise InexactConversion(
            f"cannot convert {name} exactly: needs one of {', '.join(AFFINE)}, whose codes are affine in groups of 32"
            "\nround the decoded values again: pass requantize"
        )
    blocks = weight.source["qweight"].reshape(weight.n, -1, weight.type.size)
    scales = _halves(blocks, 0)
    if name == "q8_0":
        codes, zeros = blocks[..., 2:] ^ 128, torch.full_like(scales, 128, dtype=torch.int32)
    else:
        codes = split_planes(blocks[..., 2 if name == "q4_0" else 4 :], 4).flatten(-2)
        zeros = _points(weight, codes, force=force) if name == "q4_1" else torch.full_like(scales, 8, dtype=torch.int32)
    bits = weight.scheme.bits
    return QuantTensor(
        method=METHOD.GPTQ,
        format=FORMAT.GPTQ_V2,
        scheme=Scheme(bits=bits, group_size=_GROUP, sym=bool((zeros == 1 << (bits - 1)).all())),
        k=weight.k,
        n=weight.n,
        bias=weight.bias,
        source={},
        codes=pack_codes(codes.flatten(1)[:, : weight.k].t().contiguous(), bits),
        scales=scales.t().contiguous(),
        zeros=zeros.t().contiguous(),
        g_idx=None,
        codes_to_source=stored_codes.way_back(FORMAT.GPTQ_V2, bits=bits, k=weight.k),
    )


def _halves(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Return the fp16 field at a byte of blocks [N, G, size] as [N, G]."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).squeeze(-1)


def _points(weight: GgmlWeight, codes: torch.Tensor, *, force: bool) -> torch.Tensor:
    """Return zero points int32 [N, G] of Q4_1; ``codes`` uint8 [N, G, 32]. Padding does not have to fit."""
    blocks = weight.source["qweight"].reshape(weight.n, -1, weight.type.size)
    d, m = _halves(blocks, 0).to(torch.float32), _halves(blocks, 2).to(torch.float32)
    zeros = torch.nan_to_num(torch.round(-m / d)).clamp_(0, _TOP)
    if force:
        return zeros.to(torch.int32)
    unfit = torch.zeros_like(d, dtype=torch.bool)
    inside = torch.arange(codes.shape[1] * _GROUP, device=codes.device).view(-1, _GROUP) < weight.k
    for code in range(_TOP + 1):
        differs = d * (code - zeros) != d * code + m
        unfit |= differs & ((codes == code) & inside).any(-1)
    if count := int(unfit.sum()):
        raise InexactConversion(
            f"cannot convert q4_1 exactly: needs minima that are whole multiples of -scale, from 0 to {_TOP}, "
            f"got {count} of {unfit.numel()} blocks with others\nforce it, or keep the format"
        )
    return zeros.to(torch.int32)
