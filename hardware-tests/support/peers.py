"""Peers that are timed beside the subject: operators of torch, called directly. Absent ones are left out by name."""

from __future__ import annotations

import functools

import torch

from support.timing import Rotation, copies_for

GROUP = 128


@functools.lru_cache(maxsize=2)
def _dense(n: int, k: int, cold_bytes: int) -> tuple[torch.Tensor, ...]:
    first = torch.randn(n, k).to(torch.bfloat16)
    return (first, *(first.clone() for _ in range(copies_for(cold_bytes, n * k * 2) - 1)))


@functools.lru_cache(maxsize=2)
def _packed(n: int, k: int, cold_bytes: int) -> tuple[torch.Tensor, ...]:
    codes = torch.randint(0, 16, (n, k), dtype=torch.int32)
    first = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    return (first, *(first.clone() for _ in range(copies_for(cold_bytes, n * k // 2) - 1)))


def peers(n: int, k: int, x: torch.Tensor, cold_bytes: int) -> dict[str, Rotation]:
    """Return name to rotating calls: bf16 linear, and torch's int4 operator with groups of 128 where it exists."""
    wide = x.to(torch.bfloat16)
    linear = torch.nn.functional.linear
    found = {"torch bf16 linear": Rotation([lambda w=w: linear(wide, w) for w in _dense(n, k, cold_bytes)])}
    if hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu") and k % GROUP == 0:
        scales = torch.rand(k // GROUP, n, 2).to(torch.bfloat16)
        product = torch.ops.aten._weight_int4pack_mm_for_cpu
        calls = [lambda p=p: product(wide, p, GROUP, scales) for p in _packed(n, k, cold_bytes)]
        found["torch int4 operator"] = Rotation(calls)
    return found


def versions() -> dict[str, str]:
    """Return the versions of what the peers come from."""
    return {"torch": torch.__version__}
