"""Declarations of the kernel for few rows over interleaved 16-bit words: two formats, one layout."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, CUDA, CUDA_LIBRARY, LICENCE, MAINTAINERS, TORCH
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

GEMV_FAST = KernelSpec(
    backend=BACKEND.AWQ_GEMV_FAST,
    kernel="awq_interleaved",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMV_FAST,),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 32, 64, 128),
            sym=(True, False),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int16",),
    activations=("float16",),
    shape=ShapeRule(k_multiple=64, n_multiple=4, k_min=64, n_min=4, pads_k=False, short_last_group=False),
    devices=CUDA,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GEMV_FAST: 30},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=(
        "group size 16 can not work in this layout",
        "the loader sets the model's dtype to float16",
    ),
)

LLM_AWQ = KernelSpec(
    backend=BACKEND.AWQ_GEMV_FAST,
    kernel="awq_interleaved",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.LLM_AWQ,),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 32, 64, 128),
            sym=(True, False),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int16",),
    activations=("float16",),
    shape=ShapeRule(k_multiple=64, n_multiple=4, k_min=64, n_min=4, pads_k=False, short_last_group=False),
    devices=CUDA,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=CUDA_LIBRARY,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.LLM_AWQ: 100},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=(
        "group size 16 can not work in this layout",
        "the loader sets the model's dtype to float16",
    ),
    variant="llm_awq",
)
