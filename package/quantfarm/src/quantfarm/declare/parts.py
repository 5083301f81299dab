"""Parts that many records share: targets, toolchains, tolerances. Constants only, so that a record stays short."""

from __future__ import annotations

from quantfarm.declare.names import DEVICE
from quantfarm.declare.spec import UNDECLARED, Artifact, ArtifactKind, Features, Targets, Tolerance, Toolchain

UNGATED = Targets(archs=(), open_range=True)
"""Every device of a family; no gate is known."""

ANYWHERE = {DEVICE.ALL: UNGATED}
CPU = {DEVICE.CPU: UNGATED}
CUDA = {DEVICE.CUDA: UNGATED}
CUDA_AND_ROCM = {DEVICE.CUDA: UNGATED, DEVICE.ROCM: UNGATED}

PORTABLE = Artifact(kind=ArtifactKind.NONE)
TRITON = Artifact(kind=ArtifactKind.TRITON)
ENGINE = Artifact(kind=ArtifactKind.ENGINE)
CUDA_LIBRARY = Artifact(kind=ArtifactKind.NATIVE, library="cuda12")

TORCH = Toolchain(torch="2.10", triton="", driver="", torch_ops=())
"""The oldest torch that the project supports, and nothing else."""

TORCH_AND_TRITON = Toolchain(torch="2.10", triton="2.0.0", driver="", torch_ops=())

AFFINE = Tolerance(
    derivation="affine A16, scale on the accumulator",
    cap={"float16": 5e-4, "bfloat16": 2e-3, "float32": 2e-6},
    floor={"float16": 1e-4, "bfloat16": 5e-4, "float32": 1e-6},
)
GGUF_FLOAT = Tolerance(
    derivation="GGUF, float activations",
    cap={"float16": 5e-4, "bfloat16": 2e-3, "float32": 2e-6},
    floor={"float16": 1e-4, "bfloat16": 5e-4, "float32": 1e-6},
)
TABLE = Tolerance(
    derivation="NF4 and FP4 A16, nested absmax decoded in fp32",
    cap={"float16": 5e-4, "bfloat16": 2e-3, "float32": 2e-6},
    floor={"float16": 1e-4, "bfloat16": 5e-4, "float32": 1e-6},
)
TRELLIS = Tolerance(
    derivation="EXL3",
    cap={"float16": 1.5e-3, "bfloat16": 3e-3, "float32": 2e-6},
    floor={"float16": 2.5e-4, "bfloat16": 1e-3, "float32": 1e-6},
)
ROTATED = Tolerance(
    derivation="VPTQ, ParoQuant",
    cap={"float16": 1e-3, "bfloat16": 3e-3, "float32": 2e-6},
    floor={"float16": 2.5e-4, "bfloat16": 1e-3, "float32": 1e-6},
)
W4A8 = Tolerance(
    derivation="QQQ W4A8, against the same int8 codes",
    cap={"float16": 5e-4, "bfloat16": 2e-3},
    floor={"float16": 1e-4, "bfloat16": 5e-4},
)
NARROW_FLOAT = Tolerance(
    derivation="W4A8-FP8 and NVFP4, against the same quantized x",
    cap={"float16": 1e-3, "bfloat16": 2e-3},
    floor={"float16": 2.5e-4, "bfloat16": 5e-4},
)
EXACT = Tolerance(
    derivation="lossless codec, then the dense product",
    cap={"bfloat16": 2e-3},
    floor={"bfloat16": 5e-4},
)


NOT_WRITTEN = Features(
    bias=True,
    training=UNDECLARED,
    adapters=UNDECLARED,
    sharded_load=UNDECLARED,
    raw_packing=UNDECLARED,
    deterministic=UNDECLARED,
    keeps_source=UNDECLARED,
)
"""Features of a kernel about which nothing is known yet beyond that layers may have a bias."""

MAINTAINERS = ("quantfarm developers",)
LICENCE = "Apache-2.0"
