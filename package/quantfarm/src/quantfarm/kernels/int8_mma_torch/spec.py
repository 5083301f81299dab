"""Declarations of the portable path of int4 weights with int8 activations."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import ANYWHERE, LICENCE, MAINTAINERS, PORTABLE, TORCH, W4A8
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import Accepts, Features, KernelSpec, ShapeRule

_FEATURES = Features(
    bias=True,
    training=False,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=True,
    deterministic=True,
    keeps_source=False,
)

QQQ = KernelSpec(
    backend=BACKEND.QQQ_TORCH,
    kernel="int8_mma_torch",
    method=METHOD.QQQ,
    accepts=(
        Accepts(
            formats=(FORMAT.QQQ,),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 128),
            sym=(True,),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(
        k_multiple=64,
        n_multiple=64,
        k_min=64,
        n_min=64,
        pads_k=False,
        short_last_group=False,
        pairs=((128, 64), (64, 128)),
    ),
    devices=ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=W4A8,
    priorities={FORMAT.QQQ: 90},
    origin="own work",
    licence=LICENCE,
    maintainers=MAINTAINERS,
)
