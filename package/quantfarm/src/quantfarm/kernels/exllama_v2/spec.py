"""Declarations of the half2 kernel for few rows: 4-bit codes shuffled for lop3, fp32 accumulation."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, CUDA, CUDA_LIBRARY, LICENCE, MAINTAINERS, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule

_FEATURES = Features(
    bias=True,
    training=False,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=False,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)

GPTQ = KernelSpec(
    backend=BACKEND.GPTQ_EXLLAMA_V2,
    kernel="exllama_v2",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ, FORMAT.GPTQ_V2),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 32, 64, 128),
            sym=(True, False),
            act_order=(True, False),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=32, n_multiple=32, k_min=32, n_min=32, pads_k=False, short_last_group=False),
    devices=CUDA,
    platforms=("linux", "win32"),
    device_limits={},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GPTQ: 80, FORMAT.GPTQ_V2: 80},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
)

AWQ = KernelSpec(
    backend=BACKEND.AWQ_EXLLAMA_V2,
    kernel="exllama_v2",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMM,),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 32, 64, 128),
            sym=(True, False),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=32, n_multiple=32, k_min=32, n_min=32, pads_k=False, short_last_group=False),
    devices=CUDA,
    platforms=("linux", "win32"),
    device_limits={},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GEMM: 80},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
)
