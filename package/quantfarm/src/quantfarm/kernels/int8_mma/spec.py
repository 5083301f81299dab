"""Declarations of int4 weights with int8 activations, products summed as integers."""

from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.parts import CUDA_LIBRARY, LICENCE, MAINTAINERS, TORCH, W4A8
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule, Targets

_FEATURES = Features(
    bias=True,
    training=False,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=True,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)

QQQ = KernelSpec(
    backend=BACKEND.QQQ,
    kernel="int8_mma",
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
    devices={DEVICE.CUDA: Targets(archs=(), open_range=True, minimum=parse_arch("sm_80"))},
    platforms=("linux",),
    device_limits={},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=W4A8,
    priorities={FORMAT.QQQ: 100},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("ROCm is not declared: elsewhere it is declared and refused when it runs",),
)
