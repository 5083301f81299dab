"""Packing a float layer into a quantized one, and moving a quantized layer to another backend."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from quantfarm.declare.names import BACKEND, UnknownName, normalize_backend
from quantfarm.declare.registry import KERNELS
from quantfarm.formats import table
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packer import RtnResult, to_quant_tensor
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.runtime.linear import QuantLinear
from quantfarm.select.choose import choose
from quantfarm.select.host import Host, probe
from quantfarm.select.request import Request, normalize_devices

_BLOCK = 256
_ORIGINAL = ("original", "pack_original")
_BLOCKS = ("cpu", "block", "pack_block")
_BEST = ("auto", "default")
_GPU = ("gpu",)

Packer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]


def hf_pack_layer(
    module: QuantLinear,
    linear: nn.Linear,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    g_idx: torch.Tensor | None = None,
    pack_impl: str | None = None,
) -> QuantLinear:
    """Pack a float layer into an existing quantized one, in place, with scales and zero points found elsewhere.

    Args:
        module: takes the weight; its format, width and group size are kept.
        linear: the float layer, weight [N, K].
        scales: [N, G], not yet rounded.
        zeros: [N, G]; left out, the middle of the codes where the module is symmetric.
        g_idx: [K], the group of each input; left out, neighbours share a group.
        pack_impl: ``original`` (also None), ``block`` or ``cpu``, ``gpu``, ``auto``. All give identical bytes; the GPU
            only speeds packing up, and what it packed lies on the CPU like the rest.

    Returns:
        The module.

    Raises:
        UnknownName: no such packer.
        ValueError: zero points are missing and the module is asymmetric.
        TypeError: the module's format is not one of affine integer codes.
    """
    old = module.weight_tensor()
    if not isinstance(old, QuantTensor):
        raise TypeError(f"cannot pack {module.module_name}: needs affine integer codes, got {type(old).__name__}")
    scheme, groups = old.scheme, scales.shape[1]
    if zeros is None and not scheme.sym:
        raise ValueError(f"cannot pack {module.module_name}: zeros: needs [N, G] for asymmetric codes, got none")
    middle = torch.full_like(scales, 1 << (scheme.bits - 1))
    points = middle if zeros is None else zeros
    size = old.group_size
    group = torch.arange(old.k) // size if g_idx is None else g_idx.to(torch.int64).cpu()
    wide = scales.detach().to("cpu", torch.float32).t().contiguous()
    points = points.detach().to("cpu", torch.float32).t().contiguous()
    weight = linear.weight.detach().to("cpu", torch.float32)
    codes = _packer(pack_impl)(weight, wide, points, group, scheme.bits)
    order = None if g_idx is None or scheme.group_size == -1 or groups == 1 else group.to(torch.int32)
    found = RtnResult(codes=codes, scales=wide, zeros=points.to(torch.int32), g_idx=order)
    config = _config(old, act_order=order is not None)
    row = table.find(old.method, old.format)
    packed = to_quant_tensor(found, config, bias=linear.bias, scale_dtype=old.scales.dtype)
    stored = {name: tensor.to(old.scales.device) for name, tensor in row.write()(packed, config).items()}
    module.take(row.read()(stored, config, module=module.module_name, k=old.k, n=old.n))
    return module


def hf_repack_layer(source: QuantLinear, backend: BACKEND | str, *, host: Host | None = None) -> QuantLinear:
    """Return a layer of another backend with the same weight; the source itself where it is that backend already.

    The weight goes through the canonical codes, which a kernel keeps or gives back exactly. A kernel that can do
    neither holds it in a private layout: repack from the checkpoint then.

    Args:
        source: the layer to move.
        backend: a demand.
        host: the facts of the machine; left out, it is probed.

    Raises:
        KernelRefused: the backend refuses the layer, or the layout is private.
    """
    wanted = normalize_backend(backend, source.spec.method)
    if wanted is source.spec.backend:
        return source
    try:
        tensor, private = source.weight_tensor(), ""
    except NotImplementedError:
        tensor, private = source.weight_tensor(codes=False), source.spec.kernel
    host = probe() if host is None else host
    request = Request(
        method=tensor.method,
        format=tensor.format,
        scheme=tensor.scheme,
        in_features=tensor.k,
        out_features=tensor.n,
        devices=normalize_devices(tensor.device, host),
        code_type=tensor.code_type,
        backend=wanted or BACKEND.AUTO,
        private_layout=private,
    )
    chosen = choose(request, host, KERNELS).chosen
    assert chosen is not None
    kernel: Any = importlib.import_module(f"quantfarm.kernels.{chosen.kernel}.backend")
    read = source.reader
    if read is None and isinstance(tensor, QuantTensor):
        read = partial(
            table.find(tensor.method, tensor.format).read(),
            config=_config(tensor, act_order=tensor.scheme.act_order),
            module=source.module_name,
            k=tensor.k,
            n=tensor.n,
        )
    return QuantLinear(tensor, kernel, chosen, name=source.module_name, read=read, adapter=source.adapter)


def _config(tensor: QuantTensor, *, act_order: bool) -> QuantConfig:
    scheme = tensor.scheme
    return QuantConfig(
        method=tensor.method,
        format=tensor.format,
        bits=scheme.bits,
        group_size=scheme.group_size,
        sym=scheme.sym,
        desc_act=act_order,
        source="the layer",
    )


def _packer(name: str | None) -> Packer:
    if name is None or name in _ORIGINAL:
        return _whole
    if name in _BLOCKS:
        return _in_blocks
    if name not in (*_BEST, *_GPU):
        known = ", ".join((*_ORIGINAL, *_BLOCKS, *_GPU, *_BEST))
        raise UnknownName(f"pack_impl: unknown name {name!r}; known: {known}")
    if torch.cuda.is_available():
        return _on_gpu
    if name in _BEST:
        return _in_blocks
    warnings.warn("pack_impl gpu: no GPU is visible, so the plain packer packs; the bytes are the same", stacklevel=3)
    return _whole


def _whole(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group: torch.Tensor, bits: int
) -> torch.Tensor:
    """Return codes uint8 [K, N] of ``clamp(round((W + z s) / s))`` in fp32 (formats, section 1)."""
    s, z = scales[group].t(), zeros[group].t()
    codes = torch.round((weight + z * s) / s).clamp_(0, (1 << bits) - 1)
    return codes.to(torch.uint8).t().contiguous()


def _in_blocks(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group: torch.Tensor, bits: int
) -> torch.Tensor:
    """Return the same codes, a block of outputs at a time, so that temporaries stay small."""
    starts = range(0, weight.shape[0], _BLOCK)
    ends = [slice(start, start + _BLOCK) for start in starts]
    return torch.cat([_whole(weight[b], scales[:, b], zeros[:, b], group, bits) for b in ends], dim=1)


def _on_gpu(
    weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group: torch.Tensor, bits: int
) -> torch.Tensor:
    """Return the same codes, computed on the current GPU and brought back."""
    return _in_blocks(weight.cuda(), scales.cuda(), zeros.cuda(), group.cuda(), bits).cpu()
