"""Declarations of int4 weights with activations quantized to NVFP4 on the fly."""

from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import BACKEND, DEVICE, FORMAT, METHOD
from quantfarm.declare.parts import LICENCE, MAINTAINERS, NARROW_FLOAT, TRITON
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, Features, KernelSpec, ShapeRule, Targets, Toolchain

_NVFP4 = Toolchain(
    torch="2.10",
    triton="2.0.0",
    driver="",
    torch_ops=(
        "torch.float4_e2m1fn_x2",
        "torch.nn.functional.scaled_mm",
        "torch.nn.functional.ScalingType",
        "torch.nn.functional.SwizzleType",
    ),
    triton_mixed="3.6.0",
)
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
    backend=BACKEND.GPTQ_W4A_NVFP4,
    kernel="nvfp4_activations",
    method=METHOD.GPTQ,
    accepts=(
        Accepts(
            formats=(FORMAT.GPTQ, FORMAT.GPTQ_V2),
            weight_kind=WeightKind.INT,
            bits=(4,),
            group_sizes=(128,),
            sym=(True,),
            act_order=(False,),
        ),
    ),
    pack_dtypes=("int32",),
    activations=("float16", "bfloat16"),
    shape=ShapeRule(k_multiple=128, n_multiple=32, k_min=128, n_min=32, pads_k=False, short_last_group=False),
    devices={DEVICE.CUDA: Targets(archs=(), open_range=True, minimum=parse_arch("sm_121"))},
    platforms=("linux",),
    device_limits={},
    cpu_features=(),
    artifact=TRITON,
    toolchain=_NVFP4,
    dependencies={},
    features=_FEATURES,
    tolerance=NARROW_FLOAT,
    priorities={FORMAT.GPTQ: 0, FORMAT.GPTQ_V2: 0},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request="activations are rounded to 4 bits, which changes results",
    notes=("a pure recipe needs plain triton only; the FP8 lane of a mixed one needs 3.6.0",),
)
