"""Declarations of the portable path of ggml types: every type that the reader knows."""

from quantfarm.declare.ggml import CODED, PLAIN
from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import ANYWHERE, GGUF_FLOAT, LICENCE, MAINTAINERS, PORTABLE, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import Accepts, Features, KernelSpec, ShapeRule

_FEATURES = Features(
    bias=True,
    training=True,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=True,
    deterministic=True,
    keeps_source=True,
)

GGUF = KernelSpec(
    backend=BACKEND.GGUF_TORCH,
    kernel="ggml_dequant",
    method=METHOD.GGUF,
    accepts=(
        Accepts(
            formats=(FORMAT.GGUF,),
            weight_kind=WeightKind.INT,
            bits=(1, 2, 3, 4, 5, 6, 8),
            group_sizes=(),
            sym=(),
            act_order=(),
            code_types=CODED,
        ),
        Accepts(
            formats=(FORMAT.GGUF,),
            weight_kind=WeightKind.FLOAT,
            bits=(16, 32),
            group_sizes=(),
            sym=(),
            act_order=(),
            code_types=PLAIN,
        ),
    ),
    pack_dtypes=("int8", "int16", "int32"),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices=ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=GGUF_FLOAT,
    priorities={FORMAT.GGUF: 15},
    origin="own work",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("the width follows the ggml type; 16 and 32 bits are plain floats that a file states as a type",),
)
