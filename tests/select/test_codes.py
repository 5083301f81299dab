"""Every reason code is produced by a record of its own, also those that no shipped record can produce yet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from select_asks import ask
from select_hosts import BASE, CPU, H200, HOSTS, accelerated, gpu, wheel

from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.scheme import Scheme, WeightKind
from quantfarm.declare.spec import UNDECLARED, Artifact, ArtifactKind, KernelSpec, Targets, Toolchain
from quantfarm.select.check import check
from quantfarm.select.host import Host

PORTABLE = next(spec for spec in KERNELS if spec.backend is BACKEND.GPTQ_TORCH)
ASK = "gptq/gptq W4 g128 fp16"
NATIVE = Artifact(kind=ArtifactKind.NATIVE, library="cuda")
TOOLS = Toolchain(torch="2.10", triton="3.6.0", driver="550", torch_ops=())


def cuda(*archs: str, low: str = "", high: str = "") -> dict[DEVICE, Targets]:
    """Return CUDA targets: a closed list, or an open range with bounds."""
    minimum, maximum = (parse_arch(bound) if bound else None for bound in (low, high))
    codes = tuple(map(parse_arch, archs))
    return {DEVICE.CUDA: Targets(archs=codes, open_range=not codes, minimum=minimum, maximum=maximum)}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One record made from the portable one, one host, one request, and the codes that must come out."""

    codes: list[str]
    spec: dict[str, Any]
    host: Host = H200
    ask: str = ASK
    backend: str = "auto"


def held(*archs: str) -> Host:
    """Return an H200 host whose CUDA wheel holds the kernel for some targets."""
    state = wheel(kernels=[{"kernel": PORTABLE.kernel, "ops": [], "archs": list(archs)}])["cpu"]
    return replace(H200, artifacts={"cuda": replace(state, library="cuda")})


RTX = accelerated("cuda", gpu(DEVICE.CUDA, "sm_120"))
T4 = accelerated("cuda", gpu(DEVICE.CUDA, "7.5"))
MIXED = HOSTS["TWO"]
TRITON = {"torch": "2.13.0"}
CASES = {
    "retired alone": Case(codes=["retired"], spec={"retired": "use another", "pack_dtypes": ("int16",)}),
    "on request": Case(codes=["on_request_only"], spec={"priorities": {FORMAT.GPTQ: 0}, "on_request": "slow"}),
    "by name": Case(codes=[], spec={"priorities": {FORMAT.GPTQ: 0}, "on_request": "slow"}, backend="gptq_torch"),
    "pair": Case(codes=["method_format", "format"], spec={}, ask="gptq/gemm W4 g128"),
    "format": Case(codes=["format"], spec={}, ask="qqq/qqq W4 g128"),
    "exact": Case(codes=["arch"], spec={"devices": cuda("sm_90a")}, host=RTX),
    "exact fits": Case(codes=[], spec={"devices": cuda("sm_90a")}),
    "family code": Case(codes=[], spec={"devices": cuda("sm_80")}, host=accelerated("cuda", gpu(DEVICE.CUDA, "8.9"))),
    "too old": Case(codes=["arch_too_old"], spec={"devices": cuda("sm_80", low="8.0")}, host=T4),
    "too new": Case(
        codes=["arch_too_new"],
        spec={"devices": cuda(low="8.0", high="12.0")},
        host=accelerated("cuda", gpu(DEVICE.CUDA, "12.1")),
    ),
    "limit": Case(codes=["device_limit"], spec={"device_limits": {"shared_memory_per_block_optin": 204800}}, host=RTX),
    "limit met": Case(codes=[], spec={"device_limits": {"shared_memory_per_block_optin": 204800}}),
    "every visible device": Case(codes=["arch"], spec={"devices": cuda("sm_90")}, host=MIXED, ask=f"{ASK} on:cuda"),
    "one ordinal": Case(codes=[], spec={"devices": cuda("sm_90")}, host=MIXED, ask=f"{ASK} on:cuda:0"),
    "other ordinal": Case(codes=["arch"], spec={"devices": cuda("sm_90")}, host=MIXED, ask=f"{ASK} on:cuda:1"),
    "mixed": Case(codes=["device_mixed"], spec={"devices": cuda(low="8.0")}, host=MIXED, ask=f"{ASK} on:cuda:0+cuda:1"),
    "absent wheel": Case(codes=["artifact_absent"], spec={"devices": cuda("sm_90"), "artifact": NATIVE}),
    "wheel without code": Case(
        codes=["artifact_device"], spec={"devices": cuda("8.0", "9.0"), "artifact": NATIVE}, host=held("sm_80")
    ),
    "wheel with code": Case(
        codes=[], spec={"devices": cuda("8.0", "9.0"), "artifact": NATIVE}, host=held("sm_80", "sm_90")
    ),
    "foreign target once": Case(
        codes=["arch"],
        spec={"devices": cuda("sm_90a"), "artifact": NATIVE},
        host=replace(held("sm_90a"), devices=(gpu(DEVICE.CUDA, "sm_120"), CPU)),
    ),
    "package": Case(codes=["package_absent"], spec={"dependencies": {"nothing": ""}}),
    "old package": Case(codes=["package_too_old"], spec={"dependencies": {"bitblas": "0.2.0"}}),
    "package fits": Case(codes=[], spec={"dependencies": {"bitblas": "0.1.0.post1"}}),
    "tools": Case(
        codes=["toolchain_triton", "driver"],
        spec={"toolchain": TOOLS},
        host=replace(H200, versions={"torch": "2.13.0", "triton": "3.5.0", "driver": "525.60"}),
    ),
    "no triton": Case(codes=["toolchain_triton"], spec={"toolchain": TOOLS}, host=replace(H200, versions=TRITON)),
    "free-threaded": Case(
        codes=["toolchain_triton"],
        spec={"toolchain": replace(TOOLS, triton="2.0.0")},
        host=replace(H200, gil=False, versions={"torch": "2.13.0", "triton": "3.3.0"}),
    ),
    "with lock": Case(codes=[], spec={"toolchain": replace(TOOLS, triton="2.0.0")}),
    "asymmetric": Case(
        codes=["zero_point"],
        spec={"accepts": (replace(PORTABLE.accepts[0], sym=(True,)),)},
        ask=f"{ASK} asym",
    ),
    "undeclared packing": Case(
        codes=["feature_packing"],
        spec={"features": replace(PORTABLE.features, raw_packing=UNDECLARED)},
        ask=f"{ASK} packing",
    ),
    "sharded": Case(
        codes=["feature_sharded"],
        spec={"features": replace(PORTABLE.features, sharded_load=False)},
        ask=f"{ASK} sharded",
    ),
}


