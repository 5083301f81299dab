"""The portable backend of ggml types: products within tolerance, gradients, state, memory."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from ggml_cases import config, rows, weight
from layer_cases import verdict

from quantfarm.declare import ggml
from quantfarm.declare.ggml import TYPES, GgmlType
from quantfarm.formats.gguf import read
from quantfarm.kernels.ggml_dequant import backend
from quantfarm.kernels.ggml_dequant.spec import GGUF
from quantfarm.runtime.linear import QuantLinear

every_type = pytest.mark.parametrize("entry", TYPES, ids=ggml.block_name)
Q4_K = ggml.named("q4_k")[0]


def _layer(entry: GgmlType, n: int = 20, k: int | None = None, bias: torch.Tensor | None = None) -> QuantLinear:
    k = 2 * entry.block if k is None else k
    made = weight(entry, rows(entry, n, -(-k // entry.block)), k, bias)
    reader = partial(read, config=config(ggml.block_name(entry)), module="model.fc", k=k, n=n)
    return QuantLinear(made, backend, GGUF, name="model.fc", read=reader)


def _dense(layer: QuantLinear) -> torch.Tensor:
    return layer.weight_tensor().decoded().double().t()


@every_type
def test_products_keep_the_tolerance(entry: GgmlType) -> None:
    """Every type, dtype, 1 and 17 rows, and a bias wider than x, against float64."""
    bias = torch.randn(20)
    layer = _layer(entry, bias=bias, k=64 if entry.block == 1 else None)
    for name in GGUF.activations:
        x = torch.randn(17, layer.in_features).to(getattr(torch, name))
        for part in (x, x[:1]):
            verdict(GGUF, layer(part), part, _dense(layer), bias)


def test_shapes_of_the_input() -> None:
    """No rows, three dimensions, strided rows and a K that does not fill its block."""
    layer = _layer(Q4_K, k=300)
    assert layer(torch.empty(0, 300)).shape == (0, 20)
    assert layer(torch.empty(2, 0, 300, dtype=torch.bfloat16)).dtype == torch.bfloat16
    x = torch.randn(2, 3, 300)
    assert torch.equal(layer(x).view(6, 20), layer(x.view(6, 300)))
    strided = torch.randn(300, 5).t()
    verdict(GGUF, layer(strided), strided, _dense(layer))


def test_a_bias_that_cancels_the_product_is_added_before_rounding() -> None:
    """E6: an fp32 bias near minus the product leaves what fp32 leaves, not the rounding of a narrow product."""
    plain = _layer(Q4_K)
    x = torch.randn(1, plain.in_features).half()
    bias = -(x.double() @ _dense(plain))[0].float()
    out = _layer(Q4_K, bias=bias)(x)
    assert float(out.float().abs().max()) < 1e-4


def test_input_and_bias_have_gradients() -> None:
    """The gradient of x is grad W, of the bias the sum over rows; codes never ask for one."""
    layer = _layer(Q4_K, bias=torch.randn(20))
    assert layer.bias is not None
    layer.train()
    layer.bias.requires_grad_(True)
    x = torch.randn(3, 5, layer.in_features, requires_grad=True)
    grad = torch.randn(3, 5, 20)
    layer(x).backward(grad)
    assert x.grad is not None
    assert layer.bias.grad is not None
    torch.testing.assert_close(x.grad.double(), grad.double() @ _dense(layer).t(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.bias.grad, grad.sum((0, 1)), rtol=1e-5, atol=1e-5)
    empty = torch.empty(0, layer.in_features, requires_grad=True)
    layer(empty).sum().backward()
    assert empty.grad is not None
    assert empty.grad.shape == empty.shape


@every_type
def test_state_is_the_checkpoints_bytes(entry: GgmlType) -> None:
    """state_dict gives the stored bytes after a change of dtype, and a layer that loads them computes the same."""
    layer, other = _layer(entry, bias=torch.randn(20)), _layer(entry, bias=torch.zeros(20))
    stored = rows(entry, 20, 2)
    state = layer.half().state_dict()
    assert torch.equal(state["qweight"], stored)
    assert state["bias"].dtype == torch.float32
    other.load_state_dict(state)
    x = torch.randn(2, layer.in_features)
    assert torch.equal(other(x), layer(x))


def test_edits_in_place_are_seen() -> None:
    """E10: bytes that change under the layer change its product."""
    layer = _layer(Q4_K)
    x = torch.randn(2, layer.in_features)
    before = layer(x)
    layer.checkpoint_tensors()["qweight"][:, 20:60] ^= 0x11
    assert not torch.equal(layer(x), before)
    verdict(GGUF, layer(x), x, _dense(layer))
