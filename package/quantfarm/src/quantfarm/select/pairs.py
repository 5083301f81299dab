"""Which formats exist for a method, and which records an automatic choice tries for a pair.

A pair outside ``FORMATS_OF`` is refused before any device is looked at. A pair inside it may still lack a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.scheme import WeightKind
from quantfarm.declare.spec import KernelSpec, declared
from quantfarm.formats.table import rule_of
from quantfarm.select.request import Request

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
        METHOD.FP8: (FORMAT.FP8, FORMAT.MXFP4, FORMAT.NVFP4),
        METHOD.BITSANDBYTES: (FORMAT.BITSANDBYTES,),
        METHOD.EXL3: (FORMAT.EXL3,),
        METHOD.PARO: (FORMAT.PAROQUANT,),
        METHOD.VPTQ: (FORMAT.VPTQ,),
        METHOD.NF12: (FORMAT.NF12_AD,),
    }
)
"""Method to its formats, the first one being the usual one."""


def kind_of(method: METHOD, name: FORMAT, bits: int) -> WeightKind:
    """Return how a pair's codes become numbers, as the records that read it say; affine integers where none does."""
    for spec in KERNELS:
        for row in spec.accepts if spec.method is method else ():
            if name in row.formats and bits in declared(row.bits):
                return row.weight_kind
    return WeightKind.INT


def takes_part(spec: KernelSpec, request: Request) -> bool:
    """Say whether an automatic choice tries a record: a rule of the format names it, or its number is above zero."""
    named = rule_of(request.method, request.format, request.code_type).automatic
    return spec.backend in named if named else spec.priorities.get(request.format, 0) > 0
