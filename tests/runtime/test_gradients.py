"""Training: gradients of input, bias and adapter; refusal by backends without them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from layer_cases import Shape, dense, layer, records, weight

from quantfarm.declare.spec import KernelSpec
from quantfarm.runtime.adapter import LoraAdapter

trainable = pytest.mark.parametrize("spec", records(training=True))
_portable = records(training=True)[0].values[0]
_frozen = replace(_portable, features=replace(_portable.features, training=False))
inference_only = pytest.mark.parametrize("spec", [*records(training=False), pytest.param(_frozen, id="declared")])
every_kernel = pytest.mark.parametrize("spec", records())


def _error(actual: torch.Tensor | None, expected: torch.Tensor) -> float:
    assert actual is not None
    return float((actual.detach().double() - expected).norm() / expected.norm().clamp_min(1e-300))


@trainable
@pytest.mark.parametrize("rows", [(256,), (3, 256), (2, 3, 256), (0, 256), (2, 0, 256)], ids=str)
def test_r95_gradients_of_input_and_bias(spec: KernelSpec, rows: tuple[int, ...]) -> None:
    """R37, R95: both gradients match float64 for any leading dimensions; zero rows give zeros of the right shape."""
    shape = Shape(act_order=True, k=256)
    bias = torch.randn(64)
    fc = layer(spec, shape, bias).train()
    assert fc.bias is not None
    fc.bias.requires_grad_()
    x = torch.randn(rows).to(torch.bfloat16).requires_grad_()
    out = fc(x)
    seed = torch.randn(out.shape).to(torch.bfloat16)
    out.backward(seed)
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert x.grad.dtype == x.dtype
    assert fc.bias.grad is not None
    assert fc.bias.grad.dtype == torch.float32
    if x.numel():
        assert _error(x.grad, seed.double() @ dense(weight(shape)).t()) < 4e-3
        assert _error(fc.bias.grad, seed.double().reshape(-1, 64).sum(0)) < 1e-6
    else:
        assert not fc.bias.grad.any()


@trainable
def test_only_requested_gradients_are_computed(spec: KernelSpec) -> None:
    """A bias that asks for nothing gets nothing, and codes, scales and zero points never get a gradient."""
    fc = layer(spec, bias=torch.randn(64)).train()
    x = torch.randn(3, 256).to(torch.bfloat16).requires_grad_()
    fc(x).sum().backward()
    assert x.grad is not None
    assert fc.bias is not None
    assert fc.bias.grad is None
    assert all(not buffer.requires_grad for buffer in fc.buffers())


@trainable
def test_r95_adapter_on_the_first_of_two_layers_learns(spec: KernelSpec) -> None:
    """R95: with two stacked layers the gradients of x and of the adapter before them match float64."""
    first, second = layer(spec, Shape(n=256)).train(), layer(spec, Shape(seed=1)).train()
    first.set_adapter(LoraAdapter(torch.randn(256, 4) * 0.1, torch.randn(4, 256) * 0.1))
    assert first.adapter is not None
    x = torch.randn(5, 256).to(torch.bfloat16).requires_grad_()
    second(first(x)).sum().backward()
    wide = x.detach().double().requires_grad_()
    a, b = (p.detach().double().requires_grad_() for p in (first.adapter.lora_A, first.adapter.lora_B))
    hidden = wide @ dense(weight(Shape(n=256))) + wide @ a @ b
    (hidden @ dense(weight(Shape(seed=1)))).sum().backward()
    assert wide.grad is not None
    assert _error(x.grad, wide.grad) < 1e-2
    assert _error(first.adapter.lora_A.grad, a.grad) < 1e-2
    assert _error(first.adapter.lora_B.grad, b.grad) < 1e-2


@inference_only
def test_inference_only_layers_refuse_training(spec: KernelSpec) -> None:
    """R95: train() raises at once and names auto_trainable; eval() stays allowed."""
    fc = layer(spec)
    assert not fc.training
    with pytest.raises(NotImplementedError, match=r'model\.fc.*inference-only\n.*backend="auto_trainable"'):
        fc.train()
    assert not fc.training
    fc.eval()


@inference_only
def test_inference_only_layers_raise_in_backward(spec: KernelSpec) -> None:
    """R95: an x that asks for gradients computes in evaluation mode, and its backward raises instead of giving None."""
    fc = layer(spec)
    x = torch.randn(3, 256).to(torch.bfloat16).requires_grad_()
    out = fc(x)
    with pytest.raises(NotImplementedError, match="auto_trainable"):
        out.sum().backward()
    with torch.no_grad():
        assert torch.equal(fc(x), out)


@every_kernel
@pytest.mark.parametrize("factor", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_adapters_of_any_dtype_apply(spec: KernelSpec, factor: torch.dtype) -> None:
    """R94: fp32, fp16 and bf16 factors give base + x A B in x's dtype; rank 1 and a rank above K work."""
    for rank in (1, 300):
        fc = layer(spec)
        a, b = (torch.randn(256, rank) * 0.1).to(factor), (torch.randn(rank, 64) * 0.1).to(factor)
        for shape in ((3, 256), (256,), (0, 256)):
            x = torch.randn(shape).to(torch.bfloat16)
            base = layer(spec)(x)
            fc.set_adapter(LoraAdapter(a, b))
            out = fc(x)
            expected = base.double() + x.double() @ a.double() @ b.double()
            assert out.dtype == x.dtype
            assert out.shape == base.shape
            assert _error(out, expected) < 4e-3
            fc.set_adapter(None)


def test_bad_adapters_are_clear_errors() -> None:
    """R94: rank 0, factors that do not fit and other dtypes are named."""
    with pytest.raises(ValueError, match="rank of at least 1, got 0"):
        LoraAdapter(torch.zeros(256, 0), torch.zeros(0, 64))
    with pytest.raises(ValueError, match=r"needs lora_A \[K, rank\]"):
        LoraAdapter(torch.zeros(256, 4), torch.zeros(8, 64))
    with pytest.raises(TypeError, match=r"lora_A needs float16.*got torch\.int32"):
        LoraAdapter(torch.zeros(256, 4, dtype=torch.int32), torch.zeros(4, 64))
    with pytest.raises(ValueError, match=r"needs K, N = \(256, 64\), got \(128, 64\)"):
        layer(records()[0].values[0]).set_adapter(LoraAdapter(torch.zeros(128, 4), torch.zeros(4, 64)))


@every_kernel
def test_adapter_keeps_the_range_of_its_dtype(spec: KernelSpec) -> None:
    """R94: a dtype move does not push bf16 factors out of range, and the state keeps the checkpoint's own names."""
    fc = layer(spec)
    fc.set_adapter(LoraAdapter(torch.full((256, 1), 1e5).to(torch.bfloat16), torch.full((1, 64), 1e-5)))
    fc.half()
    assert torch.isfinite(fc(torch.ones(1, 256, dtype=torch.float16))).all()
    assert set(fc.state_dict()) - {"qweight", "qzeros", "scales"} == {"adapter.lora_A", "adapter.lora_B"}
