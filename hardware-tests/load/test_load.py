"""Import alone proves nothing: the library loads from the wheel's own files and every operator runs once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import layers
from support.cases import all_cases
from support.job import Job
from support.weights import Recipe, random_weight

import quantfarm
from quantfarm.runtime.artifacts import load_library


def _smallest(job: Job) -> Recipe:
    """Return the first recipe that the record declares and that fits a small shape."""
    return next(all_cases(job.record, [(64, 256)])).recipe


def test_the_product_comes_from_the_environment(job: Job) -> None:
    """The imported package lies in the environment's own packages, and no source tree is on the path."""
    home = Path(quantfarm.__file__).resolve()
    assert "site-packages" in home.parts, f"quantfarm comes from {home.parent.name}, needs an installed wheel"


def test_the_library_loads(job: Job) -> None:
    """The native library of the record loads, and its checksum is the manifest's."""
    library = job.record["artifact"]["library"]
    if not library:
        return
    state = load_library(library)
    assert state.status == "loaded", f"{state.status}: {state.text}"


def test_every_operator_exists(job: Job) -> None:
    """Each declared operator is registered after the library was loaded."""
    library = job.record["artifact"]["library"]
    for name in job.record["artifact"]["ops"]:
        load_library(library)
        assert hasattr(getattr(torch.ops, f"quantfarm_{library}"), name), f"no operator named {name}"


@pytest.mark.parametrize("rows", [1, 5])
def test_every_operator_runs_once(job: Job, rows: int) -> None:
    """Pack, product and unpack run; the result has the right shape and the codes come back."""
    weight = random_weight(_smallest(job), seed=3)
    layer = layers.build(weight, job.record)
    x = torch.ones(rows, weight.k, dtype=getattr(torch, job.record["activations"][0]))
    with torch.no_grad():
        out = layer(x)
    assert out.shape == (rows, weight.n)
    assert torch.isfinite(out).all()
    kept = layer.checkpoint_tensors()
    assert all(torch.equal(kept[name], tensor) for name, tensor in weight.tensors().items())
