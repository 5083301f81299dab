"""Gradients and adapters of every implemented record, against float64 autograd of its decoded weight."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from every_record import CASES, IDS, build, rows
from support.cases import Case

from quantfarm.declare.spec import KernelSpec
from quantfarm.runtime import ops
from quantfarm.runtime.adapter import LoraAdapter
from quantfarm.runtime.linear import QuantLinear

_TRAINS = [pair[0].features.training is True for pair in CASES]
EVERY = pytest.mark.parametrize(("spec", "case"), CASES, ids=IDS)
TRAINABLE = pytest.mark.parametrize(
    ("spec", "case"),
    [pair for pair, trains in zip(CASES, _TRAINS, strict=True) if trains],
    ids=[name for name, trains in zip(IDS, _TRAINS, strict=True) if trains],
)
INFERENCE_ONLY = pytest.mark.parametrize(
    ("spec", "case"),
    [pair for pair, trains in zip(CASES, _TRAINS, strict=True) if not trains],
    ids=[name for name, trains in zip(IDS, _TRAINS, strict=True) if not trains],
)


def dense(layer: QuantLinear) -> torch.Tensor:
    """Return the decoded weight in float64 [N, K], transforms included."""
    return layer.weight_tensor().decoded().double()


def error(actual: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    """Return the relative Frobenius error; a gradient that is absent is an error of its own."""
    assert actual is not None
    assert expected is not None
    return float((actual.detach().double() - expected).norm() / expected.norm().clamp_min(1e-300))


def factors(k: int, n: int, rank: int = 4, scale: float = 1.0) -> LoraAdapter:
    """Return drawn LoRA factors whose product is about as large as a small weight."""
    source = torch.Generator().manual_seed(3)
    return LoraAdapter(
        torch.randn(k, rank, generator=source) * 0.1, torch.randn(rank, n, generator=source) * 0.1, scale=scale
    )


def wide(*tensors: torch.Tensor | None) -> list[torch.Tensor]:
    """Return float64 leaves of the same values."""
    return [t.detach().double().requires_grad_() for t in tensors if t is not None]


@TRAINABLE
def test_r95_gradients_match_float64(spec: KernelSpec, case: Case) -> None:
    """R95: gradients of x, bias and both adapter factors are within twice the forward cap, in 2-D and 3-D."""
    _, layer = build(spec, case)
    layer.train()
    layer.set_adapter(factors(case.k, case.n))
    assert layer.bias is not None
    assert layer.adapter is not None
    layer.bias.requires_grad_()
    limit = 2 * spec.tolerance.cap[case.dtype]
    x = rows(case).repeat(2, 1).view(2, 3, -1).requires_grad_()
    out = layer(x)
    seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out.dtype)
    out.backward(seed)
    x64, bias, a, b = wide(x, layer.bias, layer.adapter.lora_A, layer.adapter.lora_B)
    (x64 @ dense(layer).t() + bias + x64 @ a @ b).backward(seed.double())
    assert x.grad is not None
    assert x.grad.dtype is x.dtype
    assert error(x.grad, x64.grad) <= limit
    assert error(layer.bias.grad, bias.grad) <= limit
    assert error(layer.adapter.lora_A.grad, a.grad) <= limit
    assert error(layer.adapter.lora_B.grad, b.grad) <= limit


@TRAINABLE
def test_r95_an_adapter_in_front_of_another_layer_learns(spec: KernelSpec, case: Case) -> None:
    """R95: a loss on the second of two layers reaches x and the adapter of the first, within the cap of two layers."""
    square = replace(case, n=case.k)
    (_, first), (_, second) = build(spec, square), build(spec, square, seed=2)
    first.set_adapter(factors(case.k, case.k))
    assert first.adapter is not None
    x = rows(case).requires_grad_()
    x64, a, b = wide(x, first.adapter.lora_A, first.adapter.lora_B)
    bias = first.bias.detach().double()  # type: ignore[union-attr]
    # The loss is small enough for two large weights to keep fp16 gradients in range; a power of two rounds nothing.
    largest = float((dense(second).sum(0) @ dense(first)).abs().max())
    small = 2.0 ** -round(math.log2(largest) / 2)
    out = second.train()(first.train()(x))
    out.backward(torch.full_like(out, small))
    ((x64 @ dense(first).t() + bias + x64 @ a @ b) @ dense(second).t()).sum().mul(small).backward()
    limit = 4 * spec.tolerance.cap[case.dtype]
    for found, expected in ((x, x64), (first.adapter.lora_A, a), (first.adapter.lora_B, b)):
        assert error(found.grad, expected.grad) <= limit


@TRAINABLE
def test_no_rows_give_zero_gradients_of_the_right_shape(spec: KernelSpec, case: Case) -> None:
    """R95: an empty x has an empty gradient; bias and factors have gradients of zeros, never None."""
    _, layer = build(spec, case)
    layer.train().set_adapter(factors(case.k, case.n))
    assert layer.bias is not None
    layer.bias.requires_grad_()
    x = rows(case)[:0].view(2, 0, case.k).requires_grad_()
    out = layer(x)
    assert out.shape == (2, 0, case.n)
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.shape == parameter.shape
        assert not parameter.grad.any()


@TRAINABLE
def test_only_requested_gradients_are_computed(spec: KernelSpec, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias alone costs no product with the weight, and an x alone gives the bias nothing."""
    _, layer = build(spec, case)
    layer.train()
    assert layer.bias is not None
    x = rows(case).requires_grad_()
    layer(x).sum().backward()
    assert layer.bias.grad is None
    layer.bias.requires_grad_()
    monkeypatch.setattr(layer, "input_gradient", lambda grad: pytest.fail("nobody asked for the gradient of x"))
    layer(x.detach()).sum().backward()
    assert error(layer.bias.grad, torch.full((case.n,), 3.0, dtype=torch.float64)) < 1e-6


