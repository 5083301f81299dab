"""Real checkpoints, written by a peer: every layer within tolerance of the float64 decode, one against the peer's."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from support import layers, measure
from support.job import Job
from support.measure import note

from quantfarm.formats.config import find_settings, parse
from quantfarm.formats.packed import packed_modules
from quantfarm.reference import decode


def cases(job: Job, test: str) -> list[str]:
    """The folders whose method and format the record reads."""
    return [folder.name for folder in sorted(Path(job.data).glob("*/")) if _accepted(job, folder)]


def _accepted(job: Job, folder: Path) -> bool:
    if not (folder / "expected.safetensors").is_file():
        return False
    config = _config(folder)
    return job.record["method"] == config.method.value and any(
        config.format.value in row["formats"]
        and config.bits in row["bits"]
        and (not row["group_sizes"] or config.group_size in row["group_sizes"])
        and (not row["sym"] or config.sym in row["sym"])
        and (not config.desc_act or True in row["act_order"])
        for row in job.record["accepts"]
    )


def _config(folder: Path) -> Any:
    settings, source = find_settings(folder)
    return parse(settings, source=source)


@functools.cache
def _expected(folder: Path, module: str) -> measure.Doubles:
    """Return W of a module in float64, decoded from the file's bytes by the oracle; shared by all records."""
    config = _config(folder)
    w64: measure.Doubles = decode(
        _modules(folder)[module],
        method=config.method.value,
        format=config.format.value,
        bits=config.bits,
        group_size=config.group_size,
        sym=config.sym,
        zeros_rule=config.zeros_rule.value,
        code_type=config.code_type,
        details=config.details,
    )
    return w64


@functools.cache
def _modules(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Return the stored tensors of every packed module by suffix."""
    stored = load_file(folder / "model.safetensors")
    packed = packed_modules(stored, _config(folder))
    return {module: {suffix: stored[name] for suffix, name in names.items()} for module, names in packed.items()}


def test_every_layer_of_a_real_checkpoint(job: Job, case: str, figures: dict[str, Any]) -> None:
    """Each quantized layer gives the product of its float64 decode, for every dtype of the record."""
    folder = Path(job.data) / case
    settings, _ = find_settings(folder)
    for name, tensors in _modules(folder).items():
        layer = layers.from_tensors(tensors, settings, job.record, name)
        w64 = _expected(folder, name)
        for dtype in job.record["activations"]:
            x = torch.randn(9, layer.in_features, generator=torch.Generator().manual_seed(5)).to(getattr(torch, dtype))
            with torch.no_grad():
                actual = layer(x)
            found = measure.errors(actual, measure.expected(x, w64, tensors.get("bias")), x, w64)
            e0 = measure.dense_error(x, w64)
            note(figures, dtype, found, e0)
            wrong = measure.problems(found, e0, job.record, dtype)
            assert not wrong, f"{name} {dtype}: {'; '.join(wrong)}"


def test_the_peer_decodes_the_same_weight(job: Job, case: str) -> None:
    """One-hot rows in the widest dtype give the weight that the checkpoint's writer expects, to one unit."""
    folder = Path(job.data) / case
    expected = load_file(folder / "expected.safetensors")
    name = next(key for key in expected if key.endswith("k_proj.weight"))
    module = next(m for m in _modules(folder) if m.endswith(name.removesuffix(".weight")))
    layer = layers.from_tensors(_modules(folder)[module], find_settings(folder)[0], job.record, module)
    dtype = "float32" if "float32" in job.record["activations"] else job.record["activations"][0]
    with torch.no_grad():
        actual = layer.compute(torch.eye(layer.in_features, dtype=getattr(torch, dtype)), None)
    wanted = measure.double(expected[name]).T
    distance = measure.ulps(actual, wanted, dtype)
    assert distance <= 1.0, f"over the limit: {distance:.2f} ulp from the writer's weight"
