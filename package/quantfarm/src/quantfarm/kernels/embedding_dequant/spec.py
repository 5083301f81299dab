"""Declarations of the embedding table: rows of codes are looked up. Never a candidate for a linear layer."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, ANYWHERE, LICENCE, MAINTAINERS, PORTABLE, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule

_FEATURES = Features(
    bias=True,
    training=False,
    adapters=(),
    sharded_load=True,
    raw_packing=True,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)

GPTQ = KernelSpec(
    backend=BACKEND.GPTQ_TORCH,
    kernel="embedding_dequant",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ, FORMAT.GPTQ_V2, FORMAT.GPTQ_P),
            weight_kind=WeightKind.INT,
            bits=(2, 3, 4, 5, 6, 7, 8),
            group_sizes=(-1, 16, 32, 64, 128, 256, 512, 1024),
            sym=(True, False),
            act_order=(True, False),
        ),
    ),
    pack_dtypes=("int8", "int16", "int32"),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices=ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GPTQ: 20, FORMAT.GPTQ_V2: 20, FORMAT.GPTQ_P: 20},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    role="embedding",
)
