"""Declarations of the Triton kernel of ggml types."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import CUDA_AND_ROCM, GGUF_FLOAT, LICENCE, MAINTAINERS, TORCH_AND_TRITON, TRITON
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

GGUF = KernelSpec(
    backend=BACKEND.GGUF_TRITON,
    kernel="ggml_triton",
    method=METHOD.GGUF,
    accepts=(
        Accepts(
            formats=(FORMAT.GGUF,),
            weight_kind=WeightKind.INT,
            bits=(1, 4, 5, 6),
            group_sizes=(),
            sym=(),
            act_order=(),
            code_types=("q1_0", "q1_0_g128", "q4_k", "q5_k", "q6_k"),
        ),
    ),
    pack_dtypes=("int8", "int16", "int32"),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices=CUDA_AND_ROCM,
    platforms=("linux", "win32"),
    device_limits={},
    cpu_features=(),
    artifact=TRITON,
    toolchain=TORCH_AND_TRITON,
    dependencies={},
    features=_FEATURES,
    tolerance=GGUF_FLOAT,
    priorities={FORMAT.GGUF: 45},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    notes=("q1_0 comes from the loader rule for native files",),
)
