"""Which formats exist for a method, and the rules of the loader for a pair that has a reader.

A pair outside ``FORMATS_OF`` is refused before any device is looked at. A pair inside it may still lack a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.formats import table

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


def allowed_backends(method: METHOD, name: FORMAT) -> tuple[BACKEND, ...]:
    """Return the only backends that the loader lets serve a pair; empty means every one that reads it."""
    return next((row.allowed for row in table.FORMATS if row.format is name and method in row.methods), ())


def forced_dtype(method: METHOD, name: FORMAT) -> str:
    """Return the activation dtype that a pair demands; empty means none."""
    return next((row.forced_dtype for row in table.FORMATS if row.format is name and method in row.methods), "")
