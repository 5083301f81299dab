"""Decoders of ggml's K types: blocks of 256 with two levels of scales, in ggml's order of fp32 operations.

Each takes blocks, uint8 [B, size], and returns fp32 [B, 256] (formats, section 10).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quantfarm.formats.packing_ggml import runs, split_planes, split_scales_and_minima, split_sixteen_scales
from quantfarm.formats.weights.ggml_legacy import Decoder, half


def _scaled(codes: torch.Tensor, scales: torch.Tensor, minima: torch.Tensor | None = None) -> torch.Tensor:
    """Return scales * codes - minima: codes [B, ..] in fp32, the others fp32 [B, G] for G runs of equal length."""
    grouped = codes.view(scales.shape[0], scales.shape[1], -1).mul_(scales.unsqueeze(2))
    return (grouped if minima is None else grouped.sub_(minima.unsqueeze(2))).flatten(1)


def _q2_k(blocks: torch.Tensor) -> torch.Tensor:
    codes = split_planes(runs(blocks[:, 16:80], 2, 32), 2).to(torch.float32)
    scales, minima = blocks[:, :16] & 15, blocks[:, :16] >> 4
    return _scaled(codes, half(blocks, 80) * scales, half(blocks, 82) * minima)


def _q3_k(blocks: torch.Tensor) -> torch.Tensor:
    low = split_planes(runs(blocks[:, 32:96], 2, 32), 2).flatten(1)
    high = split_planes(blocks[:, :32], 1).flatten(1)
    codes = (low | high << 2).to(torch.float32).sub_(4)
    scales = split_sixteen_scales(blocks[:, 96:108]).to(torch.float32).sub_(32)
    return _scaled(codes, half(blocks, 108) * scales)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    codes = split_planes(runs(blocks[:, 16:], 4, 32), 4).to(torch.float32)
    scales, minima = split_scales_and_minima(blocks[:, 4:16])
    return _scaled(codes, half(blocks, 0) * scales, half(blocks, 2) * minima)


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    low = split_planes(runs(blocks[:, 48:], 4, 32), 4).flatten(1)
    high = split_planes(blocks[:, 16:48], 1).flatten(1)
    scales, minima = split_scales_and_minima(blocks[:, 4:16])
    codes = (low | high << 4).to(torch.float32)
    return _scaled(codes, half(blocks, 0) * scales, half(blocks, 2) * minima)


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    low = split_planes(runs(blocks[:, :128], 2, 64), 4).flatten(1)
    high = split_planes(runs(blocks[:, 128:192], 2, 32), 2).flatten(1)
    codes = (low | high << 4).to(torch.float32).sub_(32)
    return _scaled(codes, half(blocks, 208) * blocks[:, 192:208].view(torch.int8))


DECODERS: Mapping[str, Decoder] = {"q2_k": _q2_k, "q3_k": _q3_k, "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k}
"""Name to decoder."""
