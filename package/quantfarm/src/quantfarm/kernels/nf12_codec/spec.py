"""Declarations of the lossless 12-bit codec for bf16 weights. Most of its facts are unknown."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import ANYWHERE, EXACT, LICENCE, MAINTAINERS, NOT_WRITTEN, PORTABLE, TORCH
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import UNDECLARED, Accepts, KernelSpec, ShapeRule

NF12 = KernelSpec(
    backend=BACKEND.NF12_AD,
    kernel="nf12_codec",
    method=METHOD.NF12,
    accepts=(
        Accepts(
            formats=(FORMAT.NF12_AD,),
            weight_kind=WeightKind.FLOAT,
            bits=(12,),
            group_sizes=(),
            sym=UNDECLARED,
            act_order=UNDECLARED,
        ),
    ),
    pack_dtypes=UNDECLARED,
    activations=("bfloat16",),
    shape=ShapeRule(k_multiple=64, n_multiple=16, k_min=64, n_min=16, pads_k=False, short_last_group=False),
    devices=ANYWHERE,
    platforms=UNDECLARED,
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={},
    features=NOT_WRITTEN,
    tolerance=EXACT,
    priorities={FORMAT.NF12_AD: 100},
    origin="declared from the contract; no code yet",
    licence=LICENCE,
    maintainers=MAINTAINERS,
)