def build(spec: dict[str, Any]) -> KernelSpec:
    """Return the portable record with changed fields."""
    return replace(PORTABLE, **spec)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_case(case: Case) -> None:
    """A record that differs in one fact is refused with the code of that fact and no other."""
    reasons = check(build(case.spec), ask(case.ask, case.host, case.backend), case.host)
    assert [reason.code for reason in reasons] == case.codes


def test_excluded_backend_is_refused_in_auto_only() -> None:
    """allow_marlin=False removes that backend from AUTO, not from a request by name."""
    spec = build({"backend": BACKEND.MARLIN})
    request = replace(ask(ASK, H200), allow_marlin=False)
    assert [r.code for r in check(spec, request, H200)] == ["excluded_by_request"]
    assert check(spec, replace(request, backend=BACKEND.MARLIN), H200) == ()


def test_other_kinds_of_codes_are_refused() -> None:
    """A record of affine integers refuses codes of another kind."""
    scheme = Scheme(bits=4, group_size=128, sym=True, weight_kind=WeightKind.TABLE)
    request = replace(ask(ASK, BASE), scheme=scheme)
    assert [r.code for r in check(PORTABLE, request, BASE)] == ["scheme_kind"]


def test_several_rows_answer_with_the_closest() -> None:
    """Of several rows of a record, the one with the fewest objections speaks."""
    wide = replace(PORTABLE.accepts[0], bits=(8,), group_sizes=(-1,), sym=(True,))
    narrow = replace(PORTABLE.accepts[0], bits=(4,), group_sizes=(64,))
    spec = build({"accepts": (wide, narrow)})
    assert [r.code for r in check(spec, ask(ASK, BASE), BASE)] == ["group_size"]
    assert check(spec, ask("gptq/gptq W8 g-1 fp16", BASE), BASE) == ()


def test_reasons_of_one_device_carry_its_ordinal() -> None:
    """A reason that one device causes names that device, with needed and found target."""
    spec = build({"devices": cuda("sm_90")})
    (reason,) = check(spec, ask(f"{ASK} on:cuda:1", MIXED), MIXED)
    assert (reason.device, reason.need, reason.got) == ("cuda:1", "sm_90", "sm_89")
