"""Declarations of the portable path of vector-quantized weights."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import ANYWHERE, LICENCE, MAINTAINERS, PORTABLE, ROTATED, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import Accepts, Features, KernelSpec, ShapeRule

_FEATURES = Features(
    bias=True,
    training=False,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=False,
    deterministic=True,
    keeps_source=True,
)

VPTQ = KernelSpec(
    backend=BACKEND.VPTQ_TORCH,
    kernel="vector_lookup",
    method=METHOD.VPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.VPTQ,),
            weight_kind=WeightKind.VECTOR,
            bits=(1, 2, 3, 4, 5, 6, 7, 8),
            group_sizes=(),
            sym=(),
            act_order=(),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices=ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=ROTATED,
    priorities={FORMAT.VPTQ: 100},
    origin="own work",
    licence=LICENCE,
    maintainers=MAINTAINERS,
)
