"""Which formats exist for a method. A pair outside this table is refused before any device is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quantfarm.declare.names import FORMAT, METHOD

FORMATS_OF: Mapping[METHOD, tuple[FORMAT, ...]] = MappingProxyType(
    {
        METHOD.GPTQ: (FORMAT.GPTQ, FORMAT.GPTQ_V2, FORMAT.GPTQ_P, FORMAT.MARLIN, FORMAT.BITBLAS),
        METHOD.AWQ: (
            FORMAT.GEMM,
            FORMAT.GEMV,
            FORMAT.GEMV_FAST,
            FORMAT.LLM_AWQ,
            FORMAT.MARLIN,
            FORMAT.BITBLAS,
        ),
        METHOD.QQQ: (FORMAT.QQQ,),
        METHOD.GGUF: (FORMAT.GGUF,),
        METHOD.FP8: (FORMAT.FP8,),
        METHOD.BITSANDBYTES: (FORMAT.BITSANDBYTES,),
        METHOD.EXL3: (FORMAT.EXL3,),
        METHOD.PARO: (FORMAT.PAROQUANT,),
        METHOD.VPTQ: (FORMAT.VPTQ,),
        METHOD.NF12: (FORMAT.NF12_AD,),
    }
)
"""Method to its formats, the first one being the usual one."""
