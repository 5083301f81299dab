"""Every implemented record with a random weight of each format and variant; shared by tests of all kinds."""

from __future__ import annotations

from functools import partial

import torch
from support import layers
from support.cases import Case, all_cases
from support.weights import Weight, random_weight

from quantfarm.declare import export
from quantfarm.declare.registry import implemented_records
from quantfarm.declare.spec import KernelSpec
from quantfarm.formats.config import parse
from quantfarm.formats.table import find
from quantfarm.runtime.artifacts import load_library
from quantfarm.runtime.linear import QuantLinear

DECLARED = {record["name"]: record for record in export.export()["records"]}
SHAPES = [(64, 128)]


def usable(spec: KernelSpec) -> bool:
    """Leave out a native kernel whose wheel is not installed here; the farm tests it from the wheel."""
    return all(load_library(name).status == "loaded" for name in spec.artifact.libraries)


def some_cases() -> list[tuple[KernelSpec, Case]]:
    """Return one case for each record, format and variant, of the first width and without a bias."""
    found: dict[tuple[str, str, str], tuple[KernelSpec, Case]] = {}
    for spec in implemented_records():
        if spec.role or not usable(spec):
            continue
        for case in all_cases(DECLARED[spec.name], SHAPES):
            found.setdefault((spec.name, case.format, case.variant), (spec, case))
    return list(found.values())


CASES = some_cases()
IDS = [f"{spec.name}-{case.format}-{case.variant}" for spec, case in CASES]


def build(spec: KernelSpec, case: Case, seed: int = 1) -> tuple[Weight, QuantLinear]:
    """Return a random weight with a bias, and the layer over it that can read its tensors again."""
    bias = torch.randn(case.n, generator=torch.Generator().manual_seed(seed))
    weight = random_weight(case.recipe, seed, bias)
    config = parse(weight.settings(), source="the test")
    row = find(config.method, config.format, config.dialect)
    read = partial(row.read(), config=config, module=layers.CASE, k=case.k, n=case.n)
    backend = layers.backend_of(spec)
    return weight, QuantLinear(read(weight.tensors()), backend, spec, name=layers.CASE, read=read)


def rows(case: Case) -> torch.Tensor:
    """Return x [3, K]."""
    return torch.randn(3, case.k, generator=torch.Generator().manual_seed(7)).to(getattr(torch, case.dtype))
