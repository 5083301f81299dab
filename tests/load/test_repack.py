"""Packing a float layer into a quantized one, and moving a quantized layer to another backend."""

from __future__ import annotations

import importlib
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from select_hosts import HOSTS
from torch import nn

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.declare.registry import KERNELS
from quantfarm.errors import KernelRefused
from quantfarm.formats import table
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packer import quantize_rtn, to_quant_tensor
from quantfarm.formats.weights.base import Weight
from quantfarm.load.repack import hf_pack_layer, hf_repack_layer
from quantfarm.runtime.linear import QuantLinear

N, K, GROUP = 264, 256, 64
HOST = HOSTS["CPU-AVX2"]


def config(method: METHOD, fmt: FORMAT, *, sym: bool = True, bits: int = 4) -> QuantConfig:
    """Return settings of a layer."""
    return QuantConfig(method=method, format=fmt, bits=bits, group_size=GROUP, sym=sym, source="test")


def build(settings: QuantConfig, backend: BACKEND, weight: torch.Tensor) -> QuantLinear:
    """Return a layer over a weight [N, K], rounded to nearest."""
    spec = next(s for s in KERNELS if s.backend is backend and not s.role)
    result = quantize_rtn(weight, bits=settings.bits, group_size=GROUP, sym=settings.sym)
    row = table.find(settings.method, settings.format)
    stored = row.write()(to_quant_tensor(result, settings), settings)
    read = partial(row.read(), config=settings, module="fc", k=weight.shape[1], n=weight.shape[0])
    kernel: Any = importlib.import_module(f"quantfarm.kernels.{spec.kernel}.backend")
    return QuantLinear(read(stored), kernel, spec, name="fc", read=read)


def drawn(seed: int) -> torch.Tensor:
    """Return a weight [N, K]."""
    return torch.randn(N, K, generator=torch.Generator().manual_seed(seed)) * 0.05


def floats(weight: torch.Tensor) -> nn.Linear:
    """Return a float layer with that weight."""
    layer = nn.Linear(K, N, bias=False)
    layer.weight.data = weight
    return layer


CASES = [
    (METHOD.GPTQ, FORMAT.GPTQ, BACKEND.GPTQ_TORCH),
    (METHOD.GPTQ, FORMAT.GPTQ_V2, BACKEND.GPTQ_TORCH),
    (METHOD.AWQ, FORMAT.GEMM, BACKEND.AWQ_TORCH),
]


@pytest.mark.parametrize(("method", "fmt", "backend"), CASES)
@pytest.mark.parametrize("sym", [True, False])
def test_packing_gives_the_bytes_of_the_converter(method: METHOD, fmt: FORMAT, backend: BACKEND, sym: bool) -> None:
    """A layer packed with given scales and zeros is, byte for byte, the layer made from that weight."""
    settings, weight = config(method, fmt, sym=sym), drawn(2)
    layer = build(settings, backend, drawn(1))
    found = quantize_rtn(weight, bits=4, group_size=GROUP, sym=sym)
    packed = hf_pack_layer(layer, floats(weight), found.scales.t(), found.zeros.t())
    assert packed is layer
    wanted = build(settings, backend, weight).state_dict()
    assert packed.state_dict().keys() == wanted.keys()
    assert all(torch.equal(packed.state_dict()[name], tensor) for name, tensor in wanted.items())


def test_p01_missing_zeros_are_the_middle() -> None:
    """P01: without zeros a symmetric layer takes 2^(bits-1), with the plain packer."""
    layer, weight = build(config(METHOD.GPTQ, FORMAT.GPTQ), BACKEND.GPTQ_TORCH, drawn(1)), drawn(2)
    found = quantize_rtn(weight, bits=4, group_size=GROUP, sym=True)
    packed = hf_pack_layer(layer, floats(weight), found.scales.t(), pack_impl=None)
    assert set(packed.weight_tensor().zeros.unique().tolist()) == {8}


