"""What a record does not declare is refused with exactly the declared code; what it declares is not refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.job import Job

from quantfarm.declare.names import DEVICE
from quantfarm.declare.scheme import Scheme, WeightKind
from quantfarm.errors import KernelRefused
from quantfarm.select.choose import select
from quantfarm.select.explain import explain
from quantfarm.select.request import Device, Request

ALL_BITS = (2, 3, 4, 5, 8)
ALL_GROUPS = (-1, 16, 32, 48, 64, 128, 256, 512, 1024)
ALL_WORDS = ("int8", "int16", "int32", "int64")
ALL_DTYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Refused:
    """A request that must be refused, and the code."""

    code: str
    request: Request

    def __str__(self) -> str:
        """Return code and request for the test's id."""
        return f"{self.code}-{self.request.what}".replace(" ", "_").replace(",", "")


def accepted(job: Job, **changes: Any) -> Request:
    """Return a request that the record serves, with changes."""
    row = job.record["accepts"][0]
    size = max(s for s in row["group_sizes"] or (-1,) if s <= 128)
    scheme = Scheme(
        weight_kind=WeightKind(row["weight_kind"]), bits=row["bits"][-1], group_size=size, sym=(row["sym"] or [True])[0]
    )
    words = job.record["pack_dtypes"]
    base = Request(
        method=job.record["method"],
        format=row["formats"][0],
        scheme=scheme,
        in_features=1024,
        out_features=1024,
        activation_dtype=job.record["activations"][0],
        pack_dtype="int32" if "int32" in words else words[0],
        backend=job.backend,
    )
    return replace(base, **changes)


def cases(job: Job, test: str) -> list[Refused]:
    """Derive from the record one request for everything it leaves out."""
    return list(_derived(job)) if job.record["accepts"] else []


def _derived(job: Job) -> Iterator[Refused]:
    yield from _schemes(job)
    for dtype in ALL_DTYPES:
        if dtype not in job.record["activations"]:
            yield Refused("activation_dtype", accepted(job, activation_dtype=dtype))
    for words in ALL_WORDS:
        if words not in job.record["pack_dtypes"]:
            yield Refused("pack_dtype", accepted(job, pack_dtype=words))
    if job.record["shape"]["n_multiple"] > 1:
        yield Refused("shape_n", accepted(job, out_features=1024 + job.record["shape"]["n_multiple"] // 2))
    if job.record["features"]["training"] is False:
        yield Refused("feature_training", accepted(job, trainable=True))
    if (family := _foreign(job)) is not None:
        yield Refused("family", accepted(job, devices=(Device(family),)))


def _schemes(job: Job) -> Iterator[Refused]:
    row, scheme = job.record["accepts"][0], accepted(job).scheme
    same = [r for r in job.record["accepts"] if row["formats"][0] in r["formats"]]
    served = {value for r in same for value in r["bits"]}
    sizes = {value for r in same for value in r["group_sizes"]}
    for bits in ALL_BITS:
        if bits not in served:
            yield Refused("scheme_bits", accepted(job, scheme=replace(scheme, bits=bits)))
    for size in ALL_GROUPS if row["group_sizes"] else ():
        if size not in sizes:
            k = 48 * 64 if size == 48 else 2048
            yield Refused("group_size", accepted(job, scheme=replace(scheme, group_size=size), in_features=k))


def _foreign(job: Job) -> DEVICE | None:
    """Return a family of devices that the record does not serve, if there is one."""
    served = job.record["devices"]
    families = [family for family in DEVICE if family is not DEVICE.ALL and family.value not in served]
    return families[0] if families and "all" not in served else None


def test_refused_with_exactly_this_code(job: Job, case: Refused) -> None:
    """The named backend is refused, is not replaced, and the reason has the code that the declaration implies."""
    with pytest.raises(KernelRefused) as caught:
        select(case.request)
    mine = next(c for c in caught.value.trace.trace if c.backend.value == job.backend)
    codes = {reason.code for reason in mine.reasons}
    allowed = {case.code, "torch_build", "device_absent"} if case.code == "family" else {case.code}
    assert case.code in codes, f"needs the code {case.code}, got {', '.join(sorted(codes))}"
    assert codes <= allowed, f"needs the code {case.code}, got {', '.join(sorted(codes))}"


def test_every_reason_says_needs_and_got(job: Job, case: Refused) -> None:
    """Each reason of the refusal names what is needed and what was found."""
    for candidate in explain(case.request).trace:
        for reason in candidate.reasons:
            assert reason.need
            assert reason.got


def test_the_declared_request_is_not_refused(job: Job) -> None:
    """The request that all refusals are derived from is served, so a refusal can not pass by refusing everything."""
    chosen = select(accepted(job)).chosen
    assert chosen is not None
    assert chosen.backend.value == job.backend
