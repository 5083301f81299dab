"""Declarations of the 8-bit path through torch's int8 operator for CPUs, groups as stored."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, CPU, LICENCE, MAINTAINERS, PORTABLE
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import Accepts, Features, KernelSpec, ShapeRule, Toolchain

_INT8 = Toolchain(torch="2.10", triton="", driver="", torch_ops=("aten::_int_mm",))
_FEATURES = Features(
    bias=True,
    training=False,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=False,
    deterministic=True,
    keeps_source=True,
)

GPTQ = KernelSpec(
    backend=BACKEND.GPTQ_TORCH_INT8,
    kernel="int8_channels",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ, FORMAT.GPTQ_V2),
            weight_kind=WeightKind.INT,
            bits=(8,),
            group_sizes=(-1, 16, 32, 64, 128),
            sym=(True, False),
            act_order=(True, False),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices=CPU,
    platforms=("linux", "win32"),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=_INT8,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GPTQ: 0, FORMAT.GPTQ_V2: 0},
    origin="own work",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request="every call adds an int8 copy of the weight to the memory it needs",
    notes=(
        "8-bit only, never an expansion of 4-bit codes",
        "many rows, and rows with a value that is not finite, are multiplied over decoded tiles instead",
    ),
)

AWQ = KernelSpec(
    backend=BACKEND.AWQ_TORCH_INT8,
    kernel="int8_channels",
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
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=False, short_last_group=False),
    devices=CPU,
    platforms=("linux", "win32"),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=_INT8,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GEMM: 0},
    origin="nothing will be written for it",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request="retired",
    retired="use AUTO or AWQ_TORCH",
)
