"""Declarations of FP8 weights with a scale for the tensor, for a row or for a block."""

from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.parts import LICENCE, MAINTAINERS, PORTABLE, TORCH, UNGATED
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import Accepts, Features, KernelSpec, ShapeRule, Tolerance

_TOLERANCE = Tolerance(
    derivation="narrow floats A16, weights decoded and reduced in fp32",
    cap={"float16": 5e-4, "bfloat16": 2e-3, "float32": 2e-6},
    floor={"float16": 1e-4, "bfloat16": 5e-4, "float32": 1e-6},
)
_FEATURES = Features(
    bias=True,
    training=True,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=True,
    deterministic=True,
    keeps_source=True,
)


FP8 = KernelSpec(
    backend=BACKEND.FP8_TORCH,
    kernel="fp8_scaled",
    method=METHOD.FP8,
    accepts=(
        Accepts(
            formats=(FORMAT.FP8,),
            weight_kind=WeightKind.FLOAT,
            bits=(8,),
            group_sizes=(-1,),
            sym=(),
            act_order=(),
        ),
        Accepts(
            formats=(FORMAT.MXFP4,),
            weight_kind=WeightKind.FLOAT,
            bits=(4,),
            group_sizes=(32,),
            sym=(),
            act_order=(),
        ),
        Accepts(
            formats=(FORMAT.NVFP4,),
            weight_kind=WeightKind.FLOAT,
            bits=(4,),
            group_sizes=(16,),
            sym=(),
            act_order=(),
        ),
    ),
    pack_dtypes=("int8", "int16", "int32", "int64"),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=False, short_last_group=False),
    devices={DEVICE.CPU: UNGATED, DEVICE.CUDA: UNGATED, DEVICE.ROCM: UNGATED, DEVICE.XPU: UNGATED, DEVICE.MPS: UNGATED},
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=_TOLERANCE,
    priorities={FORMAT.FP8: 15, FORMAT.MXFP4: 15, FORMAT.NVFP4: 15},
    origin="own work",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("blocks at the edges may be partial",),
)
