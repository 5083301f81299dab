"""Float weights -> ggml blocks, by rounding to the nearest (formats, section 10).

The plain types follow ggml's own rule to the byte. The K types take the range of each run of values and round; they
are readable by every reader, but llama.cpp searches for better scales and so writes other bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from quantfarm.declare import ggml
from quantfarm.declare.ggml_books import FOUR_BIT_VALUES, HALF_FLOAT_VALUES
from quantfarm.errors import InexactConversion, UnknownFormat
from quantfarm.formats.packing_ggml import (
    join_planes,
    join_scales_and_minima,
    join_sequence,
    join_sixteen_scales,
    join_ternary,
    runs,
)

_PANEL = 1 << 21

Packer = Callable[[torch.Tensor], torch.Tensor]
"""Takes finite fp32 blocks [B, block], returns uint8 [B, size]."""


def quantize(weight: torch.Tensor, code_type: str) -> torch.Tensor:
    """Round a weight to blocks.

    Args:
        weight: [N, K], any float dtype; computed in fp32, K padded with zeros to whole blocks.
        code_type: the type; of two that share a name, upstream's, unless it is named with its block (``q2_0_g128``).

    Returns:
        uint8 [N, blocks * size], what ``qweight`` holds.

    Raises:
        UnknownFormat: the type is not known, or has no packer; lists those that have.
        InexactConversion: values that are not finite, or that need a scale beyond fp16.
    """
    types = ggml.named(code_type)
    if not types or types[0].name not in PACKERS:
        why = "no packer for it" if types else "no such type"
        raise UnknownFormat(
            f"cannot quantize to {code_type}: {why}",
            lines=(f"this version packs: {', '.join(PACKERS)}",),
            remedy="choose one of these types",
        )
    entry = types[0]
    n, k = weight.shape
    wide = weight.to(torch.float32)
    if bad := int((~torch.isfinite(wide)).sum()):
        raise InexactConversion(f"cannot quantize: needs finite weights, got {bad} values that are not finite")
    blocks = torch.nn.functional.pad(wide, (0, -k % entry.block)).reshape(-1, entry.block)
    step = max(_PANEL // entry.block, 1)
    packed = torch.cat([PACKERS[entry.name](blocks[i : i + step]) for i in range(0, max(len(blocks), 1), step)])
    return packed.reshape(n, entry.bytes_of(k))


def _half(scales: torch.Tensor) -> torch.Tensor:
    """Return fp32 scales [B, 1] as the two bytes of their fp16 form, uint8 [B, 2]."""
    narrow = scales.to(torch.float16)
    if unfit := int((~torch.isfinite(narrow)).sum()):
        raise InexactConversion(f"cannot store the scales: needs the range of float16, got {unfit} scales outside it")
    return narrow.contiguous().view(torch.uint8)


def _inverse(scales: torch.Tensor) -> torch.Tensor:
    """Return 1/scale, and 0 for a scale of 0 or one so small that its inverse is infinite."""
    inverse = 1.0 / scales
    return torch.where(torch.isfinite(inverse), inverse, 0.0)


def _codes(values: torch.Tensor, top: int) -> torch.Tensor:
    return values.clamp_(0, top).to(torch.uint8)


def _away(values: torch.Tensor) -> torch.Tensor:
    """Round half away from zero, as C does."""
    size = values.abs()
    floor = size.floor()
    return values.sign() * (floor + (2 * (size - floor)).floor())


def _largest(blocks: torch.Tensor) -> torch.Tensor:
    """Return the value of the largest magnitude of every run, with its sign, [.., 1]."""
    return blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))


def _around_zero(blocks: torch.Tensor, half_range: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ggml's d and codes 0 .. 2*half_range - 1: the largest value becomes -half_range, whatever its sign."""
    d = _largest(blocks) / -half_range
    return d, _codes((blocks * _inverse(d) + (half_range + 0.5)).trunc_(), 2 * half_range - 1)


