"""Zero points: the minus-one of GPTQ v1, its two inverses, and whether a tensor is symmetric in truth."""

from __future__ import annotations

from dataclasses import replace

import torch

from quantfarm.declare.names import FORMAT
from quantfarm.errors import InexactConversion
from quantfarm.formats.packing import pack_columns, pack_planes, unpack_columns, unpack_planes
from quantfarm.formats.quant_tensor import QuantTensor

_WORD_BITS = 32
_WORD_MASK = (1 << _WORD_BITS) - 1


def ones(bits: int) -> int:
    """Return the word with a one in every field: 0x55555555, 0x11111111, 0x01010101 for 2, 4, 8 bits."""
    return sum(1 << shift for shift in range(0, _WORD_BITS, bits))


def from_v1(words: torch.Tensor, bits: int, n: int, *, word_wise: bool) -> tuple[torch.Tensor, int]:
    """Decode the qzeros of GPTQ v1.

    Per field, z = (stored + 1) mod 2^bits. Word-wise, the packed constant of ones is added to the whole 32-bit
    word modulo 2^32, so that a carry undoes the borrow that the writer's subtraction made (formats, section 1).
    3-bit fields straddle words and are always taken per field.

    Returns:
        int32 [G, N] zero points, and how many fields differ between the two rules.
    """
    fields = unpack_columns(words, bits, n).to(torch.int32)
    per_field = (fields + 1) & ((1 << bits) - 1)
    if _WORD_BITS % bits:
        return per_field, 0
    carried = unpack_columns(_shifted(words, ones(bits)), bits, n).to(torch.int32)
    differing = int((carried != per_field).sum())
    return (carried if word_wise else per_field), differing


def to_v1(zeros: torch.Tensor, bits: int, *, word_wise: bool) -> torch.Tensor:
    """Encode zero points [G, N] as the qzeros of GPTQ v1: the inverse of ``from_v1`` under the same rule."""
    if word_wise and _WORD_BITS % bits == 0:
        return _shifted(pack_columns(zeros, bits), -ones(bits))
    return pack_columns((zeros - 1) & ((1 << bits) - 1), bits)


def from_words(words: torch.Tensor, bits: int, n: int, layout: FORMAT) -> torch.Tensor:
    """Unpack true zero points [G, N] of GPTQ_V2 or GPTQ_P as int32."""
    if layout is FORMAT.GPTQ_P:
        return unpack_planes(words.t(), bits).t().to(torch.int32).contiguous()
    return unpack_columns(words, bits, n).to(torch.int32)


def to_words(zeros: torch.Tensor, bits: int, layout: FORMAT) -> torch.Tensor:
    """Pack true zero points [G, N] as GPTQ_V2 or GPTQ_P has them: the inverse of ``from_words``."""
    if layout is FORMAT.GPTQ_P:
        return pack_planes(zeros.t().to(torch.uint8), bits).t().contiguous()
    return pack_columns(zeros, bits)


def with_integers(tensor: QuantTensor, *, rounded: bool = False) -> QuantTensor:
    """Return the tensor with integer zero points in place of ``offsets``; the same where it has none.

    An offset is the product ``-(scale * zero)`` in the precision of the file. A zero point takes its place only where
    the exact product is the stored offset, so that every weight stays what it was. With ``rounded`` it may also be the
    nearest number of the file's precision: that undoes the rounding of the writer, and moves the weights by it.

    Raises:
        InexactConversion: some offsets are no such product; says how many.
    """
    if tensor.offsets is None:
        return tensor
    scales, offsets = tensor.scales.to(torch.float64), tensor.offsets.to(torch.float64)
    points = torch.where(scales == 0, torch.zeros_like(scales), torch.round(-offsets / scales))
    product = -(points * scales)
    inexact = product.to(tensor.offsets.dtype) != tensor.offsets if rounded else product != offsets
    count = int(inexact.sum())
    if count:
        raise InexactConversion(
            f"cannot take integer zero points: needs offsets of -(scale * zero), got {count} of {offsets.numel()} that "
            f"{'are no such product' if rounded else 'are rounded'}"
        )
    return replace(tensor, zeros=points.to(torch.int32), offsets=None)


def with_offsets(tensor: QuantTensor, *, rounded: bool = False) -> QuantTensor:
    """Return the tensor with ``offsets`` of ``-(scale * zero)`` in place of zero points: the way of AWQ GEMV_FAST.

    Raises:
        InexactConversion: products do not fit into the dtype of the scales, and ``rounded`` does not allow to round.
    """
    if tensor.offsets is not None:
        return tensor
    exact = -(tensor.scales.to(torch.float64) * tensor.zeros.to(torch.float64))
    offsets = exact.to(tensor.scales.dtype)
    count = int((offsets.to(torch.float64) != exact).sum())
    if count and not (rounded and bool(torch.isfinite(offsets).all())):
        dtype = str(offsets.dtype).removeprefix("torch.")
        raise InexactConversion(
            f"cannot store scale * zero in {dtype}: needs a product that it holds, got {count} of {exact.numel()} that "
            "it rounds"
        )
    return replace(tensor, zeros=torch.zeros_like(tensor.zeros), offsets=offsets)


def check_range(zeros: torch.Tensor, bits: int) -> None:
    """Raise InexactConversion when a zero point does not fit into a field."""
    low, high = (int(zeros.min()), int(zeros.max())) if zeros.numel() else (0, 0)
    if low < 0 or high >= 1 << bits:
        raise InexactConversion(
            f"cannot store the zero points: needs 0 to {(1 << bits) - 1} in {bits} bits, got {low} to {high}"
        )


def symmetric(zeros: torch.Tensor, bits: int) -> bool:
    """Say whether every zero point is 2^(bits-1)."""
    return bool((zeros == 1 << (bits - 1)).all())


def symmetry_note(zeros: torch.Tensor, bits: int) -> str:
    """Return the sentence for settings that say symmetric over zero points that are not."""
    middle = 1 << (bits - 1)
    other = int((zeros != middle).sum())
    return (
        f"the settings say symmetric, but {other} of {zeros.numel()} zero points are not {middle}; "
        "taken as asymmetric, since the stored zero points decide"
    )


def _shifted(words: torch.Tensor, amount: int) -> torch.Tensor:
    """Add ``amount`` to every 32-bit word modulo 2^32."""
    unsigned = (words.to(torch.int64) + amount) & _WORD_MASK
    return torch.where(unsigned > _WORD_MASK >> 1, unsigned - (_WORD_MASK + 1), unsigned).to(torch.int32)
