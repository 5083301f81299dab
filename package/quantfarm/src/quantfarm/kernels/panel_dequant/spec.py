"""Declarations of the portable path: decode a panel of columns, multiply, go on. Runs wherever torch runs."""

from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import (
    Accepts,
    Artifact,
    ArtifactKind,
    Features,
    KernelSpec,
    ShapeRule,
    Targets,
    Tolerance,
    Toolchain,
)

_TOLERANCE = Tolerance(
    derivation="affine A16, weights decoded and reduced in fp32",
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
    keeps_source=False,
)
_TOOLCHAIN = Toolchain(torch="2.10", triton="", driver="", torch_ops=())
_ANYWHERE = {DEVICE.ALL: Targets(archs=(), open_range=True)}

GPTQ = KernelSpec(
    backend=BACKEND.GPTQ_TORCH,
    kernel="panel_dequant",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ, FORMAT.GPTQ_V2),
            weight_kind=WeightKind.INT,
            bits=(2, 3, 4, 8),
            group_sizes=(-1, 16, 32, 64, 128, 256, 512, 1024),
            sym=(True, False),
            act_order=(True, False),
        ),
        Accepts(
            formats=(FORMAT.GPTQ_P,),
            weight_kind=WeightKind.INT,
            bits=(2, 3, 4, 5, 6, 7, 8),
            group_sizes=(-1, 16, 32, 64, 128, 256, 512, 1024),
            sym=(True, False),
            act_order=(True, False),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True),
    devices=_ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=Artifact(kind=ArtifactKind.NONE),
    toolchain=_TOOLCHAIN,
    dependencies={},
    features=_FEATURES,
    tolerance=_TOLERANCE,
    priorities={FORMAT.GPTQ: 20, FORMAT.GPTQ_V2: 20, FORMAT.GPTQ_P: 20},
    origin="own work",
    licence="Apache-2.0",
    maintainers=("quantfarm developers",),
)

AWQ = KernelSpec(
    backend=BACKEND.AWQ_TORCH,
    kernel="panel_dequant",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMM,),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 16, 32, 64, 128),
            sym=(True, False),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=1, n_multiple=8, k_min=1, n_min=8, pads_k=False, short_last_group=False),
    devices=_ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=Artifact(kind=ArtifactKind.NONE),
    toolchain=_TOOLCHAIN,
    dependencies={},
    features=_FEATURES,
    tolerance=_TOLERANCE,
    priorities={FORMAT.GEMM: 10},
    origin="own work",
    licence="Apache-2.0",
    maintainers=("quantfarm developers",),
)

AWQ_ROWS = KernelSpec(
    backend=BACKEND.AWQ_TORCH,
    kernel="panel_dequant",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMV,),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(-1, 32, 64, 128),
            sym=(True, False),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=8, n_multiple=1, k_min=8, n_min=1, pads_k=False, short_last_group=False),
    devices=_ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=Artifact(kind=ArtifactKind.NONE),
    toolchain=_TOOLCHAIN,
    dependencies={},
    features=_FEATURES,
    tolerance=_TOLERANCE,
    priorities={FORMAT.GEMV: 10},
    origin="own work",
    licence="Apache-2.0",
    maintainers=("quantfarm developers",),
    notes=("our own addition: without it no device but an NVIDIA one could run the format",),
    variant="gemv",
)

AWQ_INTERLEAVED = KernelSpec(
    backend=BACKEND.AWQ_TORCH,
    kernel="panel_dequant",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMV_FAST, FORMAT.LLM_AWQ),
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
    devices=_ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=Artifact(kind=ArtifactKind.NONE),
    toolchain=_TOOLCHAIN,
    dependencies={},
    features=_FEATURES,
    tolerance=_TOLERANCE,
    priorities={FORMAT.GEMV_FAST: 10, FORMAT.LLM_AWQ: 10},
    origin="own work",
    licence="Apache-2.0",
    maintainers=("quantfarm developers",),
    notes=("our own addition: without it no device but an NVIDIA one could run the two formats",),
    variant="gemv_fast",
)
