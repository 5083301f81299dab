"""Random stored tensors of every family, with what their settings say; made from formats alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Made:
    """Stored tensors, and the facts by which the reference decodes them."""

    tensors: Tensors
    says: Mapping[str, Any] = field(default_factory=dict)


def words(rng: np.random.Generator, *shape: int, dtype: type = np.int32) -> torch.Tensor:
    """Return words with every bit random, about half of them negative; the first one has eight different nibbles."""
    info = np.iinfo(dtype)
    made = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    made.reshape(-1)[0] = {4: -0x01234568, 2: -0x4568}.get(made.itemsize, made.reshape(-1)[0])
    return torch.from_numpy(made)


def halves(rng: np.random.Generator, *shape: int, low: float = 0.5, high: float = 1.5) -> torch.Tensor:
    """Return fp16 values of a range."""
    return torch.from_numpy(rng.uniform(low, high, shape).astype(np.float16))


def fp16_bytes(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return the bytes of fp16 numbers near 1/64, so that the values of no type leave fp16, [count, 2]."""
    return rng.uniform(1 / 128, 1 / 32, count).astype(np.float16).view(np.uint8).reshape(count, 2)


def _groups(k: int, size: int) -> int:
    return 1 if size == -1 else -(-k // size)


def gptq(rng: np.random.Generator, k: int, n: int, *, bits: int = 4, size: int = 32, layout: str = "gptq") -> Made:
    """GPTQ, GPTQ_V2, GPTQ_P and the MARLIN label under gptq."""
    groups = _groups(k, size)
    tensors = {
        "qweight": words(rng, -(-k * bits // 32), n),
        "qzeros": words(rng, groups, -(-n * bits // 32)),
        "scales": halves(rng, groups, n),
        "g_idx": torch.arange(k, dtype=torch.int32) // (k if size == -1 else size),
    }
    return Made(tensors=tensors, says={"method": "gptq", "format": layout, "bits": bits, "group_size": size})


def awq(rng: np.random.Generator, k: int, n: int, *, size: int = 32, layout: str = "gemm", bits: int = 4) -> Made:
    """AWQ GEMM and the MARLIN label under awq."""
    groups = _groups(k, size)
    tensors = {
        "qweight": words(rng, k, n * bits // 32),
        "qzeros": words(rng, groups, n * bits // 32),
        "scales": halves(rng, groups, n),
    }
    return Made(tensors=tensors, says={"method": "awq", "format": layout, "bits": bits, "group_size": size})


def _padded_groups(k: int, size: int) -> int:
    whole_words, multiple = math.ceil(k // size / 8), {64: 2, 32: 4}.get(size, 1)
    return math.ceil(whole_words / multiple) * multiple


def gemv(rng: np.random.Generator, k: int, n: int, *, size: int = 32) -> Made:
    """AWQ GEMV, padded groups 0."""
    groups, width = k // size, _padded_groups(k, size)
    zeros = np.zeros((n, width * 8), dtype=np.int64)
    zeros[:, :groups] = rng.integers(0, 15, (n, groups))
    packed = (zeros.reshape(n, width, 8) << (4 * np.arange(8))).sum(axis=2)
    scales = torch.zeros(n, width * 8, dtype=torch.float16)
    scales[:, :groups] = halves(rng, n, groups)
    tensors = {
        "qweight": words(rng, n, k // 8),
        "qzeros": torch.from_numpy(packed.astype(np.uint32).view(np.int32)),
        "scales": scales,
    }
    return Made(tensors=tensors, says={"method": "awq", "format": "gemv", "bits": 4, "group_size": size})


def gemv_fast(rng: np.random.Generator, k: int, n: int, *, size: int = 32, layout: str = "gemv_fast") -> Made:
    """AWQ GEMV_FAST and LLM_AWQ, padded groups 0."""
    groups, rows = k // size, _padded_groups(k, size) * 8
    scales, offsets = torch.zeros(2, rows, n, dtype=torch.float16)
    scales[:groups] = halves(rng, groups, n)
    zeros = torch.from_numpy(rng.integers(0, 16, (groups, n)))
    offsets[:groups] = -(scales[:groups].to(torch.float32) * zeros).to(torch.float16)
    tensors = {
        "qweight": words(rng, n // 4, k, dtype=np.int16),
        "scales": scales,
        "scaled_zeros" if layout == "llm-awq" else "qzeros": offsets,
    }
    return Made(tensors=tensors, says={"method": "awq", "format": layout, "bits": 4, "group_size": size})


def qqq(rng: np.random.Generator, k: int, n: int, *, size: int = 128) -> Made:
    """QQQ, with groups of 128 or one scale a channel (-1)."""
    groups = halves(rng, k // 128, n, low=4.0, high=18.0) if size == 128 else torch.zeros(0, dtype=torch.float16)
    channels = torch.from_numpy(rng.uniform(0.5, 1.5, (1, n)).astype(np.float32)) / 128
    tensors = {"B": words(rng, k // 16, 2 * n), "s_channel": channels, "s_group": groups}
    return Made(tensors=tensors, says={"method": "qqq", "format": "qqq", "bits": 4, "group_size": size, "sym": True})


def bitsandbytes(
    rng: np.random.Generator, k: int, n: int, *, kind: str = "nf4", block: int = 64, nested: bool = False
) -> Made:
    """NF4 and FP4 with the upstream names, plain or nested absmax; int8 by rows."""
    says = {"method": "bitsandbytes", "format": "bitsandbytes", "group_size": -1, "code_type": kind, "k": k, "n": n}
    if kind == "int8":
        scales = torch.from_numpy(rng.uniform(0.5, 1.5, n).astype(np.float32))
        codes = torch.from_numpy(rng.integers(-127, 128, (n, k)).astype(np.int8))
        return Made(tensors={"weight": codes, "SCB": scales}, says=says | {"bits": 8})
    size = -(-n * k // block)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "float16", "shape": [n, k]}
    packed = torch.from_numpy(rng.integers(0, 256, (-(-n * k // 2), 1)).astype(np.uint8))
    packed[0, 0] = 0x2D
    tensors = {"weight": packed, "weight.quant_map": torch.tensor(TABLES[kind])}
    if nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.75}
        tensors |= {
            "weight.absmax": torch.from_numpy(rng.integers(0, 256, size).astype(np.uint8)),
            "weight.nested_absmax": torch.from_numpy(rng.uniform(0.2, 0.4, -(-size // 256)).astype(np.float32)),
            "weight.nested_quant_map": torch.linspace(-1, 1, 256),
        }
    else:
        tensors["weight.absmax"] = torch.from_numpy(rng.uniform(0.5, 1.5, size).astype(np.float32))
    text = np.frombuffer(json.dumps(state).encode(), dtype=np.uint8).copy()
    tensors[f"weight.quant_state.bitsandbytes__{kind}"] = torch.from_numpy(text)
    return Made(tensors=tensors, says=says | {"bits": 4})


TABLES: Mapping[str, tuple[float, ...]] = {
    "nf4": (
        *(-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.091050036, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
    ),
    "fp4": tuple(
        sign * twelfths / 12 for sign in (1.0, -1.0) for twelfths in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
    ),
}
"""The 16 values of the codes."""
