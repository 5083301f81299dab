"""Declarations of the kernel for few rows over the AWQ GEMV layout."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, CUDA, CUDA_LIBRARY, LICENCE, MAINTAINERS, TORCH
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

GEMV = KernelSpec(
    backend=BACKEND.AWQ_GEMV,
    kernel="awq_rows",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMV,),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 64, 128),
            sym=(True, False),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16",),
    shape=ShapeRule(k_multiple=8, n_multiple=64, k_min=8, n_min=64, pads_k=False, short_last_group=False),
    devices=CUDA,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GEMV: 40},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("group size 16 can not work in this layout",),
)
