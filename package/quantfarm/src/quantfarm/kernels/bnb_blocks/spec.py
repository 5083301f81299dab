"""Declarations of the path through the package bitsandbytes: blocks of codes with an absolute maximum each."""

from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.parts import LICENCE, MAINTAINERS, PORTABLE, TABLE, TORCH, UNGATED
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import Accepts, Features, KernelSpec, ShapeRule

_FEATURES = Features(
    bias=True,
    training=False,
    adapters=(),
    sharded_load=True,
    raw_packing=True,
    deterministic=True,
    keeps_source=True,
)

BITSANDBYTES = KernelSpec(
    backend=BACKEND.BITSANDBYTES,
    kernel="bnb_blocks",
    method=METHOD.BITSANDBYTES,
    accepts=(
        Accepts(
            formats=(FORMAT.BITSANDBYTES,),
            weight_kind=WeightKind.TABLE,
            bits=(4,),
            group_sizes=(),
            sym=(),
            act_order=(),
            code_types=("nf4", "fp4"),
        ),
        Accepts(
            formats=(FORMAT.BITSANDBYTES,),
            weight_kind=WeightKind.INT,
            bits=(8,),
            group_sizes=(),
            sym=(),
            act_order=(),
            code_types=("int8",),
        ),
    ),
    pack_dtypes=("int8", "int16", "int32", "int64"),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=False, short_last_group=False),
    devices={DEVICE.CPU: UNGATED, DEVICE.CUDA: UNGATED, DEVICE.ROCM: UNGATED},
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={"bitsandbytes": "0.49.0"},
    features=_FEATURES,
    tolerance=TABLE,
    priorities={FORMAT.BITSANDBYTES: 40},
    origin="own work over the package bitsandbytes, which is installed apart and not changed",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=(
        "a block size takes the place of the group size; 64 is usual",
        "activations stay as they are, also beside int8 weights; 8-bit rows are decoded by torch alone",
    ),
)
