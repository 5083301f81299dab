"""Declarations of the engines: whole programs that take a checkpoint over. Their own kernels decide everything else."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import AFFINE, ANYWHERE, ENGINE, LICENCE, MAINTAINERS, NOT_WRITTEN
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import Accepts, KernelSpec, ShapeRule, Toolchain

_OWN_TOOLS = Toolchain(torch="", triton="", driver="", torch_ops=())
_SHAPE = ShapeRule(k_multiple=1, n_multiple=1, k_min=1, n_min=1, pads_k=True, short_last_group=True)
_WHY = "an engine takes the whole model over; it is never an automatic choice"

VLLM_GPTQ = KernelSpec(
    backend=BACKEND.VLLM,
    kernel="external_engine",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(formats=(FORMAT.GPTQ,), weight_kind=WeightKind.INT, bits=(), group_sizes=(), sym=(), act_order=()),
    ),
    pack_dtypes=(),
    activations=(),
    shape=_SHAPE,
    devices=ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=ENGINE,
    toolchain=_OWN_TOOLS,
    dependencies={"vllm": ""},
    features=NOT_WRITTEN,
    tolerance=AFFINE,
    priorities={},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request=_WHY,
)

VLLM_AWQ = KernelSpec(
    backend=BACKEND.VLLM,
    kernel="external_engine",
    method=METHOD.AWQ,
    accepts=(
        Accepts(formats=(FORMAT.GEMM,), weight_kind=WeightKind.INT, bits=(), group_sizes=(), sym=(), act_order=()),
    ),
    pack_dtypes=(),
    activations=(),
    shape=_SHAPE,
    devices=ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=ENGINE,
    toolchain=_OWN_TOOLS,
    dependencies={"vllm": ""},
    features=NOT_WRITTEN,
    tolerance=AFFINE,
    priorities={},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request=_WHY,
)

SGLANG_GPTQ = KernelSpec(
    backend=BACKEND.SGLANG,
    kernel="external_engine",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ, FORMAT.GPTQ_V2, FORMAT.MARLIN),
            weight_kind=WeightKind.INT,
            bits=(),
            group_sizes=(),
            sym=(),
            act_order=(),
        ),
    ),
    pack_dtypes=(),
    activations=(),
    shape=_SHAPE,
    devices=ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=ENGINE,
    toolchain=_OWN_TOOLS,
    dependencies={"sglang": ""},
    features=NOT_WRITTEN,
    tolerance=AFFINE,
    priorities={},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request=_WHY,
)

SGLANG_AWQ = KernelSpec(
    backend=BACKEND.SGLANG,
    kernel="external_engine",
    method=METHOD.AWQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GEMM, FORMAT.MARLIN),
            weight_kind=WeightKind.INT,
            bits=(),
            group_sizes=(),
            sym=(),
            act_order=(),
        ),
    ),
    pack_dtypes=(),
    activations=(),
    shape=_SHAPE,
    devices=ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=ENGINE,
    toolchain=_OWN_TOOLS,
    dependencies={"sglang": ""},
    features=NOT_WRITTEN,
    tolerance=AFFINE,
    priorities={},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request=_WHY,
)
