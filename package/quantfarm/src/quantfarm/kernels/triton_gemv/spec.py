"""Declarations of the Triton kernel for few rows over the transposed AWQ layout. Most of its facts are unknown."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, CUDA_AND_ROCM, LICENCE, MAINTAINERS, NOT_WRITTEN, TORCH_AND_TRITON, TRITON
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, KernelSpec, ShapeRule

AWQ = KernelSpec(
    backend=BACKEND.AWQ_GEMV_TRITON,
    kernel="triton_gemv",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMV,),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=UNDECLARED,
            sym=UNDECLARED,
            act_order=UNDECLARED,
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16",),
    shape=ShapeRule(
        k_multiple=UNDECLARED, n_multiple=UNDECLARED, k_min=1, n_min=1, pads_k=False, short_last_group=False
    ),
    devices=CUDA_AND_ROCM,
    platforms=("linux",),
    device_limits={},
    cpu_features=(),
    artifact=TRITON,
    toolchain=TORCH_AND_TRITON,
    dependencies={},
    features=NOT_WRITTEN,
    tolerance=AFFINE,
    priorities={FORMAT.GEMV: 0},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request="gradients run through a temporary dense weight",
)
