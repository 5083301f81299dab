"""The packed codes of every affine layout <-> the canonical stream: one pair of functions a layout.

A layout is named by the format whose words it has; the label MARLIN stands for words of GPTQ or of AWQ GEMM, as the
method says (formats, section 7).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.formats.packing import PLANES, pack_awq, pack_codes, pack_planes, unpack_awq, unpack_codes, unpack_planes
from quantfarm.formats.packing_tiles import AWQ_GEMV_FAST
from quantfarm.formats.quant_tensor import ToSource


@dataclass(frozen=True, kw_only=True)
class _Order:
    """How qweight turns into the canonical stream int32 [ceil(K*bits/32), N], and back: (tensor, bits, k) each."""

    read: Callable[[torch.Tensor, int, int], torch.Tensor]
    write: Callable[[torch.Tensor, int, int], torch.Tensor]


def layout_of(method: METHOD, name: FORMAT) -> FORMAT:
    """Return the format whose shapes and words a checkpoint has: the name itself, but for the label MARLIN."""
    if name is not FORMAT.MARLIN:
        return name
    return FORMAT.GEMM if method is METHOD.AWQ else FORMAT.GPTQ


def to_stream(qweight: torch.Tensor, layout: FORMAT, *, bits: int, k: int) -> torch.Tensor:
    """Return the canonical codes of stored words; the same tensor where the layout is the stream."""
    return _ORDERS[layout].read(qweight, bits, k)


def way_back(layout: FORMAT, *, bits: int, k: int) -> ToSource:
    """Return the function that turns canonical codes into the stored qweight, bit for bit; it can be pickled."""
    return functools.partial(_stored, layout=layout, bits=bits, k=k)


def _stored(codes: torch.Tensor, *, layout: FORMAT, bits: int, k: int) -> Mapping[str, torch.Tensor]:
    return {"qweight": _ORDERS[layout].write(codes, bits, k)}


def _same(words: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    del bits, k
    return words


def _read_planes(words: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    """One plane is the stream itself."""
    del k
    return words if len(PLANES[bits]) == 1 else pack_codes(unpack_planes(words, bits), bits)


def _write_planes(codes: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    return codes if len(PLANES[bits]) == 1 else pack_planes(unpack_codes(codes, bits, k), bits)


def _read_gemm(words: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    del k
    return pack_codes(unpack_awq(words), bits)


def _write_gemm(codes: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    return pack_awq(unpack_codes(codes, bits, k))


def _turned(words: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    """GEMV has the stream of each output in a row instead of a column."""
    del bits, k
    return words.t().contiguous()


def _read_fast(words: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    del k
    return pack_codes(AWQ_GEMV_FAST.unpack(words).t(), bits)


def _write_fast(codes: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    return AWQ_GEMV_FAST.pack(unpack_codes(codes, bits, k).t())


_FAST = _Order(read=_read_fast, write=_write_fast)
_ORDERS: Mapping[FORMAT, _Order] = {
    FORMAT.GPTQ: _Order(read=_same, write=_same),
    FORMAT.GPTQ_V2: _Order(read=_same, write=_same),
    FORMAT.GPTQ_P: _Order(read=_read_planes, write=_write_planes),
    FORMAT.GEMM: _Order(read=_read_gemm, write=_write_gemm),
    FORMAT.GEMV: _Order(read=_turned, write=_turned),
    FORMAT.GEMV_FAST: _FAST,
    FORMAT.LLM_AWQ: _FAST,
}
