"""Random ggml blocks for tests: rows of any type, with scales as they come or sane ones."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import quants

from quantfarm.declare.ggml import GgmlType, block_name
from quantfarm.formats.config import QuantConfig, parse
from quantfarm.formats.gguf import read
from quantfarm.formats.weights.ggml import GgmlWeight

OWN = ("q1_0", "q2_0")
"""Types that the package ``gguf`` has no decoder for."""


def config(bits: str | int, **changes: Any) -> QuantConfig:
    """Return parsed settings."""
    return parse({"quant_method": "gguf", "bits": bits} | changes, source="config.json")


def rows(entry: GgmlType, n: int, blocks: int, *, seed: int = 0, sane: bool = True) -> torch.Tensor:
    """Draw rows of blocks, uint8 [n, blocks * size]; with ``sane`` every scale field is a number around 0.01."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 256, (n, blocks, entry.size), dtype=np.uint8)
    if sane:
        for at in entry.halves:
            halves = (np.exp(rng.normal(0, 0.5, (n, blocks, 1))) * 0.01).astype("<f2")
            drawn[..., at : at + 2] = halves.view(np.uint8)
        if entry.name == "iq1_m":
            drawn[..., 49::2] = drawn[..., 49::2] & 15 | np.array([0, 0, 0, 0x20], dtype=np.uint8)
        elif entry.name == "mxfp4":
            drawn[..., 0] = 118 + drawn[..., 0] % 4
        elif entry.name == "nvfp4":
            drawn[..., :4] = drawn[..., :4] % 64
        elif entry.block == 1:
            plain = rng.normal(0, 0.05, (n, blocks, 1))
            dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[entry.name]
            drawn = torch.from_numpy(plain).to(dtype).view(torch.uint8).numpy()
    return torch.from_numpy(drawn.reshape(n, -1))


def weight(
    entry: GgmlType, qweight: torch.Tensor, k: int | None = None, bias: torch.Tensor | None = None
) -> GgmlWeight:
    """Read rows of one type."""
    k = qweight.shape[1] // entry.size * entry.block if k is None else k
    tensors = {"qweight": qweight} | ({} if bias is None else {"bias": bias})
    return read(tensors, config(block_name(entry)), module="model.fc", k=k)


def outside(entry: GgmlType, qweight: torch.Tensor) -> npt.NDArray[np.float32]:
    """Return what the package ``gguf`` decodes, fp32 [n, values]."""
    with np.errstate(all="ignore"):
        decoded: npt.NDArray[np.float32] = quants.dequantize(
            qweight.numpy(), gguf.GGMLQuantizationType[entry.name.upper()]
        )
    return decoded


def literal(entry: GgmlType, qweight: torch.Tensor) -> npt.NDArray[np.float32]:
    """Decode Q1_0 and Q2_0 value by value, by the sentences of formats, section 10."""
    n, per_row = qweight.shape[0], qweight.shape[1] // entry.size
    out = np.zeros((n, per_row * entry.block), dtype=np.float32)
    for row in range(n):
        for b in range(per_row):
            block = qweight[row, b * entry.size : (b + 1) * entry.size].numpy()
            d = block[:2].view("<f2")[0].astype(np.float32)
            for j in range(entry.block):
                if entry.name == "q1_0":
                    value = d if int(block[2 + j // 8]) >> (j % 8) & 1 else -d
                else:
                    code = np.float32((int(block[2 + j // 4]) >> (2 * (j % 4)) & 3) - 1)
                    with np.errstate(invalid="ignore"):
                        value = code * d
                out[row, b * entry.block + j] = value
    return out
