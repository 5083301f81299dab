"""Declarations of the portable path of trellis codes."""

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.parts import ANYWHERE, LICENCE, MAINTAINERS, PORTABLE, TORCH, TRELLIS
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import Accepts, Features, KernelSpec, ShapeRule

_FEATURES = Features(
    bias=True,
    training=False,
    adapters=(),
    sharded_load=True,
    raw_packing=False,
    deterministic=True,
    keeps_source=True,
)

EXL3 = KernelSpec(
    backend=BACKEND.EXL3_TORCH,
    kernel="trellis_dequant",
    method=METHOD.EXL3,
    accepts=(
        Accepts(
            formats=(FORMAT.EXL3,),
            weight_kind=WeightKind.TRELLIS,
            bits=(1, 2, 3, 4, 5, 6, 7, 8),
            group_sizes=(),
            sym=(),
            act_order=(),
        ),
    ),
    pack_dtypes=("int16",),
    activations=("float16", "bfloat16", "float32"),
    shape=ShapeRule(k_multiple=128, n_multiple=128, k_min=128, n_min=128, pads_k=False, short_last_group=False),
    devices=ANYWHERE,
    platforms=(),
    device_limits={},
    cpu_features=(),
    artifact=PORTABLE,
    toolchain=TORCH,
    dependencies={},
    features=_FEATURES,
    tolerance=TRELLIS,
    priorities={},
    origin="own work",
    licence=LICENCE,
    maintainers=MAINTAINERS,
    on_request="a rule of the format decides when it is tried",
    notes=("the width is that of each tensor; the mean width of the settings may be a fraction",),
)
