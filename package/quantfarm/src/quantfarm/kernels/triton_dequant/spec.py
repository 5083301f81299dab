"""Declarations of the Triton kernels that decode tiles of affine codes for the tensor cores."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, CUDA, CUDA_AND_ROCM, LICENCE, MAINTAINERS, TORCH_AND_TRITON, TRITON
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule

_FEATURES = Features(
    bias=True,
    training=True,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=True,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)

GPTQ = KernelSpec(
    backend=BACKEND.GPTQ_TRITON,
    kernel="triton_dequant",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ, FORMAT.GPTQ_V2),
            weight_kind=WeightKind.INT,
            bits=(2, 4, 8),
            group_sizes=(-1, 16, 32, 64, 128, 256, 512, 1024),
            sym=(True, False),
            act_order=(True, False),
        ),
    ),
    pack_dtypes=("int8", "int16", "int32"),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=32, n_multiple=32, k_min=1, n_min=32, pads_k=True, short_last_group=True),
    devices=CUDA,
    platforms=("linux", "win32"),
    device_limits={},
    cpu_features=(),
    artifact=TRITON,
    toolchain=TORCH_AND_TRITON,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GPTQ: 40, FORMAT.GPTQ_V2: 40},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
)

AWQ = KernelSpec(
    backend=BACKEND.AWQ_GEMM_TRITON,
    kernel="triton_dequant",
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
    activations=("float16",),
    shape=ShapeRule(k_multiple=32, n_multiple=8, k_min=32, n_min=8, pads_k=False, short_last_group=False),
    devices=CUDA_AND_ROCM,
    platforms=("linux", "win32"),
    device_limits={},
    cpu_features=(),
    artifact=TRITON,
    toolchain=TORCH_AND_TRITON,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GEMM: 50},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
)
