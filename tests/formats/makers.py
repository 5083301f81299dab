"""Real checkpoints and made-up stored tensors that the tests of readers and of the reference share."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from safetensors.torch import load_file

from quantfarm.formats.config import QuantConfig, find_settings, parse
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.formats.table import find

DATA = Path(__file__).resolve().parent.parent / "data"
CHECKPOINTS = (
    "gptq-4bit-g64-sym",
    "gptq-4bit-g32-asym",
    "gptq-4bit-g64-actorder",
    "gptqv2-4bit-g64-asym",
    "gptq-8bit-chan-sym",
    "gptq-2bit-g32-asym",
    "gptqp-5bit-g32-sym",
    "awq-4bit-g64-gemm",
)
K_PROJ = "model.layers.0.self_attn.k_proj"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One folder below tests/data: its settings, its packed modules by name, and the expected results."""

    config: QuantConfig
    modules: dict[str, dict[str, torch.Tensor]]
    expected: dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Stored tensors of one module, with the settings and the shape they were made for."""

    tensors: dict[str, torch.Tensor]
    config: QuantConfig
    k: int
    n: int

    def read(self) -> QuantTensor:
        """Run the reader that the table names."""
        row = find(self.config.method, self.config.format)
        tensor: QuantTensor = row.read()(self.tensors, self.config, module="m", k=self.k, n=self.n)
        return tensor


@functools.cache
def checkpoint(name: str) -> Checkpoint:
    """Load one folder; cached, so that the tests together read each file once."""
    settings, source = find_settings(DATA / name)
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in load_file(DATA / name / "model.safetensors").items():
        module, _, suffix = key.rpartition(".")
        modules.setdefault(module, {})[suffix] = tensor
    return Checkpoint(
        config=parse(settings, source=source),
        modules={module: tensors for module, tensors in modules.items() if "qweight" in tensors},
        expected=load_file(DATA / name / "expected.safetensors"),
    )


def settings(**changes: Any) -> QuantConfig:
    """Return parsed GPTQ settings, 4 bits and groups of 32 unless changed."""
    base: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
    return parse(base | changes, source="settings")


def random_words(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Return int32 words with every bit random, about half of them negative."""
    return torch.randint(-(1 << 31), 1 << 31, shape, generator=generator, dtype=torch.int64).to(torch.int32)


def random_scales(generator: torch.Generator, groups: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """Return positive scales over several powers of two."""
    exponents = torch.randint(-12, 2, (groups, n), generator=generator)
    return ((torch.rand(groups, n, generator=generator) + 0.5) * 2.0**exponents).to(dtype)


@st.composite
def gptq_cases(draw: st.DrawFn, bits: int) -> Case:
    """Make stored GPTQ or GPTQ_V2 tensors: odd tails, short last groups, any words, any index, corner zero points."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    k, n = draw(st.integers(1, 100)), draw(st.integers(1, 70))
    size = draw(st.sampled_from([-1, 1, 7, 16, 32, 128]))
    groups = 1 if size == -1 else -(-k // size)
    tensors = {
        "qweight": random_words(generator, -(-k * bits // 32), n),
        "qzeros": random_words(generator, groups, -(-n * bits // 32)),
        "scales": random_scales(generator, groups, n, draw(st.sampled_from(_FLOATS))),
    }
    corner = draw(st.sampled_from(["random", "all ones", "zero"]))
    if corner != "random":
        tensors["qzeros"] = torch.full_like(tensors["qzeros"], -1 if corner == "all ones" else 0)
    kind = draw(st.sampled_from(["absent", "plain", "random", "negative"]))
    index = torch.randint(0, groups, (k,), generator=generator)
    if groups > 1 and bool((index == index[0]).all()):
        # The reader refuses an index that names one group everywhere.
        index[0] = (index[0] + 1) % groups
    if kind == "plain":
        tensors["g_idx"] = (torch.arange(k) // (k if size == -1 else size)).to(torch.int32)
    elif kind != "absent":
        tensors["g_idx"] = (index - (groups if kind == "negative" else 0)).to(torch.int32)
    config = settings(
        bits=bits,
        group_size=size,
        desc_act=kind in ("random", "negative"),
        checkpoint_format=draw(st.sampled_from(["gptq", "gptq_v2"])),
        zeros_rule=draw(st.sampled_from(["per_field", "word_wise"])),
    )
    return Case(tensors=tensors, config=config, k=k, n=n)


@st.composite
def planar_cases(draw: st.DrawFn) -> Case:
    """Make stored GPTQ_P tensors of any width: any words, short last groups, with and without act-order."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    bits, k, n = draw(st.integers(2, 8)), 32 * draw(st.integers(1, 4)), 32 * draw(st.integers(1, 2))
    size = draw(st.sampled_from([-1, 16, 32, 48, 128]))
    groups = 1 if size == -1 else -(-k // size)
    tensors = {
        "qweight": random_words(generator, k * bits // 32, n),
        "qzeros": random_words(generator, groups, n * bits // 32),
        "scales": random_scales(generator, groups, n, draw(st.sampled_from(_FLOATS))),
    }
    ordered = size != -1 and draw(st.booleans())
    if ordered:
        tensors["g_idx"] = (torch.arange(k) // size)[torch.randperm(k, generator=generator)].to(torch.int32)
    config = settings(bits=bits, group_size=size, desc_act=ordered, checkpoint_format="gptq_p")
    return Case(tensors=tensors, config=config, k=k, n=n)


@st.composite
def awq_cases(draw: st.DrawFn) -> Case:
    """Make stored AWQ GEMM tensors, also with numbers of inputs that 8 does not divide."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    size, groups, words = draw(st.sampled_from([4, 12, 32])), draw(st.integers(1, 4)), draw(st.integers(1, 9))
    k, n = size * groups, words * 8
    tensors = {
        "qweight": random_words(generator, k, words),
        "qzeros": random_words(generator, groups, words),
        "scales": random_scales(generator, groups, n, draw(st.sampled_from(_FLOATS))),
    }
    config = settings(quant_method="awq", group_size=size, version="gemm", sym=None, zero_point=True)
    return Case(tensors=tensors, config=config, k=k, n=n)


_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
