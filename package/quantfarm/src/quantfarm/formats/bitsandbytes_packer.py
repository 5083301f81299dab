"""Rounding float weights to bitsandbytes' codes: the nearest value of a table a block, or of 255 steps a row.

``code = nearest(table, w / absmax)`` per block of flat elements; nested, the absmax less their mean are themselves
coded in blocks of 256 by a table of 256 values. int8: ``q = round(w * 127 / scale)``, half to even (formats,
section 17).
"""

from __future__ import annotations

import json

import torch

from quantfarm.errors import InexactConversion
from quantfarm.formats import bitsandbytes
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packing import pack_high_first
from quantfarm.formats.settings.bitsandbytes import ROW_TYPE
from quantfarm.formats.weights.base import Weight
from quantfarm.formats.weights.row_codes import TOP

_NESTED_BLOCK = 256
_TINY = 1e-38


def from_floats(
    weight: torch.Tensor, config: QuantConfig, *, bias: torch.Tensor | None = None, nested: bool = False
) -> Weight:
    """Round a weight [N, K] of any float dtype; the result has upstream's tensor names.

    Args:
        weight: [N, K], computed in fp32.
        config: settings with the type of code and, for 4 bits, the block size as ``group_size``.
        bias: [N], kept as it is.
        nested: code the absmax of blocks too (4 bits only).

    Raises:
        InexactConversion: the weight has values that are not finite.
    """
    w = weight.to(torch.float32)
    bad = int((~torch.isfinite(w)).sum())
    if bad:
        raise InexactConversion(f"cannot quantize: needs finite weights, got {bad} values that are not finite")
    tensors = _rows(w) if config.code_type == ROW_TYPE else _blocks(w, config, nested=nested)
    tensors |= {} if bias is None else {"bias": bias}
    return bitsandbytes.read(tensors, config, module="weight", k=w.shape[1], n=w.shape[0])


def nested_table() -> torch.Tensor:
    """Return the 256 values of the second level, fp32, ascending.

    Seven decades below 1: decade i (10^(i-6) and below) has 2^i midpoints of an even grid from 0.1 to 1, with both
    signs; then 0 and 1.
    """
    values = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2**decade + 1)
        middles = (10.0 ** (decade - 6)) * (edges[:-1] + edges[1:]) / 2
        values += [*middles.tolist(), *(-middles).tolist()]
    return torch.tensor(sorted(values), dtype=torch.float32)


def _rows(w: torch.Tensor) -> dict[str, torch.Tensor]:
    scales = w.abs().amax(1)
    codes = torch.round(w * (TOP / scales.clamp_min(_TINY)).unsqueeze(1)).clamp_(-TOP, TOP)
    return {"weight": codes.to(torch.int8), "SCB": scales}


def _blocks(w: torch.Tensor, config: QuantConfig, *, nested: bool) -> dict[str, torch.Tensor]:
    table = torch.tensor(bitsandbytes.TABLES[config.code_type], dtype=torch.float32, device=w.device)
    codes, absmax = _coded(w.reshape(-1), table, config.group_size)
    state = {"quant_type": config.code_type, "blocksize": config.group_size, "dtype": "float32", "shape": list(w.shape)}
    tensors = {"weight": pack_high_first(codes).unsqueeze(1), "weight.quant_map": table}
    if nested:
        offset = absmax.mean()
        second = nested_table().to(w.device)
        coded, outer = _coded(absmax - offset, second, _NESTED_BLOCK)
        tensors |= {"weight.absmax": coded, "weight.nested_absmax": outer, "weight.nested_quant_map": second}
        extra = {"nested_blocksize": _NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": float(offset)}
        state |= extra
    else:
        tensors["weight.absmax"] = absmax
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return tensors | {f"weight.quant_state.bitsandbytes__{config.code_type}": text}


def _coded(flat: torch.Tensor, table: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return uint8 codes of flat values, the nearest of the table, and the absmax of each block, fp32."""
    count = flat.numel()
    blocks = torch.nn.functional.pad(flat, (0, -count % block)).view(-1, block)
    absmax = blocks.abs().amax(1)
    scaled = (blocks * (1 / absmax.clamp_min(_TINY)).unsqueeze(1)).clamp_(-1, 1)
    ordered, order = torch.sort(table, stable=True)
    edges = (ordered[:-1] + ordered[1:]) / 2
    codes = order[torch.bucketize(scaled.reshape(-1)[:count], edges)]
    return codes.to(torch.uint8), absmax
