"""Declarations of the native kernel of vector-quantized weights."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import CUDA, CUDA_LIBRARY, LICENCE, MAINTAINERS, ROTATED, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule

_FEATURES = Features(
    bias=True,
    training=False,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=UNDECLARED,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)

VPTQ = KernelSpec(
    backend=BACKEND.VPTQ_CUDA,
    kernel="vector_lookup_cuda",
    method=METHOD.VPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.VPTQ,),
            weight_kind=WeightKind.VECTOR,
            bits=(1, 2, 3, 4, 5, 6, 7, 8),
            group_sizes=(),
            sym=UNDECLARED,
            act_order=UNDECLARED,
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices=CUDA,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=ROTATED,
    priorities={FORMAT.VPTQ: 100},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("before the portable record by the tie list: by name it could never be reached",),
)
