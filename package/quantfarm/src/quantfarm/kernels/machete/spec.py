"""Declarations of the Hopper kernel: warp-group products with weights decoded into registers."""

from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, CUDA_LIBRARY, LICENCE, MAINTAINERS, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule, Targets

_SM_90A = {DEVICE.CUDA: Targets(archs=(parse_arch("sm_90a"),), open_range=False)}
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
    backend=BACKEND.MACHETE,
    kernel="machete",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ,),
            weight_kind=WeightKind.INT,
            bits=(4, 8),
            group_sizes=(-1, 64, 128),
            sym=(True, False),
            act_order=(True, False),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=64, n_multiple=128, k_min=64, n_min=128, pads_k=False, short_last_group=False),
    devices=_SM_90A,
    platforms=("linux",),
    device_limits={"shared_memory_per_block_optin": 204800},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GPTQ: 100},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("built for sm_90a only; a newer device is no substitute",),
)

AWQ = KernelSpec(
    backend=BACKEND.MACHETE,
    kernel="machete",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMM, FORMAT.MARLIN),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 32, 64, 128),
            sym=(True, False),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=64, n_multiple=128, k_min=64, n_min=128, pads_k=False, short_last_group=False),
    devices=_SM_90A,
    platforms=("linux",),
    device_limits={"shared_memory_per_block_optin": 204800},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GEMM: 100, FORMAT.MARLIN: 100},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=(
        "8 bits are left out: no writer makes such files",
        "a loader rule sends the format MARLIN elsewhere",
    ),
)
