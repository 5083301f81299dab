"""The records against the table they came from, and against themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantfarm.declare.export import export
from quantfarm.declare.names import DEVICE
from quantfarm.declare.reason import SENTENCES, Reason
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.spec import UNDECLARED, KernelSpec

TABLE = json.loads((Path(__file__).parent.parent / "data" / "declarations.json").read_text(encoding="utf-8"))


def origin(spec: KernelSpec) -> dict[str, Any]:
    """Return the row of the declaration table that a record comes from."""
    rows = [r for r in TABLE["rows"] if r["backend"] == spec.backend.name and spec.method.value in r["methods"]]
    return next(r for r in rows if r["selectable"])


@pytest.mark.parametrize("spec", KERNELS, ids=lambda s: s.name)
def test_policy_comes_from_the_table(spec: KernelSpec) -> None:
    """Priorities and device families are those of the table for every format the record reads."""
    row = origin(spec)
    assert {f.name: p for f, p in spec.priorities.items()}.items() <= row["formats"].items()
    assert set(spec.formats) == set(spec.priorities)
    assert [d.name for d in spec.devices] == row["devices"]
    assert spec.features.training is row["trainable"]
    assert list(spec.cpu_features) == ((row["arch"] or {}).get("cpu") or {"features": []})["features"]


@pytest.mark.parametrize("spec", KERNELS, ids=lambda s: s.name)
def test_records_are_complete(spec: KernelSpec) -> None:
    """Every activation dtype has a cap and a floor of at most half of it; zero priority has its sentence."""
    assert spec.accepts
    for dtype in spec.activations:
        assert 0 < spec.tolerance.floor[dtype] <= spec.tolerance.cap[dtype] / 2
    assert all(p > 0 or spec.on_request for p in spec.priorities.values())
    assert spec.devices
    assert all(isinstance(d, DEVICE) for d in spec.devices)
    assert spec.origin
    assert spec.licence


def test_export_is_plain_json() -> None:
    """The exported declarations survive JSON and keep undeclared facts as null."""
    data = json.loads(json.dumps(export()))
    assert data == export()
    assert [r["name"] for r in data["records"]] == [s.name for s in KERNELS]
    gaps = {r["name"] for r in data["records"] if r["features"]["raw_packing"] is None}
    assert gaps == {s.name for s in KERNELS if s.features.raw_packing is UNDECLARED}


def test_reason_codes_are_closed() -> None:
    """A code outside the closed set can not be made; a reason prints code, need, got, device."""
    with pytest.raises(ValueError, match="does not exist"):
        Reason("slow", "a", "b")
    assert str(Reason("arch", "sm_90a", "sm_120", "cuda:1")) == "arch on cuda:1: needs sm_90a, got sm_120"
    assert len(set(SENTENCES.values())) == len(SENTENCES)
