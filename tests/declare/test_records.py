"""The records against the table they came from, and against themselves."""

from __future__ import annotations

import json

import pytest
from declared_facts import OWN_RECORDS, RECORDS, TABLE, engines, of_record, of_row, rows_of

from quantfarm.declare.export import export
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.reason import SENTENCES, Reason
from quantfarm.declare.registry import KERNELS, implemented, implemented_records
from quantfarm.declare.scheme import Scheme
from quantfarm.declare.spec import UNDECLARED, KernelSpec, Undeclared
from quantfarm.select.choose import ordered
from quantfarm.select.pairs import FORMATS_OF, takes_part
from quantfarm.select.request import Request

NO_INDEX = "the layout has no index of groups, so there is no order to read"
DIFFERENCES: dict[tuple[str, str], str] = {
    **{
        (f"{method}_torch_cpu_avx512", fact): why
        for method in ("gptq", "awq")
        for fact, why in {
            "targets": "our library has code for three levels and picks one by the processor",
            "group_sizes": "our kernel also takes one group for the whole row",
            "k_multiple": "our panels hold eight codes of a word, and any number of panels",
            "n_multiple": "our panels are padded along N; AWQ words hold eight columns",
            "activations": "our kernel also takes fp16 and fp32",
        }.items()
    },
    ("awq_torch_aten", "n_multiple"): "AWQ words hold eight columns",
    ("awq_torch_aten", "pads_k"): "the AWQ reader refuses a K that the groups do not divide",
    ("awq_torch_aten", "raw_packing"): "our packer writes AWQ GEMM",
    **{
        (f"{method}_torch_fused", "devices"): "the operator of XPUs has another layout, and no code for it is written"
        for method in ("gptq", "awq")
    },
    ("awq_torch_fused", "n_multiple"): "AWQ words hold eight columns",
    ("awq_torch_fused", "pads_k"): "the AWQ reader refuses a K that the groups do not divide",
    ("gptq_torch", "pack_dtypes"): "our reader takes words of 32 bits",
    ("gptq_torch", "activations"): "our kernel also takes fp32",
    ("awq_torch", "bits"): "our reader takes 4 bits, the only width that writers make",
    ("awq_torch", "activations"): "our kernel also takes fp32",
    ("marlin-awq", "bits"): "no writer makes AWQ files of 8 bits",
    ("machete-awq", "bits"): "no writer makes AWQ files of 8 bits",
    ("gguf_torch", "bits"): "our decoders know every type of ggml, also those of 3 bits and the plain floats",
    ("paroquant_cuda", "k_multiple"): "inputs are turned in pairs",
    ("paroquant_cuda", "n_multiple"): "AWQ words hold eight columns",
    ("gptq_bitblas", "targets"): "a target newer than the package knows is refused, not lowered quietly",
    ("awq_bitblas", "targets"): "a target newer than the package knows is refused, not lowered quietly",
    ("exl3_torch", "platforms"): "the path is torch alone, and torch runs on every platform",
    ("vptq_torch", "raw_packing"): "codebooks come from clustering, so there is no packer from floats",
    ("fp8_torch", "formats"): "our record also reads MXFP4 and NVFP4",
    ("fp8_torch", "bits"): "MXFP4 and NVFP4 have 4",
    ("fp8_torch", "group_sizes"): "MXFP4 has groups of 32, NVFP4 of 16",
    ("qqq", "devices"): "a family that is declared and refused when it runs is not declared",
    **{
        (spec.name, "desc_act"): NO_INDEX
        for spec in KERNELS
        if spec.method in (METHOD.AWQ, METHOD.PARO) and spec.name not in ("machete-awq", "swordfish-awq")
    },
}
"""Every fact of a record that is not the table's, with the reason. Nothing else may differ."""

NO_MEANING_FOR_ENGINES = ("devices", "k_multiple", "n_multiple", "pads_k", "pack_dtypes", "platforms")


@pytest.mark.parametrize("spec", RECORDS, ids=lambda s: s.name)
def test_a_record_is_its_row(spec: KernelSpec) -> None:
    """Field by field a record says what the table says, or the difference is listed with its reason."""
    (row,) = rows_of(spec)
    mine, table = of_record(spec), of_row(row)
    if engines(spec):
        other = {fmt for fmt in table["formats"] if FORMAT[fmt] not in FORMATS_OF[spec.method]}
        table["formats"] = {fmt: number for fmt, number in table["formats"].items() if fmt not in other}
        for fact in NO_MEANING_FOR_ENGINES:
            del mine[fact], table[fact]
    different = {fact for fact in mine if mine[fact] != table[fact]}
    listed = {fact for name, fact in DIFFERENCES if name == spec.name}
    assert {fact: (mine[fact], table[fact]) for fact in different - listed} == {}
    assert listed <= different | {"desc_act"}


