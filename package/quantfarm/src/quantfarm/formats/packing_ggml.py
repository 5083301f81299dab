"""Bit orders of ggml blocks (formats, section 10): a part of the library of packing, each order with its inverse.

Leading dimensions are free everywhere; fields and bytes are uint8.
"""

from __future__ import annotations

import torch

_SIX_BITS, _FOUR_BITS, _UPPER_TWO = 0x3F3F3F3F, 0x0F0F0F0F, 0x30303030
"""Masks of four bytes at once: the lowest six bits, the lowest four, and the two above those."""


def runs(values: torch.Tensor, *sizes: int) -> torch.Tensor:
    """Return the last dimension as several, the slowest first; one of the sizes may be -1."""
    return torch.unflatten(values, -1, sizes)


def split_planes(packed: torch.Tensor, width: int) -> torch.Tensor:
    """Unpack bytes [.., w] to [.., 8/width, w]: plane p of byte i is its bits p*width .. (p+1)*width - 1.

    Most ggml types lie like this: all low nibbles are one run of values, all high nibbles the next one.
    """
    mask = (1 << width) - 1
    planes = [packed & mask]
    planes += [(packed >> shift) & mask for shift in range(width, 8 - width, width)]
    planes.append(packed >> (8 - width))
    return torch.stack(planes, dim=-2)


def join_planes(fields: torch.Tensor, width: int) -> torch.Tensor:
    """Pack fields [.., 8/width, w] to bytes [.., w]: the inverse of ``split_planes``."""
    packed = fields[..., 0, :].clone()
    for plane in range(1, 8 // width):
        packed |= fields[..., plane, :] << (plane * width)
    return packed


def split_sequence(packed: torch.Tensor, width: int) -> torch.Tensor:
    """Unpack bytes [.., w] to [.., w*8/width]: neighbours lie in one byte, low bits first."""
    return split_planes(packed, width).transpose(-1, -2).flatten(-2)


def join_sequence(fields: torch.Tensor, width: int) -> torch.Tensor:
    """Pack fields [.., w*8/width] to bytes [.., w]: the inverse of ``split_sequence``."""
    return join_planes(runs(fields, -1, 8 // width).transpose(-1, -2), width)


def split_scales_and_minima(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpack the 12 scale bytes of Q4_K and Q5_K [.., 12] to scales and minima of 6 bits, [.., 8] each.

    Four bytes are taken at a time as one word, which is many times faster on rows as short as these.
    """
    low, high, both = packed.contiguous().view(torch.int32).unbind(-1)
    words = (
        low & _SIX_BITS,
        (both & _FOUR_BITS) | ((low >> 2) & _UPPER_TWO),
        high & _SIX_BITS,
        ((both >> 4) & _FOUR_BITS) | ((high >> 2) & _UPPER_TWO),
    )
    fields = torch.stack(words, dim=-1).view(torch.uint8)
    return fields[..., :8], fields[..., 8:]


def join_scales_and_minima(scales: torch.Tensor, minima: torch.Tensor) -> torch.Tensor:
    """Pack scales and minima of 6 bits [.., 8] to 12 bytes: the inverse of ``split_scales_and_minima``."""
    low = scales[..., :4] | (scales[..., 4:] >> 4) << 6
    high = minima[..., :4] | (minima[..., 4:] >> 4) << 6
    return torch.cat((low, high, (scales[..., 4:] & 15) | (minima[..., 4:] & 15) << 4), dim=-1)


def split_sixteen_scales(packed: torch.Tensor) -> torch.Tensor:
    """Unpack the 12 scale bytes of Q3_K [.., 12] to 16 scales of 6 bits, [.., 16]."""
    low = split_planes(packed[..., :8], 4).flatten(-2)
    high = split_planes(packed[..., 8:], 2).flatten(-2)
    return low | high << 4


def join_sixteen_scales(scales: torch.Tensor) -> torch.Tensor:
    """Pack 16 scales of 6 bits [.., 16] to 12 bytes: the inverse of ``split_sixteen_scales``."""
    low = join_planes(runs((scales & 15), 2, 8), 4)
    return torch.cat((low, join_planes(runs((scales >> 4), 4, 4), 2)), dim=-1)


def split_ternary(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Unpack bytes [.., w] to ``count`` planes of ternary digits 0 to 2, [.., count, w], the highest digit first.

    A byte is its five digits as a fraction of 243, rounded up to a fraction of 256: multiplying by 3 modulo 256
    moves the next digit to the front, and a digit is what spills over when the fraction is multiplied by 3.
    """
    powers = torch.tensor([3**i for i in range(count)], dtype=torch.uint8, device=packed.device)
    moved = packed.unsqueeze(-2) * powers.unsqueeze(-1)
    return ((moved.to(torch.int16) * 3) >> 8).to(torch.uint8)


def join_ternary(digits: torch.Tensor) -> torch.Tensor:
    """Pack ternary digits [.., count, w] (at most five planes) to bytes: the inverse of ``split_ternary``."""
    count = digits.shape[-2]
    powers = torch.tensor([3 ** (4 - i) for i in range(count)], dtype=torch.int32, device=digits.device)
    number = (digits.to(torch.int32) * powers.unsqueeze(-1)).sum(-2)
    return ((number * 256 + 242) // 243).to(torch.uint8)
