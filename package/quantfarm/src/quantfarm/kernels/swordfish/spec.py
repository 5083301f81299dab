"""Declarations of the Blackwell kernel: weights decoded into tensor memory, two main loops over one layout."""

from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, CUDA_LIBRARY, LICENCE, MAINTAINERS, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule, Targets

_BLACKWELL = {
    DEVICE.CUDA: Targets(
        archs=(parse_arch("sm_100a"), parse_arch("sm_103a"), parse_arch("sm_110a")),
        open_range=False,
    ),
}
_FEATURES = Features(
    bias=True,
    training=False,
    adapters=("lora",),
    sharded_load=False,
    raw_packing=False,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)

GPTQ = KernelSpec(
    backend=BACKEND.SWORDFISH,
    kernel="swordfish",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ,),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 32, 64, 128),
            sym=(True, False),
            act_order=(True, False),
        ),
        Accepts(
            formats=(FORMAT.GPTQ,),
            weight_kind=WeightKind.INT,
            bits=(8,),
            group_sizes=(-1, 32, 64, 128),
            sym=(True,),
            act_order=(True, False),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=64, n_multiple=64, k_min=64, n_min=64, pads_k=False, short_last_group=False),
    devices=_BLACKWELL,
    platforms=("linux",),
    device_limits={},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GPTQ: 101},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("8-bit codes must be symmetric",),
)

AWQ = KernelSpec(
    backend=BACKEND.SWORDFISH,
    kernel="swordfish",
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
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=64, n_multiple=64, k_min=64, n_min=64, pads_k=False, short_last_group=False),
    devices=_BLACKWELL,
    platforms=("linux",),
    device_limits={},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GEMM: 101},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
)
