"""What a parity test looks at: one weight, its float64 form and the layer of the record, built once a case."""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass
from typing import Any

import torch

from quantfarm.runtime.linear import QuantLinear
from support import layers, measure
from support.cases import Case
from support.job import Job
from support.weights import Weight, random_weight


@dataclass(frozen=True, eq=False)
class Subject:
    """A case made real."""

    weight: Weight
    w64: measure.Doubles
    layer: QuantLinear


@functools.lru_cache(maxsize=1)
def subject(job: Job, case: Case) -> Subject:
    """Return weight, float64 form and layer of a case; the same case gives the same numbers in every run."""
    weight = random_weight(case.recipe, seed_of(case), bias_of(case))
    return Subject(weight, weight.dense(), layers.build(weight, job.record))


def seed_of(case: Case) -> int:
    """Return a seed that depends on the case alone."""
    return zlib.crc32(str(case).encode())


def bias_of(case: Case) -> torch.Tensor | None:
    """Return the case's bias [N]."""
    if case.bias == "none":
        return None
    generator = torch.Generator().manual_seed(seed_of(case) + 1)
    dtype = getattr(torch, case.dtype if case.bias == "same" else case.bias)
    return torch.randn(case.n, generator=generator).to(dtype)


def normal_rows(case: Case, rows: int, *, heavy: bool = False) -> torch.Tensor:
    """Return x [rows, K]: normal, or with heavy tails (Student's t with 3 degrees, 0.1 % of the values times 50)."""
    generator = torch.Generator().manual_seed(seed_of(case) + 7919 * rows + heavy)
    x = torch.randn(rows, case.k, generator=generator)
    if heavy:
        chi = torch.randn(3, rows, case.k, generator=generator).square().sum(0)
        x = x / (chi / 3.0).sqrt()
        x = torch.where(torch.rand(x.shape, generator=generator) < 1e-3, x * 50.0, x)
    return x.to(getattr(torch, case.dtype))


def expected(subject: Subject, x: torch.Tensor, bias: torch.Tensor | None = None) -> measure.Doubles:
    """Return the float64 answer for x, quantized first where the method quantizes it."""
    return measure.expected(subject.weight.inputs(x), subject.w64, bias)


def one_hot_inputs(case: Case, weight: Weight, most: int = 256) -> torch.Tensor:
    """Return which inputs get a one-hot row: all of them, or a spread that touches each group twice."""
    if case.k <= most * 4:
        return torch.arange(case.k)
    groups = torch.from_numpy(weight.groups)
    order = torch.argsort(groups, stable=True)
    step = max(case.k // most, 1)
    return order[::step]


def run(subject: Subject, x: torch.Tensor) -> torch.Tensor:
    """Compute without gradients."""
    with torch.no_grad():
        out: Any = subject.layer(x)
    assert isinstance(out, torch.Tensor)
    return out
