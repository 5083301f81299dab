"""Fake hosts of the golden table, written by hand: no test here looks at the machine it runs on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quantfarm import __version__
from quantfarm.declare.artifact import ArtifactState
from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import DEVICE
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.spec import KernelSpec
from quantfarm.select.host import Host, HostDevice, Settings

AVX2 = frozenset({"avx2", "fma", "f16c"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
VNNI = AVX512 | {"avx512_vnni"}
BF16 = VNNI | {"avx512_bf16"}
OPERATORS = frozenset(op for spec in KERNELS for op in spec.toolchain.all_ops)
EVERY_KERNEL = frozenset(spec.kernel for spec in KERNELS)
PACKAGES = {
    "triton": "3.8.0",
    "bitblas": "0.1.0.post1",
    "bitsandbytes": "0.50.2",
    "llama-cpp-python": "0.3.36",
    "vllm": "0.32.0",
    "sglang": "0.5.22",
    "mlx": "0.32.4",
    "mlx-lm": "0.32.2",
}
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


def nvidia(arch: str, shared: int, **changes: Any) -> Host:
    """Return a host with one NVIDIA card and its opt-in shared memory in bytes."""
    return accelerated("cuda", gpu(DEVICE.CUDA, arch, shared_memory_per_block_optin=shared), **changes)


def everything(host: Host) -> Host:
    """Return a host as the contract supposes it: every kernel written, every package and library installed."""
    libraries = {name: replace(BASE.artifacts["cpu"], library=name, manifest={}) for name in ("cuda12", "rocm7")}
    return replace(
        host,
        implemented=EVERY_KERNEL,
        artifacts=libraries | dict(host.artifacts) if host.artifacts else {},
        versions=PACKAGES | dict(host.versions) if host.versions else {},
    )


H200 = nvidia("sm_90", 232448)
R9700 = accelerated("rocm", gpu(DEVICE.ROCM, "gfx1201"))
OTHER_TORCH = "quantfarm-cpu: needs 0.1.0, got 0.0.9"
NO_PANEL = wheel(kernels=[], skipped=[{"kernel": "int4_panel", "arch": "all", "reason": "QUANTFARM_AVX2=OFF"}])
ONLY_VNNI = wheel(kernels=[{"kernel": "int4_panel", "ops": [], "archs": LEVELS[2:]}])
OTHER_KERNEL = wheel(kernels=[{"kernel": "another", "ops": [], "archs": LEVELS}])

SHARED = {"shared_memory_per_block_optin": 232448}

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
    "RX9060": accelerated("rocm", gpu(DEVICE.ROCM, "gfx1200")),
    "GFX1250": accelerated("rocm", gpu(DEVICE.ROCM, "gfx1250")),
    "MI300": accelerated("rocm", gpu(DEVICE.ROCM, "gfx942")),
    "TWO-AMD": accelerated("rocm", gpu(DEVICE.ROCM, "gfx1201", 0), gpu(DEVICE.ROCM, "gfx950", 1)),
    "PASCAL": nvidia("sm_61", 98304),
    "V100": nvidia("sm_70", 98304),
    "T4": nvidia("sm_75", 65536),
    "A100": nvidia("sm_80", 166912),
    "A10": nvidia("sm_86", 101376),
    "ADA": nvidia("sm_89", 101376),
    "B200": nvidia("sm_100", 232448),
    "B300": nvidia("sm_103", 232448),
    "THOR": nvidia("sm_110", 232448),
    "RTX5090": nvidia("sm_120", 101376),
    "GB10": nvidia("sm_121", 101376),
    "WIN-ADA": nvidia("sm_89", 101376, platform="win32", machine="AMD64"),
    "H200-LESS": nvidia("sm_90", 101376),
    "H200-OLD-TRITON": nvidia("sm_90", 232448, versions={**BASE.versions, "triton": "3.5.0"}),
    "H200-3.3-NO-GIL": nvidia("sm_90", 232448, versions={**BASE.versions, "triton": "3.3.0"}, gil=False),
    "H200-3.4-NO-GIL": nvidia("sm_90", 232448, versions={**BASE.versions, "triton": "3.4.0"}, gil=False),
    "H200-NO-TRITON": nvidia("sm_90", 232448, versions={"torch": "2.13.0"}),
    "GB10-OLD-TRITON": nvidia("sm_121", 101376, versions={**BASE.versions, "triton": "3.5.0"}),
    "GB10-NO-FP4": nvidia("sm_121", 101376, torch_ops=OPERATORS - {"torch.float4_e2m1fn_x2"}),
    "CUDA-CPU-TORCH": replace(H200, torch_build="cpu"),
    "H200-TWICE": accelerated("cuda", *(gpu(DEVICE.CUDA, "9.0", i, **SHARED) for i in range(2))),
    "UNLIKE": accelerated("cuda", gpu(DEVICE.CUDA, "9.0", 0, **SHARED), gpu(DEVICE.CUDA, "7.5", 1)),
    "XPU": accelerated("xpu", gpu(DEVICE.XPU, "xpu")),
    "XPU-OLD": accelerated("xpu", gpu(DEVICE.XPU, "xpu"), torch_ops=frozenset()),
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

NO_ARTIFACTS = ("machete", "marlin", "exllama_v2", "awq_words")
"""The kernels that the contract's host without artifacts lacks in its CUDA wheel."""


