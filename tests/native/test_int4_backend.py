"""The native backend as the loader uses it: prepare, run, restore; and the manifest of its wheel."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from int4_cases import DTYPES, Weight, check, make_weight

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.kernels.int4_panel import backend, spec
from quantfarm.runtime.artifacts import find_folder, load_library

STATE = load_library("cpu")
pytestmark = pytest.mark.skipif(STATE.status != "loaded", reason=f"quantfarm-cpu is {STATE.status}: {STATE.text}")
CPU = torch.device("cpu")


def _as_stored(codes: torch.Tensor) -> Mapping[str, torch.Tensor]:
    return {"qweight": codes}


def quant_tensor(weight: Weight) -> QuantTensor:
    """Return the canonical form of a test weight."""
    act_order = weight.order is not None
    return QuantTensor(
        method=METHOD.GPTQ,
        format=FORMAT.GPTQ,
        scheme=Scheme(bits=4, group_size=weight.group_size, sym=False, act_order=act_order),
        k=weight.k,
        n=weight.n,
        codes=weight.words,
        scales=weight.scales,
        zeros=weight.zeros,
        g_idx=weight.group.to(torch.int32) if act_order else None,
        bias=None,
        source={},
        codes_to_source=_as_stored,
    )


@pytest.mark.parametrize("act_order", [False, True], ids=["sorted", "act-order"])
@pytest.mark.parametrize("sym", [False, True], ids=["asym", "sym"])
def test_prepare_run_restore(*, sym: bool, act_order: bool) -> None:
    """A prepared weight multiplies within the caps, gives its codes back bit for bit and counts its calls."""
    weight = make_weight(256, 90, 64, sym=sym, act_order=act_order)
    prepared = backend.prepare(quant_tensor(weight), CPU)
    assert (prepared.zeros is None) == sym
    assert torch.equal(backend.restore(prepared), weight.words)
    bias = torch.linspace(-1, 1, 90, dtype=torch.float64)
    before = backend.calls()
    for dtype in DTYPES:
        wide = torch.randn(6, 512, generator=torch.Generator().manual_seed(1)).to(dtype)
        x = wide[::2, ::2]
        check(backend.run(prepared, x, bias), x, weight.dense(), bias)
    assert backend.calls() == before + len(DTYPES)


def test_groups_of_unequal_size_are_refused() -> None:
    """A group index that does not fill every group equally names the group, the needed and the found count."""
    weight = make_weight(128, 16, 32, act_order=True)
    weight.group[weight.group == 2] = 1
    with pytest.raises(ValueError, match="g_idx: needs 32 inputs in each group, got 64 in group 1"):
        backend.prepare(quant_tensor(weight), CPU)


def test_another_device_is_refused() -> None:
    """The layout exists for cpu only."""
    with pytest.raises(ValueError, match="needs device cpu"):
        backend.prepare(quant_tensor(make_weight(64, 16, 32)), torch.device("meta"))


def test_the_product_traces_by_shape() -> None:
    """On fake tensors the operator gives [M, N] in x.dtype without computing."""
    prepared = backend.prepare(quant_tensor(make_weight(64, 24, 32)), CPU)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        y = backend.run(prepared, mode.from_tensor(torch.zeros(5, 64)), None)
    assert y.shape == (5, 24)


def _manifest_tool() -> object:
    tools = Path(__file__).resolve().parents[2] / "csrc" / "tools"
    sys.path.insert(0, str(tools))
    try:
        import write_manifest
    finally:
        sys.path.remove(str(tools))
    return write_manifest


def test_the_manifest_says_what_the_library_exports() -> None:
    """Every kernel, arch and operator of the manifest is in the library, and declared archs are built or skipped."""
    folder = find_folder("cpu")
    assert folder is not None
    manifest = json.loads((folder / "manifest.json").read_text())
    symbols = _manifest_tool().defined_symbols((folder / manifest["library"]).read_bytes())  # type: ignore[attr-defined]
    row = next(row for row in manifest["kernels"] if row["kernel"] == spec.GPTQ.kernel)
    assert set(row["symbols"]) == set(row["archs"])
    assert set(row["symbols"].values()) <= symbols
    assert set(spec.GPTQ.artifact.ops) <= set(row["ops"])
    declared = {str(arch) for targets in spec.GPTQ.devices.values() for arch in targets.archs}
    assert declared == {*row["archs"], *(skip["arch"] for skip in manifest["skipped"])}


def test_a_claim_without_a_symbol_ends_the_build() -> None:
    """The manifest writer refuses a kernel that the library does not hold, by name."""
    folder = find_folder("cpu")
    assert folder is not None
    elf = (folder / "libquantfarm_cpu.so").read_bytes()
    with pytest.raises(ValueError, match="needs the symbol quantfarm_cpu_int4_panel_avx10, the library has none"):
        _manifest_tool().kernel_rows(elf, "cpu", ["int4_panel:x86_64_avx10"])  # type: ignore[attr-defined]
