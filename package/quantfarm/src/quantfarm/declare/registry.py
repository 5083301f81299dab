"""KERNELS: every record, in order, as an explicit tuple. Nothing becomes a candidate by existing elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.spec import KernelSpec
from quantfarm.kernels.allspark import spec as allspark
from quantfarm.kernels.aten_int4 import spec as aten_int4
from quantfarm.kernels.awq_interleaved import spec as awq_interleaved
from quantfarm.kernels.awq_rows import spec as awq_rows
from quantfarm.kernels.awq_words import spec as awq_words
from quantfarm.kernels.bitblas_tiles import spec as bitblas_tiles
from quantfarm.kernels.bnb_blocks import spec as bnb_blocks
from quantfarm.kernels.embedding_dequant import spec as embedding_dequant
from quantfarm.kernels.exllama_v2 import spec as exllama_v2
from quantfarm.kernels.external_engine import spec as external_engine
from quantfarm.kernels.fp8_activations import spec as fp8_activations
from quantfarm.kernels.fp8_scaled import spec as fp8_scaled
from quantfarm.kernels.fused_int4 import spec as fused_int4
from quantfarm.kernels.ggml_dequant import spec as ggml_dequant
from quantfarm.kernels.ggml_library import spec as ggml_library
from quantfarm.kernels.ggml_triton import spec as ggml_triton
from quantfarm.kernels.int4_panel import spec as int4_panel
from quantfarm.kernels.int8_channels import spec as int8_channels
from quantfarm.kernels.int8_mma import spec as int8_mma
from quantfarm.kernels.int8_mma_torch import spec as int8_mma_torch
from quantfarm.kernels.machete import spec as machete
from quantfarm.kernels.marlin import spec as marlin
from quantfarm.kernels.mlx_conversion import spec as mlx_conversion
from quantfarm.kernels.nf12_codec import spec as nf12_codec
from quantfarm.kernels.nvfp4_activations import spec as nvfp4_activations
from quantfarm.kernels.panel_dequant import spec as panel_dequant
from quantfarm.kernels.rotated_dequant import spec as rotated_dequant
from quantfarm.kernels.rotated_triton import spec as rotated_triton
from quantfarm.kernels.swordfish import spec as swordfish
from quantfarm.kernels.trellis_dequant import spec as trellis_dequant
from quantfarm.kernels.trellis_mma import spec as trellis_mma
from quantfarm.kernels.triton_dequant import spec as triton_dequant
from quantfarm.kernels.triton_gemv import spec as triton_gemv
from quantfarm.kernels.vector_lookup import spec as vector_lookup
from quantfarm.kernels.vector_lookup_cuda import spec as vector_lookup_cuda

KERNELS: tuple[KernelSpec, ...] = (
    int4_panel.GPTQ,
    int4_panel.AWQ,
    aten_int4.GPTQ,
    aten_int4.AWQ,
    fused_int4.GPTQ,
    fused_int4.AWQ,
    int8_channels.GPTQ,
    int8_channels.AWQ,
    panel_dequant.GPTQ,
    panel_dequant.AWQ,
    panel_dequant.AWQ_ROWS,
    panel_dequant.AWQ_INTERLEAVED,
    embedding_dequant.GPTQ,
    triton_dequant.GPTQ,
    triton_dequant.AWQ,
    triton_gemv.AWQ,
    exllama_v2.GPTQ,
    exllama_v2.AWQ,
    marlin.GPTQ,
    marlin.AWQ,
    machete.GPTQ,
    machete.AWQ,
    swordfish.GPTQ,
    swordfish.AWQ,
    allspark.GPTQ,
    allspark.AWQ,
    bitblas_tiles.GPTQ,
    bitblas_tiles.AWQ,
    fp8_activations.GPTQ,
    nvfp4_activations.GPTQ,
    awq_words.GEMM,
    awq_rows.GEMV,
    awq_interleaved.GEMV_FAST,
    awq_interleaved.LLM_AWQ,
    int8_mma.QQQ,
    int8_mma_torch.QQQ,
    rotated_dequant.PARO,
    rotated_triton.PARO,
    fp8_scaled.FP8,
    nf12_codec.NF12,
    vector_lookup_cuda.VPTQ,
    vector_lookup.VPTQ,
    bnb_blocks.BITSANDBYTES,
    ggml_dequant.GGUF,
    ggml_triton.GGUF,
    ggml_library.ON_CPU,
    ggml_library.ON_CUDA,
    trellis_mma.EXL3,
    trellis_dequant.EXL3,
    external_engine.VLLM_GPTQ,
    external_engine.VLLM_AWQ,
    external_engine.SGLANG_GPTQ,
    external_engine.SGLANG_AWQ,
    mlx_conversion.GPTQ,
    mlx_conversion.AWQ,
    mlx_conversion.PARO,
    mlx_conversion.QQQ,
    mlx_conversion.GGUF,
    mlx_conversion.BITSANDBYTES,
    mlx_conversion.FP8,
)
"""Every record that can be asked for; which of them have code in this version says ``implemented``."""

_FOLDERS = Path(__file__).resolve().parent.parent / "kernels"


@cache
def implemented() -> frozenset[str]:
    """Return the kernel folders whose code is in this version; a record of any other folder is declared only."""
    return frozenset(k for k in {spec.kernel for spec in KERNELS} if (_FOLDERS / k / "backend.py").is_file())


def implemented_records() -> tuple[KernelSpec, ...]:
    """Return the records whose code is in this version, in order; a retired one has none, whatever its folder holds."""
    return tuple(spec for spec in KERNELS if spec.kernel in implemented() and not spec.retired)


@dataclass(frozen=True, kw_only=True)
class Tie:
    """Two records of equal priority for one pair, and which goes first, with the reason."""

    method: METHOD
    format: FORMAT
    order: tuple[BACKEND, ...]
    reason: str


TIES: tuple[Tie, ...] = (
    Tie(
        method=METHOD.VPTQ,
        format=FORMAT.VPTQ,
        order=(BACKEND.VPTQ_CUDA, BACKEND.VPTQ_TORCH),
        reason="by string order the CUDA kernel could never be reached",
    ),
)
