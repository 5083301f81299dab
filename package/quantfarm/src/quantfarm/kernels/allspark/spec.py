"""Declarations of the 8-bit kernel with one scale a channel, for Ampere to Blackwell and for two RDNA4 targets."""

from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, LICENCE, MAINTAINERS, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Artifact, ArtifactKind, Features, KernelSpec, ShapeRule, Targets

_TARGETS = {
    DEVICE.CUDA: Targets(archs=(), open_range=True, minimum=parse_arch("sm_80"), maximum=parse_arch("sm_120")),
    DEVICE.ROCM: Targets(archs=(parse_arch("gfx1200"), parse_arch("gfx1201")), open_range=False),
}
_ARTIFACT = Artifact(kind=ArtifactKind.NATIVE, library="cuda12", elsewhere={DEVICE.ROCM: "rocm7"})
_FEATURES = Features(
    bias=True,
    training=False,
    adapters=(),
    sharded_load=False,
    raw_packing=False,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)
_AWQ_FEATURES = Features(
    bias=True,
    training=False,
    adapters=(),
    sharded_load=False,
    raw_packing=UNDECLARED,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)

GPTQ = KernelSpec(
    backend=BACKEND.ALLSPARK,
    kernel="allspark",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ, FORMAT.GPTQ_V2),
            weight_kind=WeightKind.INT,
            bits=(8,),
            group_sizes=(-1,),
            sym=(True,),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=16, n_multiple=16, k_min=16, n_min=16, pads_k=False, short_last_group=False),
    devices=_TARGETS,
    platforms=UNDECLARED,
    device_limits={},
    cpu_features=(),
    artifact=_ARTIFACT,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GPTQ: 0, FORMAT.GPTQ_V2: 0},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request="holds native buffers beside the checkpoint tensors",
)

AWQ = KernelSpec(
    backend=BACKEND.ALLSPARK,
    kernel="allspark",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMM,),
            weight_kind=WeightKind.INT,
            bits=(8,),
            group_sizes=(-1,),
            sym=(True, False),
            act_order=UNDECLARED,
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=16, n_multiple=16, k_min=16, n_min=16, pads_k=False, short_last_group=False),
    devices=_TARGETS,
    platforms=UNDECLARED,
    device_limits={},
    cpu_features=(),
    artifact=_ARTIFACT,
    toolchain=TORCH,
    dependencies={},
    features=_AWQ_FEATURES,
    tolerance=AFFINE,
    priorities={FORMAT.GEMM: 0},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request="holds native buffers beside the checkpoint tensors",
)
