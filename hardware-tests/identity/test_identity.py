"""The backend that was named is the one that ran, on the code path that the lane stands for."""

from __future__ import annotations

from typing import Any

import torch
from support import layers
from support.cases import Case, all_cases
from support.job import Job
from support.weights import random_weight

from quantfarm.declare.registry import implemented_records
from quantfarm.select.choose import select
from quantfarm.select.request import Request

LAUNCHES = 3


def _case(job: Job) -> Case:
    """Return the smallest case that the record declares."""
    return next(case for case in all_cases(job.record, [(64, 256)]) if case.bias == "none")


def _weight(job: Job) -> Any:
    return random_weight(_case(job).recipe, seed=11)


def _counts() -> dict[str, int]:
    kernels = {spec.kernel: spec for spec in implemented_records()}
    return {kernel: layers.backend_of(spec).calls() for kernel, spec in kernels.items()}


def test_a_named_backend_is_the_one_chosen(job: Job) -> None:
    """Asking for the backend by name gives exactly its record."""
    tensor = layers.read(_weight(job))
    request = Request(
        method=tensor.method,
        format=tensor.format,
        scheme=tensor.scheme,
        code_type=tensor.code_type,
        pack_dtype=(job.record["pack_dtypes"] or ["int32"])[-1],
        in_features=tensor.k,
        out_features=tensor.n,
        activation_dtype=job.record["activations"][0],
        backend=job.backend,
    )
    chosen = select(request).chosen
    assert chosen is not None
    assert chosen.name == job.record["name"]


def test_only_the_named_kernel_computes(job: Job, figures: dict[str, Any]) -> None:
    """Each forward launches the record's kernel once and no other kernel at all."""
    weight = _weight(job)
    layer = layers.build(weight, job.record)
    before = _counts()
    for dtype in job.record["activations"]:
        for _ in range(LAUNCHES):
            with torch.no_grad():
                layer(torch.ones(2, weight.k, dtype=getattr(torch, dtype)))
    after = _counts()
    grown = {kernel: after[kernel] - before[kernel] for kernel in after if after[kernel] != before[kernel]}
    figures["launches"] = grown
    assert grown == {job.record["kernel"]: LAUNCHES * len(job.record["activations"])}


def test_the_lane_s_code_path_ran(job: Job, figures: dict[str, Any]) -> None:
    """A native library counts its launches per instruction set: one call is one launch, on an arch of this lane."""
    before = layers.launches_by_level(job.record)
    weight = _weight(job)
    layer = layers.build(weight, job.record)
    with torch.no_grad():
        layer(torch.ones(2, weight.k, dtype=getattr(torch, job.record["activations"][0])))
    after = layers.launches_by_level(job.record)
    grown = {level: count - before[level] for level, count in after.items() if count != before[level]}
    figures["isa_launches"] = grown
    assert sum(grown.values()) == (1 if after else 0)
    if grown and job.lane_row["archs"]:
        ran, needs = next(iter(grown)), job.lane_row["archs"]
        assert ran in needs, f"another code path ran: needs {' or '.join(needs)}, got {ran}"
