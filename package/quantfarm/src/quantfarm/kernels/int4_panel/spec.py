"""Declarations of the native CPU kernel: int4 codes in column panels, scaled by group on the accumulator."""

from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import (
    UNDECLARED,
    Accepts,
    Artifact,
    ArtifactKind,
    Features,
    KernelSpec,
    ShapeRule,
    Targets,
    Tolerance,
    Toolchain,
)

_TOLERANCE = Tolerance(
    derivation="affine A16, scale on the accumulator",
    cap={"float16": 5e-4, "bfloat16": 2e-3, "float32": 2e-6},
    floor={"float16": 1e-4, "bfloat16": 5e-4, "float32": 1e-6},
)
_FEATURES = Features(
    bias=True,
    training=False,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=UNDECLARED,
    deterministic=True,
    keeps_source=False,
)
_TOOLCHAIN = Toolchain(torch="2.10", triton="", driver="", torch_ops=())
_TARGETS = {
    DEVICE.CPU: Targets(
        archs=(parse_arch("x86_64_avx2"), parse_arch("x86_64_avx512"), parse_arch("x86_64_avx512_vnni")),
        open_range=False,
    ),
}
_ARTIFACT = Artifact(
    kind=ArtifactKind.NATIVE,
    library="cpu",
    ops=("int4_panel_pack", "int4_panel_unpack", "int4_panel_mm"),
)
_GROUPS = (-1, 16, 32, 64, 128, 256, 512)
_SHAPE = ShapeRule(k_multiple=8, n_multiple=1, k_min=8, n_min=1, pads_k=False, short_last_group=False)
_NOTES = ("the name promises AVX512 with BF16 support, so a processor without it is refused",)

GPTQ = KernelSpec(
    backend=BACKEND.GPTQ_TORCH_CPU_AVX512,
    kernel="int4_panel",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ, FORMAT.GPTQ_V2),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=_GROUPS,
            sym=(True, False),
            act_order=(True, False),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16", "float32"),
    shape=_SHAPE,
    devices=_TARGETS,
    platforms=("linux",),
    device_limits={},
    cpu_features=("avx512_bf16",),
    artifact=_ARTIFACT,
    toolchain=_TOOLCHAIN,
    dependencies={},
    features=_FEATURES,
    tolerance=_TOLERANCE,
    priorities={FORMAT.GPTQ: 120, FORMAT.GPTQ_V2: 120},
    origin="own work",
    licence="Apache-2.0",
    maintainers=("quantfarm developers",),
    notes=_NOTES,
)

AWQ = KernelSpec(
    backend=BACKEND.AWQ_TORCH_CPU_AVX512,
    kernel="int4_panel",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMM,),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=_GROUPS,
            sym=(True, False),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=8, n_multiple=8, k_min=8, n_min=8, pads_k=False, short_last_group=False),
    devices=_TARGETS,
    platforms=("linux",),
    device_limits={},
    cpu_features=("avx512_bf16",),
    artifact=_ARTIFACT,
    toolchain=_TOOLCHAIN,
    dependencies={},
    features=_FEATURES,
    tolerance=_TOLERANCE,
    priorities={FORMAT.GEMM: 120},
    origin="own work",
    licence="Apache-2.0",
    maintainers=("quantfarm developers",),
    notes=_NOTES,
)
