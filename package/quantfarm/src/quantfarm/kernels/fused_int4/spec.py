"""Declarations of the path through torch's fused int4 operators on CPUs and XPUs."""

from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, LICENCE, MAINTAINERS, PORTABLE, UNGATED
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule, Toolchain

_FUSED = Toolchain(
    torch="2.10",
    triton="",
    driver="",
    torch_ops=(),
    family_ops={
        DEVICE.CPU: ("aten::_convert_weight_to_int4pack_for_cpu", "aten::_weight_int4pack_mm_for_cpu"),
        DEVICE.XPU: ("aten::_weight_int4pack_mm_with_scales_and_zeros",),
    },
)
_FEATURES = Features(
    bias=True,
    training=True,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=True,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)
_AWQ_FEATURES = Features(
    bias=True,
    training=True,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=False,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)

GPTQ = KernelSpec(
    backend=BACKEND.GPTQ_TORCH_FUSED,
    kernel="fused_int4",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ, FORMAT.GPTQ_V2),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 16, 32, 64, 128),
            sym=(True, False),
            act_order=(True, False),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float32", "float16", "bfloat16"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices={DEVICE.CPU: UNGATED, DEVICE.XPU: UNGATED},
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=_FUSED,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GPTQ: 50, FORMAT.GPTQ_V2: 50},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("torchao, which can stand in for the CPU operators elsewhere, is not used",),
)

AWQ = KernelSpec(
    backend=BACKEND.AWQ_TORCH_FUSED,
    kernel="fused_int4",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMM,),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 16, 32, 64, 128),
            sym=(True, False),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float32", "float16", "bfloat16"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices={DEVICE.CPU: UNGATED, DEVICE.XPU: UNGATED},
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=_FUSED,
    dependencies={},
    features=_AWQ_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GEMM: 20},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
)