def _from_minimum(blocks: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low = blocks.amin(-1, keepdim=True)
    d = (blocks.amax(-1, keepdim=True) - low) / top
    return d, low, _codes(((blocks - low) * _inverse(d) + 0.5).trunc_(), top)


def _halves_of_32(codes: torch.Tensor) -> torch.Tensor:
    """Pack the low nibbles of codes [B, 32] into 16 bytes: values 0..15 low, 16..31 high."""
    return join_planes(runs((codes & 15), 2, 16), 4)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    d, codes = _around_zero(blocks, 8)
    return torch.cat((_half(d), _halves_of_32(codes)), 1)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    d, low, codes = _from_minimum(blocks, 15)
    return torch.cat((_half(d), _half(low), _halves_of_32(codes)), 1)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    d, codes = _around_zero(blocks, 16)
    return torch.cat((_half(d), join_sequence(codes >> 4, 1), _halves_of_32(codes)), 1)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    d, low, codes = _from_minimum(blocks, 31)
    return torch.cat((_half(d), _half(low), join_sequence(codes >> 4, 1), _halves_of_32(codes)), 1)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    d = blocks.abs().amax(1, keepdim=True) / 127
    codes = _away(blocks * _inverse(d)).clamp_(-128, 127).to(torch.int8)
    return torch.cat((_half(d), codes.view(torch.uint8)), 1)


def _q1_0(blocks: torch.Tensor) -> torch.Tensor:
    signs = (blocks >= 0).to(torch.uint8)
    return torch.cat((_half(blocks.abs().mean(1, keepdim=True)), join_sequence(signs, 1)), 1)


def _q2_0(blocks: torch.Tensor) -> torch.Tensor:
    """Values are -d, 0, d, 2d: take the largest value as 2d or as d, whichever leaves the smaller squared error."""
    best, least = None, None
    for d in (_largest(blocks) / 2, _largest(blocks)):
        codes = torch.round(blocks * _inverse(d)).clamp_(-1, 2)
        error = (codes * d - blocks).square().sum(1, keepdim=True)
        if best is None or least is None:
            best, least = (d, codes), error
        else:
            better = error < least
            best = torch.where(better, d, best[0]), torch.where(better, codes, best[1])
    assert best is not None
    return torch.cat((_half(best[0]), join_sequence((best[1] + 1).to(torch.uint8), 2)), 1)


def _ternary(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    d = blocks.abs().amax(1, keepdim=True)
    return d, (_away(blocks * _inverse(d)) + 1).to(torch.uint8)


def _tq1_0(blocks: torch.Tensor) -> torch.Tensor:
    d, digits = _ternary(blocks)
    parts = [runs(digits[:, a:b], count, -1) for a, b, count in ((0, 160, 5), (160, 240, 5), (240, 256, 4))]
    return torch.cat((*map(join_ternary, parts), _half(d)), 1)


def _tq2_0(blocks: torch.Tensor) -> torch.Tensor:
    d, digits = _ternary(blocks)
    return torch.cat((join_planes(runs(digits, 2, 4, 32), 2).flatten(1), _half(d)), 1)


def _nearest(values: torch.Tensor, table: tuple[int, ...]) -> torch.Tensor:
    """Return the first code whose table value is nearest, uint8 of the shape of ``values``."""
    entries = torch.tensor(table, dtype=torch.float32, device=values.device)
    return (values.unsqueeze(-1) - entries).abs_().argmin(-1).to(torch.uint8)


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    d = _largest(blocks) / FOUR_BIT_VALUES[0]
    return torch.cat((_half(d), _halves_of_32(_nearest(blocks * _inverse(d), FOUR_BIT_VALUES))), 1)


def _mxfp4(blocks: torch.Tensor) -> torch.Tensor:
    largest = blocks.abs().amax(1, keepdim=True)
    # The exponent of a float is floor(log2) exactly; frexp counts from a mantissa below one.
    exponent = torch.where(largest > 0, torch.frexp(largest).exponent - 1 - 2 + 127, 0).clamp_(0, 254)
    scale = torch.ldexp(torch.ones_like(largest), exponent - 128)
    codes = _nearest(torch.where(scale > 0, blocks / scale, 0.0), HALF_FLOAT_VALUES)
    return torch.cat((exponent.to(torch.uint8), _halves_of_32(codes)), 1)


def _super(scales: torch.Tensor, top: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round scales [B, G] to multiples of one fp16 number: its bytes, the multiples, and what they decode to."""
    stored = _half(scales.abs().amax(1, keepdim=True) / top)
    d = stored.view(torch.float16).to(torch.float32)
    multiples = torch.round(scales * _inverse(d)).clamp_(-top, top)
    return stored, multiples, multiples * d


def _k_from_minimum(blocks: torch.Tensor, group: int, top: int, most: int) -> tuple[torch.Tensor, ...]:
    """Return the bytes of d and dmin, the scales and minima 0 .. most, and codes 0 .. top as [B, 256]."""
    parts = runs(blocks, -1, group)
    low = parts.amin(2).clamp_(max=0)
    d, scales, real = _super((parts.amax(2).clamp_(min=0) - low) / top, most)
    dmin, minima, offset = _super(-low, most)
    codes = torch.round((parts + offset.unsqueeze(2)) * _inverse(real).unsqueeze(2))
    return d, dmin, scales.to(torch.uint8), minima.to(torch.uint8), _codes(codes, top).flatten(1)


def _k_around_zero(blocks: torch.Tensor, half_range: int, most: int) -> tuple[torch.Tensor, ...]:
    """Return the bytes of d, the scales -most .. most of runs of 16, and codes 0 .. 2*half_range - 1 as [B, 256]."""
    parts = runs(blocks, -1, 16)
    d, scales, real = _super(_largest(parts).squeeze(2) / -half_range, most)
    codes = torch.round(parts * _inverse(real).unsqueeze(2)) + half_range
    return d, scales, _codes(codes, 2 * half_range - 1).flatten(1)


def _q2_k(blocks: torch.Tensor) -> torch.Tensor:
    d, dmin, scales, minima, codes = _k_from_minimum(blocks, 16, 3, 15)
    return torch.cat((scales | minima << 4, join_planes(runs(codes, 2, 4, 32), 2).flatten(1), d, dmin), 1)


def _q3_k(blocks: torch.Tensor) -> torch.Tensor:
    d, scales, codes = _k_around_zero(blocks, 4, 31)
    high = join_planes(runs((codes >> 2), 8, 32), 1)
    low = join_planes(runs((codes & 3), 2, 4, 32), 2).flatten(1)
    return torch.cat((high, low, join_sixteen_scales((scales + 32).to(torch.uint8)), d), 1)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    d, dmin, scales, minima, codes = _k_from_minimum(blocks, 32, 15, 63)
    low = join_planes(runs(codes, 4, 2, 32), 4).flatten(1)
    return torch.cat((d, dmin, join_scales_and_minima(scales, minima), low), 1)


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    d, dmin, scales, minima, codes = _k_from_minimum(blocks, 32, 31, 63)
    high = join_planes(runs((codes >> 4), 8, 32), 1)
    low = join_planes(runs((codes & 15), 4, 2, 32), 4).flatten(1)
    return torch.cat((d, dmin, join_scales_and_minima(scales, minima), high, low), 1)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    d, scales, codes = _k_around_zero(blocks, 32, 127)
    low = join_planes(runs((codes & 15), 2, 2, 64), 4).flatten(1)
    high = join_planes(runs((codes >> 4), 2, 4, 32), 2).flatten(1)
    return torch.cat((low, high, scales.to(torch.int8).view(torch.uint8), d), 1)


def _f16(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks)


def _plain(dtype: torch.dtype) -> Packer:
    return lambda blocks: blocks.to(dtype).contiguous().view(torch.uint8)


PACKERS: Mapping[str, Packer] = {
    "f32": _plain(torch.float32),
    "f16": _f16,
    "bf16": _plain(torch.bfloat16),
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "q1_0": _q1_0,
    "q2_0": _q2_0,
    "tq1_0": _tq1_0,
    "tq2_0": _tq2_0,
    "iq4_nl": _iq4_nl,
    "mxfp4": _mxfp4,
}
"""Name to packer; the other types need a search over their code books."""
