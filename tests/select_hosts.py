"""Fake hosts of the golden table, written by hand: no test here looks at the machine it runs on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quantfarm import __version__
from quantfarm.declare.artifact import ArtifactState
from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import DEVICE
from quantfarm.declare.registry import KERNELS
from quantfarm.select.host import Host, HostDevice, Settings

AVX2 = frozenset({"avx2", "fma", "f16c"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
VNNI = AVX512 | {"avx512_vnni"}
BF16 = VNNI | {"avx512_bf16"}
OPERATORS = frozenset(op for spec in KERNELS for op in spec.toolchain.torch_ops)
LEVELS = ["x86_64_avx2", "x86_64_avx512", "x86_64_avx512_vnni"]
CPU = HostDevice(family=DEVICE.CPU)


def wheel(status: str = "loaded", text: str = "", **manifest: Any) -> dict[str, ArtifactState]:
    """Return the state of a CPU back-end wheel that holds int4_panel unless the manifest says otherwise."""
    held = {"kernels": [{"kernel": "int4_panel", "ops": [], "archs": LEVELS}], "skipped": []} | manifest
    return {"cpu": ArtifactState(library="cpu", status=status, text=text, version=__version__, manifest=held)}


def gpu(family: DEVICE, arch: str, index: int = 0, **limits: int) -> HostDevice:
    """Return one fake accelerator."""
    return HostDevice(family=family, index=index, arch=parse_arch(arch), name=arch, limits=limits)


BASE = Host(
    platform="linux",
    machine="x86_64",
    devices=(CPU,),
    cpu_features=BF16,
    cpu_name="fake",
    versions={"python": "3.12.4", "torch": "2.13.0", "triton": "3.8.0", "bitblas": "0.1.0.post1"},
    torch_build="cpu",
    artifacts=wheel(),
    torch_ops=OPERATORS,
)


def accelerated(build: str, *devices: HostDevice, **changes: Any) -> Host:
    """Return the base host with accelerators and the torch build that serves them."""
    return replace(BASE, torch_build=build, devices=(*devices, CPU), **changes)


H200 = accelerated("cuda", gpu(DEVICE.CUDA, "sm_90", shared_memory_per_block_optin=232448))
R9700 = accelerated("rocm", gpu(DEVICE.ROCM, "gfx1201"))
OTHER_TORCH = "quantfarm-cpu: needs 0.1.0, got 0.0.9"
NO_PANEL = wheel(kernels=[], skipped=[{"kernel": "int4_panel", "arch": "all", "reason": "QUANTFARM_AVX2=OFF"}])
ONLY_VNNI = wheel(kernels=[{"kernel": "int4_panel", "ops": [], "archs": LEVELS[2:]}])
OTHER_KERNEL = wheel(kernels=[{"kernel": "another", "ops": [], "archs": LEVELS}])

HOSTS: dict[str, Host] = {
    "CPU-BF16": BASE,
    "CPU-AVX512": replace(BASE, cpu_features=VNNI),
    "CPU-AVX2": replace(BASE, cpu_features=AVX2),
    "CPU-OLD": replace(BASE, cpu_features=frozenset({"sse4_2"})),
    "ARM": replace(BASE, machine="aarch64", cpu_features=frozenset({"asimd"})),
    "WINDOWS": replace(BASE, platform="win32", machine="AMD64"),
    "MPS": accelerated(
        "cpu", gpu(DEVICE.MPS, "mps"), platform="darwin", machine="arm64", cpu_features=frozenset({"asimd"})
    ),
    "H200": H200,
    "H200-NO-WHEEL": replace(H200, artifacts={}),
    "TWO": accelerated("cuda", gpu(DEVICE.CUDA, "9.0", 0), gpu(DEVICE.CUDA, "8.9", 1)),
    "R9700": R9700,
    "MI355": accelerated("rocm", gpu(DEVICE.ROCM, "gfx950")),
    "XPU": accelerated("xpu", gpu(DEVICE.XPU, "xpu")),
    "ABSENT": replace(BASE, artifacts={}),
    "SKIPPED": replace(BASE, artifacts=NO_PANEL),
    "OTHER-KERNEL": replace(BASE, artifacts=OTHER_KERNEL),
    "ONLY-VNNI": replace(BASE, cpu_features=AVX512 | {"avx512_bf16"}, artifacts=ONLY_VNNI),
    "WRONG-ABI": replace(BASE, artifacts=wheel("wrong_abi", OTHER_TORCH)),
    "LOAD-FAILS": replace(BASE, artifacts=wheel("failed", "libgomp.so.1: cannot open shared object file")),
    "OLD-TORCH": replace(BASE, versions={"torch": "2.9.1"}),
    "NIGHTLY-TORCH": replace(BASE, versions={"torch": "2.10.0a0+git1"}),
    "NO-TORCH": replace(BASE, versions={}, torch_build="none", torch_ops=None),
    "NO-OPERATOR": replace(BASE, torch_ops=frozenset()),
    "FAILED-ONCE": replace(BASE, failed={"gptq_torch_aten": "RuntimeError: out of memory"}),
    "STRICT": replace(BASE, settings=Settings(strict=True)),
    "STRICT-ABSENT": replace(BASE, artifacts={}, settings=Settings(strict=True)),
    "STRICT-H200": replace(H200, artifacts={}, settings=Settings(strict=True)),
    "ISA-VNNI": replace(BASE, cpu_features=AVX512 | {"avx512_bf16"}, settings=Settings(cpu_isa="avx512_vnni")),
    "ISA-NOT-HELD": replace(BASE, artifacts=ONLY_VNNI, settings=Settings(cpu_isa="avx2")),
    "ISA-AVX2": replace(BASE, settings=Settings(cpu_isa="avx2")),
}
