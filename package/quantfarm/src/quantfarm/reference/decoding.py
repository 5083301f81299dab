"""decode(tensors, ...): the float64 weight of any stored format; a table names the closed form of each."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from quantfarm.declare.names import FORMAT, METHOD, normalize_format, normalize_method
from quantfarm.reference.stored import Floats, Stored, Tensor, as_numpy

CLOSED_FORMS: Mapping[tuple[METHOD, FORMAT], str] = {
    (METHOD.GPTQ, FORMAT.GPTQ): "closed_forms:gptq",
    (METHOD.GPTQ, FORMAT.GPTQ_V2): "closed_forms:gptq",
    (METHOD.GPTQ, FORMAT.MARLIN): "closed_forms:gptq",
    (METHOD.GPTQ, FORMAT.GPTQ_P): "planar:gptq_planar",
    (METHOD.AWQ, FORMAT.GEMM): "closed_forms:awq",
    (METHOD.AWQ, FORMAT.MARLIN): "closed_forms:awq",
    (METHOD.AWQ, FORMAT.GEMV): "awq_rows:gemv",
    (METHOD.AWQ, FORMAT.GEMV_FAST): "awq_rows:gemv_fast",
    (METHOD.AWQ, FORMAT.LLM_AWQ): "awq_rows:gemv_fast",
    (METHOD.FP8, FORMAT.FP8): "narrow_floats:fp8",
    (METHOD.FP8, FORMAT.MXFP4): "narrow_floats:mxfp4",
    (METHOD.FP8, FORMAT.NVFP4): "narrow_floats:nvfp4",
    (METHOD.QQQ, FORMAT.QQQ): "int8_products:qqq",
    (METHOD.GGUF, FORMAT.GGUF): "gguf_rows:gguf",
    (METHOD.EXL3, FORMAT.EXL3): "trellis:exl3",
    (METHOD.VPTQ, FORMAT.VPTQ): "vectors:vptq",
    (METHOD.PARO, FORMAT.PAROQUANT): "rotated:paroquant",
    (METHOD.BITSANDBYTES, FORMAT.BITSANDBYTES): "bitsandbytes:bitsandbytes",
}
"""Pair to ``module:function`` in this folder; the function takes arrays and ``Stored``, returns float64 [N, K]."""


def decode(tensors: Mapping[str, Tensor], **stored: Any) -> Floats:
    """Return W as float64 [N, K], such that ``y = x W^T``.

    Args:
        tensors: by suffix (qweight, qzeros, scales, g_idx), as torch tensors or numpy arrays, straight from the file.
        **stored: the fields of ``Stored``.

    Raises:
        ValueError: no closed form here for the format, the type inside it or the code width.
    """
    says = Stored(**stored)
    arrays = {name: as_numpy(tensor) for name, tensor in tensors.items()}
    pair = (normalize_method(says.method), normalize_format(says.format))
    if pair not in CLOSED_FORMS:
        raise ValueError(f"no closed form for {pair[0]}, {pair[1]}, {says.bits} bits")
    module, _, name = CLOSED_FORMS[pair].partition(":")
    decoded: Floats = getattr(importlib.import_module(f"quantfarm.reference.{module}"), name)(arrays, says)
    return decoded
