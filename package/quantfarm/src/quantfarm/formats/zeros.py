"""Zero points: the minus-one of GPTQ v1, its two inverses, and whether a tensor is symmetric in truth."""

from __future__ import annotations

import torch

from quantfarm.errors import InexactConversion
from quantfarm.formats.packing import pack_columns, unpack_columns

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
