"""Declarations of the path through the package bitblas, which compiles tiles for the shape at hand."""

from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, LICENCE, MAINTAINERS, PORTABLE, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule, Targets

_TARGETS = {DEVICE.CUDA: Targets(archs=(), open_range=True, maximum=parse_arch("sm_90"))}
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
    backend=BACKEND.GPTQ_BITBLAS,
    kernel="bitblas_tiles",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.BITBLAS, FORMAT.GPTQ, FORMAT.GPTQ_V2),
            weight_kind=WeightKind.INT,
            bits=(2, 4, 8),
            group_sizes=(-1, 32, 64, 128),
            sym=(True,),
            act_order=(False,),
            activations=("float16",),
        ),
        Accepts(
            formats=(FORMAT.BITBLAS, FORMAT.GPTQ, FORMAT.GPTQ_V2),
            weight_kind=WeightKind.INT,
            bits=(2, 4, 8),
            group_sizes=(-1, 32, 64, 128),
            sym=(False,),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=16, n_multiple=16, k_min=16, n_min=16, pads_k=False, short_last_group=False),
    devices=_TARGETS,
    platforms=("linux", "win32"),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={"bitblas": "0.1.0.post1"},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.BITBLAS: 30, FORMAT.GPTQ: 30, FORMAT.GPTQ_V2: 30},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=(
        "a target newer than sm_90 is refused; elsewhere it is lowered quietly",
        "symmetric codes with bf16 activations are refused",
    ),
)

AWQ = KernelSpec(
    backend=BACKEND.AWQ_BITBLAS,
    kernel="bitblas_tiles",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMM, FORMAT.BITBLAS),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 32, 64, 128),
            sym=(True, False),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=16, n_multiple=16, k_min=16, n_min=16, pads_k=False, short_last_group=False),
    devices=_TARGETS,
    platforms=("linux", "win32"),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={"bitblas": "0.1.0.post1"},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GEMM: 0, FORMAT.BITBLAS: 30},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request="GEMM words are repacked into a second copy first",
    notes=("a target newer than sm_90 is refused; elsewhere it is lowered quietly",),
)