def test_every_row_has_its_record() -> None:
    """The table's rows and the records cover each other; the two policies are no kernels."""
    used = {id(row) for spec in RECORDS for row in rows_of(spec)}
    left = {row["backend"] for row in TABLE["rows"] if id(row) not in used}
    assert left == {"AUTO", "AUTO_TRAINABLE", "MLX"}
    assert {spec.backend.name for spec in KERNELS} == {r["backend"] for r in TABLE["rows"]} - {"AUTO", "AUTO_TRAINABLE"}


def test_the_conversion_reads_what_its_holders_read() -> None:
    """The table gives the conversion no formats, so its records come from the holders, one for each method."""
    mine = [spec for spec in KERNELS if spec.backend is BACKEND.MLX]
    held = [fmt for holder in TABLE["mlx_holders"] for fmt in holder["formats"]]
    assert sorted(held) == sorted(fmt.name for spec in mine for row in spec.accepts for fmt in row.formats)
    for spec in mine:
        assert all(priority == 0 for priority in spec.priorities.values())
        assert (spec.platforms, list(spec.devices), spec.activations) == (("darwin",), [DEVICE.MPS], ("float16",))


@pytest.mark.parametrize("pair", list(TABLE["auto_order"]))
def test_o01_the_automatic_order_is_the_tables(pair: str) -> None:
    """The records that AUTO tries for a pair are those of the table, in its order, then our own."""
    method, fmt = pair.split("/")
    request = Request(method=METHOD(method), format=FORMAT[fmt], scheme=Scheme(bits=4, group_size=128, sym=True))
    tried = [spec.backend.name for spec in ordered(request, KERNELS) if takes_part(spec, request)]
    own = [spec.backend.name for spec in KERNELS if spec.name in OWN_RECORDS and FORMAT[fmt] in spec.formats]
    assert tried == [*TABLE["auto_order"][pair], *own]


@pytest.mark.parametrize("spec", KERNELS, ids=lambda s: s.name)
def test_records_are_complete(spec: KernelSpec) -> None:
    """Every activation dtype has a cap and a floor of at most half of it; zero priority or none has its sentence."""
    assert spec.accepts
    for dtype in spec.activations:
        assert 0 < spec.tolerance.floor[dtype] <= spec.tolerance.cap[dtype] / 2
    assert all(spec.priorities.get(fmt, 0) > 0 or spec.on_request for fmt in spec.formats)
    assert set(spec.priorities) <= set(spec.formats)
    assert spec.devices
    assert all(isinstance(d, DEVICE) for d in spec.devices)
    assert spec.origin
    assert spec.licence


@pytest.mark.parametrize("spec", implemented_records(), ids=lambda s: s.name)
def test_a_kernel_with_code_has_no_gap(spec: KernelSpec) -> None:
    """Once the code is there, every fact that a request depends on is known, and so is how the kernel behaves."""
    features = spec.features
    assert spec.unknown == ()
    assert not any(isinstance(v, Undeclared) for v in (features.training, features.adapters, features.sharded_load))
    assert not any(isinstance(v, Undeclared) for v in (features.deterministic, features.keeps_source))


def test_export_is_plain_json() -> None:
    """The exported declarations survive JSON, keep undeclared facts as null, and say which kernels have code."""
    data = json.loads(json.dumps(export()))
    assert data == export()
    assert [r["name"] for r in data["records"]] == [s.name for s in KERNELS]
    gaps = {r["name"] for r in data["records"] if r["features"]["raw_packing"] is None}
    assert gaps == {s.name for s in KERNELS if s.features.raw_packing is UNDECLARED}
    assert {r["kernel"] for r in data["records"] if r["implemented"]} == implemented()


def test_reason_codes_are_closed() -> None:
    """A code outside the closed set can not be made; a reason prints code, need, got, device."""
    with pytest.raises(ValueError, match="does not exist"):
        Reason("slow", "a", "b")
    assert str(Reason("arch", "sm_90a", "sm_120", "cuda:1")) == "arch on cuda:1: needs sm_90a, got sm_120"
    assert len(set(SENTENCES.values())) == len(SENTENCES)
