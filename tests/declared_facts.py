"""The facts of a record and of a row of the declaration table in one vocabulary, so that they can be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import BACKEND, DEVICE
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.spec import ArtifactKind, KernelSpec, Undeclared, declared

TABLE = json.loads((Path(__file__).parent / "data" / "declarations.json").read_text(encoding="utf-8"))
SHARED_MEMORY = "shared_memory_per_block_optin"

OWN_FORMATS = {"MXFP4", "NVFP4"}
"""Formats that the table lacks and this project reads (docs/decisions/0008)."""


def rows_of(spec: KernelSpec) -> list[dict[str, Any]]:
    """Return the rows of the table that a record comes from: one, but for the conversion, whose holders are listed."""
    if spec.backend is BACKEND.MLX:
        return []
    mine = [r for r in TABLE["rows"] if r["backend"] == spec.backend.name and spec.method.value in r["methods"]]
    mine = [r for r in mine if r["selectable"] == (not spec.role)]
    return [r for r in mine if {f.name for f in spec.formats} - OWN_FORMATS <= set(r["formats"])]


def _merged(values: list[Any]) -> list[Any] | None:
    """Return the values of all rows of a record; None where nobody knows or the fact has no meaning."""
    if any(isinstance(value, Undeclared) for value in values):
        return None
    return sorted({item for value in values for item in declared(value)}) or None


def _known(value: Any) -> Any:
    return None if isinstance(value, Undeclared) else value


def _listed(values: tuple[str, ...] | Undeclared) -> list[str] | None:
    return None if isinstance(values, Undeclared) else sorted(values)


def of_record(spec: KernelSpec) -> dict[str, Any]:
    """Return a record's facts."""
    packages = dict(spec.dependencies) | ({"triton": spec.toolchain.triton} if spec.toolchain.triton else {})
    return {
        "formats": {f.name: spec.priorities.get(f) for f in spec.formats},
        "devices": [d.name for d in spec.devices],
        "targets": {
            d.value: (str(t.minimum or ""), str(t.maximum or ""), sorted(map(str, t.archs)))
            for d, t in spec.devices.items()
            if t.minimum or t.maximum or t.archs
        },
        "cpu_features": sorted(spec.cpu_features),
        "shared_memory": spec.device_limits.get(SHARED_MEMORY),
        "bits": _merged([row.bits for row in spec.accepts]),
        "group_sizes": _merged([row.group_sizes for row in spec.accepts]),
        "desc_act": _merged([row.act_order for row in spec.accepts]),
        "sym": _merged([row.sym for row in spec.accepts]),
        "k_multiple": _known(spec.shape.k_multiple),
        "n_multiple": _known(spec.shape.n_multiple),
        "pads_k": spec.shape.pads_k,
        "pack_dtypes": _listed(spec.pack_dtypes),
        "activations": sorted(spec.activations),
        "adapter": _listed(spec.features.adapters),
        "trainable": _known(spec.features.training),
        "raw_packing": _known(spec.features.raw_packing),
        "sharded_load": _known(spec.features.sharded_load),
        "platforms": _listed(spec.platforms),
        "requires": packages,
        "retired": bool(spec.retired),
    }


def of_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row's facts, with its true divisors, group sizes and floors in place of the merely declared ones."""
    extra, needs = row["extra_gates"], dict(row["requires"])
    groups = row["group_sizes"] and sorted(set(row["group_sizes"]) - set(extra.get("untrue_group_sizes", ())))
    if "triton_launch_min" in extra:
        needs["triton"] = extra["triton_launch_min"]
    return {
        "formats": row["formats"],
        "devices": row["devices"],
        "targets": _targets(row),
        "cpu_features": ((row["arch"] or {}).get("cpu") or {"features": []})["features"],
        "shared_memory": extra.get("smem_optin_min_bytes"),
        "bits": row["bits"] and sorted(row["bits"]),
        "group_sizes": groups,
        "desc_act": row["desc_act"] and sorted(row["desc_act"]),
        "sym": row["sym"] and sorted(row["sym"]),
        "k_multiple": _largest(row["in_features_divisible_by"], extra.get("true_in_features_divisible_by")),
        "n_multiple": _largest(row["out_features_divisible_by"], extra.get("true_out_features_divisible_by")),
        "pads_k": bool(row["auto_padding"]),
        "pack_dtypes": row["pack_dtypes"] and sorted(row["pack_dtypes"]),
        "activations": sorted(row["activation_dtypes"] or ()),
        "adapter": row["adapter"],
        "trainable": row["trainable"],
        "raw_packing": row["raw_packing"],
        "sharded_load": row["sharded_load"],
        "platforms": [] if row["platforms"] == ["all"] else row["platforms"],
        "requires": {name.partition("[")[0]: floor or "" for name, floor in needs.items()},
        "retired": row["retired"],
    }


def _largest(divisors: list[int] | None, true: list[int] | None) -> int | None:
    return None if divisors is None else max(divisors + (true or []))


def _targets(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for family, gate in (row["arch"] or {}).items():
        if family == DEVICE.CPU.value:
            continue
        names = [str(parse_arch(text)) for text in gate.get("exact", gate.get("in", ()))]
        bounds = [str(parse_arch(gate[end])) if end in gate else "" for end in ("min", "max")]
        found[family] = (bounds[0], bounds[1], sorted(row["extra_gates"].get("built_for", names)))
    return found


def engines(spec: KernelSpec) -> bool:
    """Say whether a record hands over to another program, so that most facts have no meaning."""
    return spec.artifact.kind is ArtifactKind.ENGINE


OWN_RECORDS: dict[str, str] = {
    "awq_torch-gemv": "the table has no portable path for GEMV, and every format is to run on every device",
    "awq_torch-gemv_fast": "the same for GEMV_FAST and LLM_AWQ",
}
"""Records that no row of the table stands for, with the reason."""

RECORDS = tuple(s for s in KERNELS if s.backend is not BACKEND.MLX and s.name not in OWN_RECORDS)