def _cuda_wheel(status: str = "loaded", text: str = "", **manifest: Any) -> Host:
    base = everything(H200)
    state = replace(base.artifacts["cuda12"], status=status, text=text, manifest=manifest)
    return replace(base, artifacts={**base.artifacts, "cuda12": state})


def _rows(*archs: str, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    return [{"kernel": name, "ops": [], "archs": list(archs)} for name in sorted(EVERY_KERNEL) if name not in without]


_LEFT_OUT = [{"kernel": "machete", "arch": "sm_90a", "reason": "left out by the image: no CUTLASS"}]
HOSTS |= {f"ALL-{name}": everything(host) for name, host in HOSTS.items()}
HOSTS |= {
    "ALL-H200-NO-ARTIFACTS": _cuda_wheel(kernels=_rows("sm_80", "sm_90a", without=NO_ARTIFACTS)),
    "ALL-H200-SKIPPED": _cuda_wheel(kernels=_rows("sm_90a", without=("machete",)), skipped=_LEFT_OUT),
    "ALL-H200-SM80-WHEEL": _cuda_wheel(kernels=_rows("sm_80")),
    "ALL-H200-WRONG-ABI": _cuda_wheel("wrong_abi", "undefined symbol: _ZN3c104impl"),
    "ALL-H200-LOAD-FAILS": _cuda_wheel("failed", "libnvrtc.so.12: cannot open shared object file"),
    "ALL-H200-NEW-DRIVER": _cuda_wheel(kernels=_rows("sm_90a"), driver="550"),
    "ALL-H200-NO-PACKAGES": replace(everything(H200), versions={"torch": "2.13.0"}),
    "ALL-H200-OLD-PACKAGES": replace(
        everything(H200), versions={"torch": "2.13.0", "bitblas": "0.1.0.dev1", "bitsandbytes": "0.48.1"}
    ),
}
HOSTS["ALL-H200-OLD-DRIVER"] = replace(
    HOSTS["ALL-H200-NEW-DRIVER"], versions={**HOSTS["ALL-H200-NEW-DRIVER"].versions, "driver": "525.60.13"}
)

_PORTABLE = next(spec for spec in KERNELS if spec.kernel == "panel_dequant")
RECORDS: dict[str, tuple[KernelSpec, ...]] = {
    "": KERNELS,
    "few-rows": (replace(_PORTABLE, shape=replace(_PORTABLE.shape, m_max=32)),),
}
"""Registries of the golden table: the real one, and made-up ones for codes that no record produces."""
