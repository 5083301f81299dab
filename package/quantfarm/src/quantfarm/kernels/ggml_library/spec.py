"""Declarations of the path through the ggml library that the package llama-cpp-python carries."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import CPU, CUDA, GGUF_FLOAT, LICENCE, MAINTAINERS, PORTABLE, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule

_FEATURES = Features(
    bias=True,
    training=False,
    adapters=("lora",),
    sharded_load=True,
    raw_packing=True,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)

ON_CPU = KernelSpec(
    backend=BACKEND.GGUF_CPP_CPU,
    kernel="ggml_library",
    method=METHOD.GGUF,
    accepts=(
        Accepts(
            formats=(FORMAT.GGUF,),
            weight_kind=WeightKind.INT,
            bits=(4, 5, 6, 8),
            group_sizes=(),
            sym=(),
            act_order=(),
        ),
    ),
    pack_dtypes=("int8", "int16", "int32"),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices=CPU,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={"llama-cpp-python": ""},
    features=_FEATURES,
    tolerance=GGUF_FLOAT,
    priorities={FORMAT.GGUF: 25},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
)

ON_CUDA = KernelSpec(
    backend=BACKEND.GGUF_CPP_CUDA,
    kernel="ggml_library",
    method=METHOD.GGUF,
    accepts=(
        Accepts(
            formats=(FORMAT.GGUF,),
            weight_kind=WeightKind.INT,
            bits=(4, 5, 6, 8),
            group_sizes=(),
            sym=(),
            act_order=(),
        ),
    ),
    pack_dtypes=("int8", "int16", "int32"),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices=CUDA,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={"llama-cpp-python": ""},
    features=_FEATURES,
    tolerance=GGUF_FLOAT,
    priorities={FORMAT.GGUF: 35},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("needs a ggml library built with CUDA",),
)
