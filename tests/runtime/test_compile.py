"""Tracing: one opaque operator with a known output shape, so that graphs stay whole."""

from __future__ import annotations

import pytest
import torch
from layer_cases import layer, records
from torch._dynamo.testing import CompileCounterWithBackend

from quantfarm.declare.spec import KernelSpec


@pytest.mark.parametrize("spec", records())
def test_r46_compiled_layers_do_not_break_or_recompile(spec: KernelSpec) -> None:
    """R46: fullgraph compilation works, dynamic rows share one graph, and the numbers are those of eager."""
    torch._dynamo.reset()
    fc = layer(spec, bias=torch.randn(64))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(fc, fullgraph=True, backend=counter)
    with torch.no_grad():
        for rows in (7, 128, 33):
            x = torch.randn(rows, 256).to(torch.bfloat16)
            torch._dynamo.mark_dynamic(x, 0)
            assert torch.equal(compiled(x), fc(x))
        assert counter.frame_count == 1
        for shape in ((1, 256), (0, 256), (2, 3, 256)):
            x = torch.randn(shape).to(torch.bfloat16)
            assert torch.equal(compiled(x), fc(x))


@pytest.mark.parametrize("spec", records(training=True))
def test_compiled_layers_train(spec: KernelSpec) -> None:
    """R46: the traced backward gives the gradient of eager."""
    torch._dynamo.reset()
    fc = layer(spec).train()
    compiled = torch.compile(fc, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 256).to(torch.bfloat16)
    grads = []
    for function in (fc, compiled):
        leaf = x.clone().requires_grad_()
        function(leaf).sum().backward()
        grads.append(leaf.grad)
    assert grads[0] is not None
    assert grads[1] is not None
    assert torch.equal(grads[0], grads[1])


def test_fake_output_has_shape_dtype_and_device() -> None:
    """R46: the shape-only form is right for empty, 1-D and 3-D input."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    spec = records()[0].values[0]
    fc = layer(spec)
    with FakeTensorMode():
        for shape in ((0, 256), (256,), (2, 3, 256)):
            out = torch.ops.quantfarm.linear(torch.empty(shape, dtype=torch.bfloat16), None, fc._number, 64)
            assert out.shape == (*shape[:-1], 64)
            assert out.dtype == torch.bfloat16
            assert out.device.type == "cpu"
