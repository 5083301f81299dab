"""Declarations of the path through torch's own int4 operators for CPUs."""

from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import (
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
    derivation="CPU int4 operator of torch, metadata as coarse and fine bf16 pairs (2^-17), its rounding undone",
    cap={"float16": 5e-4, "bfloat16": 2e-3},
    floor={"float16": 1e-4, "bfloat16": 5e-4},
)
_FEATURES = Features(
    bias=True,
    training=True,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=True,
    deterministic=True,
    keeps_source=True,
)
_TOOLCHAIN = Toolchain(
    torch="2.10",
    triton="",
    driver="",
    torch_ops=("aten::_convert_weight_to_int4pack_for_cpu", "aten::_weight_int4pack_mm_for_cpu"),
)
_CPU = {DEVICE.CPU: Targets(archs=(), open_range=True)}
_GROUPS = (32, 64, 128, 256)
_NOTES = ("more than a few rows are multiplied over decoded tiles instead of by the operator, which is slower there",)

GPTQ = KernelSpec(
    backend=BACKEND.GPTQ_TORCH_ATEN,
    kernel="aten_int4",
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
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices=_CPU,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=Artifact(kind=ArtifactKind.NONE),
    toolchain=_TOOLCHAIN,
    dependencies={},
    features=_FEATURES,
    tolerance=_TOLERANCE,
    priorities={FORMAT.GPTQ: 110, FORMAT.GPTQ_V2: 110},
    origin="own work over torch operators",
    licence="Apache-2.0",
    maintainers=("quantfarm developers",),
    notes=_NOTES,
)

AWQ = KernelSpec(
    backend=BACKEND.AWQ_TORCH_ATEN,
    kernel="aten_int4",
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
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=1, n_multiple=8, k_min=1, n_min=8, pads_k=False, short_last_group=False),
    devices=_CPU,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=Artifact(kind=ArtifactKind.NONE),
    toolchain=_TOOLCHAIN,
    dependencies={},
    features=_FEATURES,
    tolerance=_TOLERANCE,
    priorities={FORMAT.GEMM: 110},
    origin="own work over torch operators",
    licence="Apache-2.0",
    maintainers=("quantfarm developers",),
    notes=_NOTES,
)
