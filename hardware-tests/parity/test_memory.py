"""No dense weight exists during a call: what a call needs beside its result stays below a fixed limit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import layers, memory
from support.cases import Case, all_cases, read_shape
from support.job import Job
from support.weights import random_weight

LIMIT = 64 * 2**20
"""Bytes; a dense fp32 copy of the smallest shape below is twice as large, so that the test can fail."""


def cases(job: Job, test: str) -> list[Case]:
    """One case a format, or one in all, on the tier's shape for it if it has one, with the usual group size."""
    if not job.tier.get("memory_shape"):
        return []
    shape = read_shape(job.tier["memory_shape"])
    found: dict[str, Case] = {}
    for case in sorted(all_cases(job.record, [shape]), key=lambda c: (abs(c.group_size - 128), c.bits != 4)):
        if (case.n, case.k) == shape and case.bias == "none" and not case.act_order:
            found.setdefault(case.format, case)
    return list(found.values())[: None if job.tier["thorough"] else 1]


def test_a_call_makes_no_dense_weight(job: Job, case: Case, figures: dict[str, Any]) -> None:
    """For one row and for seventeen, the process grows by less than 64 MiB beyond the result."""
    if not memory.can_measure():
        pytest.skip("the high-water mark of memory can not be set back here")
    layer = layers.build(random_weight(case.recipe, seed=23), job.record)
    dtype = getattr(torch, case.dtype)
    with torch.no_grad():
        layer(torch.ones(1, case.k, dtype=dtype))
        for rows in (1, 17):
            x = torch.ones(rows, case.k, dtype=dtype)
            extra = memory.extra_bytes(lambda x=x: layer(x))
            figures[f"extra_mib_{rows}_rows"] = round(extra / 2**20, 1)
            assert extra < LIMIT, f"needs less than {LIMIT >> 20} MiB, got {extra >> 20} MiB for {rows} rows"