def test_p02_a_packer_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """P02: without a GPU its packer warns and the plain one gives the same bytes, as every other packer does."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    weight = drawn(2)
    found = quantize_rtn(weight, bits=4, group_size=GROUP, sym=True)
    states = []
    for name in ("original", "pack_original", "cpu", "block", "pack_block", "auto", "default"):
        layer = build(config(METHOD.GPTQ, FORMAT.GPTQ), BACKEND.GPTQ_TORCH, drawn(1))
        states.append(hf_pack_layer(layer, floats(weight), found.scales.t(), pack_impl=name).state_dict())
    with pytest.warns(UserWarning, match="no GPU is visible"):
        states.append(hf_pack_layer(layer, floats(weight), found.scales.t(), pack_impl="gpu").state_dict())
    assert all(torch.equal(state["qweight"], states[0]["qweight"]) for state in states)
    with pytest.raises(ValueError, match="pack_impl: unknown name 'fast'"):
        hf_pack_layer(layer, floats(weight), found.scales.t(), pack_impl="fast")


def test_p03_asymmetric_codes_need_zeros() -> None:
    """P03: an asymmetric layer without zeros is an error that names the layer."""
    layer = build(config(METHOD.GPTQ, FORMAT.GPTQ, sym=False), BACKEND.GPTQ_TORCH, drawn(1))
    with pytest.raises(ValueError, match="cannot pack fc: zeros"):
        hf_pack_layer(layer, floats(drawn(2)), torch.ones(N, K // GROUP))


def test_an_order_of_activations_is_kept() -> None:
    """Groups given by an index are packed by it and stored with it."""
    layer, weight = build(config(METHOD.GPTQ, FORMAT.GPTQ), BACKEND.GPTQ_TORCH, drawn(1)), drawn(2)
    order = torch.randperm(K, generator=torch.Generator().manual_seed(3))
    found = quantize_rtn(weight, bits=4, group_size=GROUP, sym=True, desc_order=order)
    packed = hf_pack_layer(layer, floats(weight), found.scales.t(), found.zeros.t(), found.g_idx)
    tensor = packed.weight_tensor()
    assert found.g_idx is not None
    assert torch.equal(tensor.group_of_inputs(), found.g_idx.long())
    assert torch.allclose(tensor.decoded(), weight, atol=0.05)


def test_repacking_to_the_same_backend_returns_the_source() -> None:
    """A layer that already is of the wanted backend is returned unchanged."""
    layer = build(config(METHOD.GPTQ, FORMAT.GPTQ), BACKEND.GPTQ_TORCH, drawn(1))
    assert hf_repack_layer(layer, "torch", host=HOST) is layer


@pytest.mark.parametrize(("method", "fmt", "backend"), CASES)
def test_repacking_keeps_the_checkpoint(method: METHOD, fmt: FORMAT, backend: BACKEND) -> None:
    """Another backend gets the same weight, and gives the same checkpoint tensors."""
    other = BACKEND.GPTQ_TORCH_ATEN if method is METHOD.GPTQ else BACKEND.AWQ_TORCH_ATEN
    layer = build(config(method, fmt), backend, drawn(1))
    moved = hf_repack_layer(layer, other, host=HOST)
    assert (moved.spec.backend, moved is layer) == (other, False)
    assert all(torch.equal(moved.state_dict()[name], tensor) for name, tensor in layer.state_dict().items())
    x = torch.randn(3, K, dtype=torch.bfloat16)
    assert torch.allclose(moved(x).float(), layer(x).float(), atol=0.05)


def test_p04_a_private_layout_without_inverse_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """P04: a kernel that can not give the codes back is told apart, with the code layout_private."""
    layer = build(config(METHOD.GPTQ, FORMAT.GPTQ), BACKEND.GPTQ_TORCH, drawn(1))

    held = layer.weight_tensor()

    def keeps(*, codes: bool = True) -> Weight:
        if codes:
            raise NotImplementedError
        return held

    monkeypatch.setattr(layer, "weight_tensor", keeps)
    with pytest.raises(KernelRefused, match="layout_private: needs tensors as in the checkpoint"):
        hf_repack_layer(layer, BACKEND.GPTQ_TORCH_ATEN, host=HOST)


def test_a_refused_destination_says_why() -> None:
    """A backend that can not serve the layer is refused with its reasons; nothing else takes its place."""
    layer = build(config(METHOD.GPTQ, FORMAT.GPTQ), BACKEND.GPTQ_TORCH, drawn(1))
    with pytest.raises(KernelRefused, match="family: needs cuda, got cpu"):
        hf_repack_layer(layer, "marlin", host=HOST)


def test_a_weight_of_another_shape_is_refused() -> None:
    """A layer takes a weight of its own shape only."""
    layer = build(config(METHOD.GPTQ, FORMAT.GPTQ), BACKEND.GPTQ_TORCH, drawn(1))
    other = SimpleNamespace(k=K, n=8)
    with pytest.raises(ValueError, match="needs K, N"):
        layer.take(other)  # type: ignore[arg-type]
