"""Declarations of the Ampere kernel: weights as the first operand of mma.sync, streamed by asynchronous copies."""

from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, CUDA_LIBRARY, LICENCE, MAINTAINERS, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule, Targets

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
    backend=BACKEND.MARLIN,
    kernel="marlin",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ, FORMAT.GPTQ_V2, FORMAT.MARLIN),
            weight_kind=WeightKind.INT,
            bits=(4, 8),
            group_sizes=(-1, 32, 64, 128),
            sym=(True,),
            act_order=(True, False),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=16, n_multiple=64, k_min=16, n_min=64, pads_k=False, short_last_group=False),
    devices={DEVICE.CUDA: Targets(archs=(), open_range=True, minimum=parse_arch("sm_75"))},
    platforms=("linux",),
    device_limits={},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GPTQ: 90, FORMAT.GPTQ_V2: 90, FORMAT.MARLIN: 90},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("stored zero points must equal 2^(bits-1), which is checked where the tensors are at hand",),
)

AWQ = KernelSpec(
    backend=BACKEND.MARLIN,
    kernel="marlin",
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
    shape=ShapeRule(k_multiple=16, n_multiple=64, k_min=16, n_min=64, pads_k=False, short_last_group=False),
    devices={DEVICE.CUDA: Targets(archs=(), open_range=True, minimum=parse_arch("sm_80"))},
    platforms=("linux",),
    device_limits={},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GEMM: 90, FORMAT.MARLIN: 90},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("8 bits are left out: no writer makes such files",),
)
