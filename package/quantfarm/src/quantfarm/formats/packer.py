"""Round-to-nearest packing: float weights -> codes, scales, zero points -> QuantTensor.

``q = clamp(round((W + z*s) / s), 0, 2^bits - 1)`` in fp32, half to even, with scales that are not yet rounded; the
scales are stored as fp16 afterwards (formats, section 1, "Packing from float"). Values saturate, they never wrap.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantfarm.declare.names import FORMAT
from quantfarm.declare.scheme import Scheme
from quantfarm.errors import InexactConversion
from quantfarm.formats import stored_codes, zeros
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packing import pack_codes
from quantfarm.formats.quant_tensor import QuantTensor

_WITH_OFFSETS = (FORMAT.GEMV_FAST, FORMAT.LLM_AWQ)
"""Formats that store the product of scale and zero point, rounded like the scale."""


@dataclass(frozen=True, kw_only=True)
class RtnResult:
    """What rounding gives: codes uint8 [K, N], scales fp32 [G, N], zeros int32 [G, N], g_idx int32 [K] or None."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    g_idx: torch.Tensor | None


def quantize_rtn(
    weight: torch.Tensor,
    *,
    bits: int,
    group_size: int,
    sym: bool,
    desc_order: torch.Tensor | None = None,
) -> RtnResult:
    """Round a weight to the nearest codes.

    Args:
        weight: [N, K], any float dtype; computed in fp32.
        bits: code width, 2 to 8.
        group_size: inputs per scale along K; -1 for one group. The last group may be short.
        sym: zero points 2^(bits-1) and s = 2*max|W| / (2^bits - 1); otherwise the range from min(W, 0) to max(W, 0).
        desc_order: [K], an order of the inputs by which they are grouped (act-order); None groups neighbours.

    Raises:
        InexactConversion: the weight has values that are not finite.
    """
    w = weight.to(torch.float32)
    if not bool(torch.isfinite(w).all()):
        bad = int((~torch.isfinite(w)).sum())
        raise InexactConversion(f"cannot quantize: needs finite weights, got {bad} values that are not finite")
    k = w.shape[1]
    size = k if group_size == -1 else group_size
    if desc_order is not None:
        w = w[:, desc_order]
    scales, points = _ranges(w, size, bits, sym=sym)
    group = torch.arange(k, device=w.device) // size
    s, z = scales[group].t(), points[group].t()
    codes = torch.round((w + z * s) / s).clamp_(0, (1 << bits) - 1).to(torch.uint8).t()
    g_idx = None
    if desc_order is not None:
        back = torch.argsort(desc_order)
        codes, g_idx = codes[back], group[back].to(torch.int32)
    return RtnResult(codes=codes.contiguous(), scales=scales, zeros=points.to(torch.int32), g_idx=g_idx)


def pack(weight: torch.Tensor, config: QuantConfig) -> QuantTensor:
    """Round a weight [N, K] as the settings say; with ``desc_act`` inputs are grouped by falling norm.

    Raises:
        InexactConversion: values that are not finite, or scales outside the stored dtype.
    """
    order = torch.argsort(weight.float().norm(dim=0), descending=True, stable=True) if config.desc_act else None
    result = quantize_rtn(weight, bits=config.bits, group_size=config.group_size, sym=config.sym, desc_order=order)
    return to_quant_tensor(result, config)


def to_quant_tensor(
    result: RtnResult,
    config: QuantConfig,
    *,
    bias: torch.Tensor | None = None,
    scale_dtype: torch.dtype = torch.float16,
) -> QuantTensor:
    """Make the canonical form, with the scales rounded to ``scale_dtype``.

    Its ``source`` is empty, since it comes from no file: the writer of the format gives the stored tensors.

    Raises:
        InexactConversion: a scale does not fit into ``scale_dtype``.
    """
    k, n = result.codes.shape
    scales = result.scales.to(scale_dtype)
    unfit = int((~torch.isfinite(scales) | (scales == 0)).sum())
    if unfit:
        dtype = str(scale_dtype).removeprefix("torch.")
        raise InexactConversion(f"cannot store the scales: needs the range of {dtype}, got {unfit} scales outside it")
    middle = 1 << (config.bits - 1)
    tensor = QuantTensor(
        method=config.method,
        format=config.format,
        scheme=Scheme(
            bits=config.bits,
            group_size=config.group_size,
            sym=bool((result.zeros == middle).all()),
            act_order=result.g_idx is not None,
        ),
        k=k,
        n=n,
        codes=pack_codes(result.codes, config.bits),
        scales=scales,
        zeros=result.zeros,
        g_idx=result.g_idx,
        bias=bias,
        source={},
        codes_to_source=stored_codes.way_back(
            stored_codes.layout_of(config.method, config.format), bits=config.bits, k=k
        ),
    )
    return zeros.with_offsets(tensor, rounded=True) if config.format in _WITH_OFFSETS else tensor


def _ranges(w: torch.Tensor, size: int, bits: int, *, sym: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and zero points, fp32 [G, N] each; a group of zeros gets the scale 1."""
    n, k = w.shape
    groups = -(-k // size)
    padded = torch.nn.functional.pad(w, (0, groups * size - k)).view(n, groups, size)
    low, high = padded.amin(2).clamp(max=0), padded.amax(2).clamp(min=0)
    if sym:
        high = torch.maximum(-low, high)
        low = -high
    top = (1 << bits) - 1
    scales = (high - low) / top
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    middle = torch.full_like(scales, 1 << (bits - 1))
    points = middle if sym else torch.round(-low / scales).clamp_(0, top)
    return scales.t().contiguous(), points.t().contiguous()
