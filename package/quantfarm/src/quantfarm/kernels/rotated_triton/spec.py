"""Declarations of the Triton kernel of pairwise-rotated weights."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import CUDA_AND_ROCM, LICENCE, MAINTAINERS, ROTATED, TORCH_AND_TRITON, TRITON
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule

_FEATURES = Features(
    bias=True,
    training=True,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=True,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)

PARO = KernelSpec(
    backend=BACKEND.PAROQUANT_TRITON,
    kernel="rotated_triton",
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
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=False, short_last_group=False),
    devices=CUDA_AND_ROCM,
    platforms=("linux", "win32"),
    device_limits={},
    cpu_features=(),
    artifact=TRITON,
    toolchain=TORCH_AND_TRITON,
    dependencies={},
    features=_FEATURES,
    tolerance=ROTATED,
    priorities={FORMAT.PAROQUANT: 0},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request="gradients force a dense plan",
)
