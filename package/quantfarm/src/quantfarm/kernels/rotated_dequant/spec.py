"""Declarations of the portable path of pairwise-rotated weights."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import ANYWHERE, LICENCE, MAINTAINERS, PORTABLE, ROTATED, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import Accepts, Features, KernelSpec, ShapeRule

_FEATURES = Features(
    bias=True,
    training=True,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=True,
    deterministic=True,
    keeps_source=False,
)

PARO = KernelSpec(
    backend=BACKEND.PAROQUANT_CUDA,
    kernel="rotated_dequant",
    method=METHOD.PARO,
    accepts=(
        Accepts(
            formats=(FORMAT.PAROQUANT,),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 16, 32, 64, 128),
            sym=(True,),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=2, n_multiple=8, k_min=2, n_min=8, pads_k=False, short_last_group=False),
    devices=ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=ROTATED,
    priorities={FORMAT.PAROQUANT: 55},
    origin="own work",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("declared for every device in spite of the backend's name",),
)
