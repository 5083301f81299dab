"""Decoders of ggml's plain block types, in ggml's order of fp32 operations (formats, section 10).

Each takes blocks, uint8 [B, size], and returns fp32 [B, block].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from quantfarm.formats.packing_ggml import runs, split_planes, split_sequence, split_ternary

Decoder = Callable[[torch.Tensor], torch.Tensor]


def half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """Return the fp16 field that starts at byte ``at`` of every block, as fp32 [B, 1]."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).to(torch.float32)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    codes = split_planes(blocks[:, 2:], 4).flatten(1)
    return codes.to(torch.float32).sub_(8).mul_(half(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    codes = split_planes(blocks[:, 4:], 4).flatten(1)
    return codes.to(torch.float32).mul_(half(blocks, 0)).add_(half(blocks, 2))


def _five_bits(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Return codes of 5 bits [B, 32]: bit 4 of code i is bit i of the four bytes ``high``."""
    return split_planes(low, 4).flatten(1) | split_sequence(high, 1) << 4


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    codes = _five_bits(blocks[:, 2:6], blocks[:, 6:])
    return codes.to(torch.float32).sub_(16).mul_(half(blocks, 0))


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    codes = _five_bits(blocks[:, 4:8], blocks[:, 8:])
    return codes.to(torch.float32).mul_(half(blocks, 0)).add_(half(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).to(torch.float32).mul_(half(blocks, 0))


def _q1_0(blocks: torch.Tensor) -> torch.Tensor:
    signs = split_sequence(blocks[:, 2:], 1).to(torch.float32).mul_(2).sub_(1)
    return signs.mul_(half(blocks, 0))


def _q2_0(blocks: torch.Tensor) -> torch.Tensor:
    return split_sequence(blocks[:, 2:], 2).to(torch.float32).sub_(1).mul_(half(blocks, 0))


def _tq1_0(blocks: torch.Tensor) -> torch.Tensor:
    parts = ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    digits = [split_ternary(blocks[:, start:stop], count).flatten(1) for start, stop, count in parts]
    return torch.cat(digits, dim=1).to(torch.float32).sub_(1).mul_(half(blocks, 52))


def _tq2_0(blocks: torch.Tensor) -> torch.Tensor:
    codes = split_planes(runs(blocks[:, :64], 2, 32), 2).flatten(1)
    return codes.to(torch.float32).sub_(1).mul_(half(blocks, 64))


def _plain(dtype: torch.dtype) -> Decoder:
    return lambda blocks: blocks.contiguous().view(dtype).to(torch.float32)


DECODERS: Mapping[str, Decoder] = {
    "f32": _plain(torch.float32),
    "f16": _plain(torch.float16),
    "bf16": _plain(torch.bfloat16),
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q1_0": _q1_0,
    "q2_0": _q2_0,
    "tq1_0": _tq1_0,
    "tq2_0": _tq2_0,
}
"""Name to decoder. Blocks of Q1_0 and Q2_0 may have either size: the values follow from the bytes."""