@EVERY
def test_stored_tensors_are_never_trained(spec: KernelSpec, case: Case) -> None:
    """Codes, scales and everything beside them ask for no gradient; the parameters are bias and adapter alone."""
    _, layer = build(spec, case)
    layer.set_adapter(factors(case.k, case.n))
    assert {name for name, _ in layer.named_parameters()} == {"bias", "adapter.lora_A", "adapter.lora_B"}
    assert not any(tensor.requires_grad for tensor in layer.buffers())
    assert not any(tensor.requires_grad for tensor in layer.weight_tensor().packed().values())
    assert not layer.weight_tensor().decoded().requires_grad


@INFERENCE_ONLY
def test_r95_inference_only_records_refuse_training(spec: KernelSpec, case: Case) -> None:
    """R95: train() and a backward raise with the advice to load for training, also with an adapter attached."""
    _, layer = build(spec, case)
    layer.set_adapter(factors(case.k, case.n))
    with pytest.raises(NotImplementedError, match=r'inference-only\n.*backend="auto_trainable"'):
        layer.train()
    assert not layer.training
    out = layer(rows(case).requires_grad_())
    with pytest.raises(NotImplementedError, match="auto_trainable"):
        out.sum().backward()


@EVERY
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_r92_r94_adapters_see_x_itself(spec: KernelSpec, case: Case, kind: torch.dtype) -> None:
    """R92, R94: base + scale x A B with the caller's x, neither rounded to 8 bits nor rotated; x's dtype comes out."""
    _, layer = build(spec, case)
    x = rows(case)
    with torch.no_grad():
        base = layer(x)
        # A product far above the base makes a rounded or turned x visible.
        a, b = torch.randn(case.k, 8).to(kind), torch.randn(8, case.n).to(kind)
        for rank in (8, 1):
            layer.set_adapter(LoraAdapter(a[:, :rank], b[:rank], scale=16 / rank))
            out = layer(x)
            expected = base.double() + 16 / rank * (x.double() @ a[:, :rank].double() @ b[:rank].double())
            assert out.dtype is x.dtype
            assert error(out, expected) <= 1.25 * torch.finfo(x.dtype).eps


@EVERY
def test_the_sum_with_an_adapter_is_a_new_tensor(spec: KernelSpec, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the backend returned stays as it was, so that views and autograd that hold it stay valid."""
    _, layer = build(spec, case)
    layer.set_adapter(factors(case.k, case.n))
    plain, seen = layer.compute, []

    def compute(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.append(plain(x, bias))
        return seen[-1]

    monkeypatch.setattr(layer, "compute", compute)
    with torch.no_grad():
        out = layer(rows(case))
        (base,) = seen
        assert out.data_ptr() != base.data_ptr()
        assert torch.equal(base, plain(rows(case), layer.bias))


class _Wide:
    """A layer in float64, to check the operator's own backward by finite differences."""

    module_name, trainable = "wide", True

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def compute(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return x W^T + bias."""
        return torch.nn.functional.linear(x.detach(), self.weight, None if bias is None else bias.detach())

    def input_gradient(self, grad: torch.Tensor) -> torch.Tensor:
        """Return grad W."""
        return grad.detach() @ self.weight


def test_the_operator_passes_gradcheck() -> None:
    """In float64 the backward of quantfarm::linear agrees with finite differences for x and bias."""
    layer = _Wide(torch.randn(5, 8, dtype=torch.float64))
    number = ops.register_layer(layer)
    x = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True)
    for inputs in ((x, bias), (x.detach(), bias), (x, bias.detach())):
        assert torch.autograd.gradcheck(lambda x, bias: torch.ops.quantfarm.linear(x, bias, number, 5), inputs)
    assert torch.autograd.gradcheck(lambda x: torch.ops.quantfarm.linear(x, None, number, 5), (x,))


def test_the_adapter_passes_gradcheck() -> None:
    """In float64 the gradients of x, of the base output and of both factors agree with finite differences."""
    adapter = factors(8, 5, scale=0.5)
    leaves = [
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 8), (3, 5), (8, 4), (4, 5))
    ]

    def through(x: torch.Tensor, base: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.func.functional_call(adapter, {"lora_A": a, "lora_B": b}, (x, base))
        return out

    assert torch.autograd.gradcheck(through, leaves)
