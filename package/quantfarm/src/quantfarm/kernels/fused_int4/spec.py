"""Declarations of the path through torch's fused int4 operators on CPUs, for every group size and dtype."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, CPU, LICENCE, MAINTAINERS, PORTABLE
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import Accepts, Features, KernelSpec, ShapeRule, Toolchain

_FUSED = Toolchain(
    torch="2.10",
    triton="",
    driver="",
    torch_ops=("aten::_convert_weight_to_int4pack_for_cpu", "aten::_weight_int4pack_mm_for_cpu"),
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
_AWQ_FEATURES = Features(
    bias=True,
    training=True,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=False,
    deterministic=True,
    keeps_source=True,
)
_NOTES = (
    "torchao, which can stand in for the CPU operators elsewhere, is not used",
    "more than a few rows, and fp32 activations, are multiplied over decoded tiles instead of by the operator",
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
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices=CPU,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=_FUSED,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GPTQ: 50, FORMAT.GPTQ_V2: 50},
    origin="own work",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=_NOTES,
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
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=8, k_min=1, n_min=8, pads_k=False, short_last_group=False),
    devices=CPU,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=_FUSED,
    dependencies={},
    features=_AWQ_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GEMM: 20},
    origin="own work",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=_NOTES,
)
