"""QuantLinear's inputs: shapes, strides, dtypes, bias, the failure policy, the launch count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from layer_cases import Shape, backend_of, dense, dtypes_of, error, layer, records, weight

from quantfarm.declare.spec import KernelSpec
from quantfarm.errors import RuntimeFailed
from quantfarm.runtime import launches

every_kernel = pytest.mark.parametrize("spec", records())


@pytest.fixture(autouse=True)
def _no_marks() -> Iterator[None]:
    launches.forget_failures()
    yield
    launches.forget_failures()


@every_kernel
@pytest.mark.parametrize("shape", [(0, 256), (2, 0, 256), (1, 1, 256), (1, 256), (256,), (2, 3, 5, 256)], ids=str)
def test_leading_dimensions_are_kept(spec: KernelSpec, shape: tuple[int, ...]) -> None:
    """R37: any leading dimensions come back as they are, with or without a bias; zero rows launch nothing."""
    for bias in (None, torch.randn(64)):
        fc = layer(spec, bias=bias)
        before = backend_of(spec).calls()
        x = torch.randn(shape).to(torch.bfloat16)
        out = fc(x)
        assert out.shape == (*shape[:-1], 64)
        assert out.dtype == x.dtype
        assert backend_of(spec).calls() - before == (1 if x.numel() else 0)


@every_kernel
def test_strided_inputs_give_the_numbers_of_dense_ones(spec: KernelSpec) -> None:
    """R43: sliced, transposed, expanded and column-major x give what their dense copy gives and stay unchanged."""
    fc = layer(spec)
    base = torch.randn(3, 6, 400).to(torch.bfloat16)
    rows = base[..., 64 : 64 + 256]
    for x in (rows[:, ::2], rows.transpose(0, 1), rows, rows[:1].expand(4, 6, 256), rows[0].t().contiguous().t()):
        kept = x.clone()
        assert torch.equal(fc(x), fc(x.contiguous()))
        assert torch.equal(x, kept)


@every_kernel
def test_dense_inputs_reach_the_backend_without_a_copy(spec: KernelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """R43: a dense x is handed on as the same memory."""
    fc, seen = layer(spec), []
    run = backend_of(spec).run
    monkeypatch.setattr(backend_of(spec), "run", lambda p, x, b: (seen.append(x.data_ptr()), run(p, x, b))[1])
    x = torch.randn(2, 3, 256).to(torch.bfloat16)
    fc(x)
    assert seen == [x.data_ptr()]


@every_kernel
def test_r44_output_dtype_is_the_input_dtype(spec: KernelSpec) -> None:
    """R44: every declared dtype comes back as it went in, under autocast too, with the same numbers."""
    fc = layer(spec, bias=torch.randn(64))
    for dtype in dtypes_of(spec):
        x = torch.randn(3, 256).to(dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            narrowed = fc(x)
        assert narrowed.dtype == dtype
        assert torch.equal(narrowed, fc(x))


@every_kernel
def test_r44_other_dtypes_are_refused_with_the_known_ones(spec: KernelSpec) -> None:
    """R44: a dtype outside the declaration is an error that lists the declared ones; nothing is cast in silence."""
    with pytest.raises(TypeError, match=r"model\.fc.*needs x in float16, bfloat16.*got float64"):
        layer(spec)(torch.randn(1, 256, dtype=torch.float64))


@every_kernel
def test_wrong_width_is_named(spec: KernelSpec) -> None:
    """An x whose last dimension is not K is refused with both numbers and does not mark the backend as broken."""
    fc = layer(spec)
    with pytest.raises(ValueError, match=r"model\.fc.*\[\.\.\., 256\], got \[2, 255\]"):
        fc(torch.randn(2, 255).to(torch.bfloat16))
    assert not launches.failures()


@every_kernel
def test_r31_bias_is_added_once_and_unrounded(spec: KernelSpec) -> None:
    """R31: x = 0 gives the bias exactly, no bias gives 0, and an fp32 bias is not rounded before the sum."""
    for dtype in dtypes_of(spec):
        zero = torch.zeros(2, 256, dtype=dtype)
        assert torch.equal(layer(spec, bias=torch.full((64,), 1000.0))(zero), torch.full((2, 64), 1000.0, dtype=dtype))
        assert torch.equal(layer(spec)(zero), torch.zeros(2, 64, dtype=dtype))
        tensor, x = weight(Shape()), torch.randn(4, 256).to(dtype)
        product = x.double() @ dense(tensor)
        cancelling = (-product[0]).float()
        actual = layer(spec, bias=cancelling)(x)[0].double()
        # What is left of the sum is fp32 noise; a bias rounded to 16 bits would leave a thousand times more.
        assert float(actual.abs().max()) <= 2e-4 * float(product.abs().max())


@every_kernel
def test_r65_a_failing_backend_fails_once_and_stays_marked(spec: KernelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """R65: the first exception is kept and raised at every later call; the kernel is not tried again."""
    fc, tries = layer(spec), []

    def broken(*_: object) -> torch.Tensor:
        tries.append(1)
        raise RuntimeError("illegal thing number " + str(len(tries)))

    monkeypatch.setattr(backend_of(spec), "run", broken)
    x = torch.randn(1, 256).to(torch.bfloat16)
    for _ in range(1000):
        with pytest.raises(RuntimeFailed, match="illegal thing number 1") as caught:
            fc(x)
    assert len(tries) == 1
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "illegal thing" in launches.failures()[spec.backend.value]


def test_running_out_of_device_memory_is_not_a_broken_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory pressure passes through as torch raises it, and the backend stays usable."""
    spec = records()[0].values[0]
    fc = layer(spec)

    def full(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(backend_of(spec), "run", full)
    with pytest.raises(torch.OutOfMemoryError):
        fc(torch.randn(1, 256).to(torch.bfloat16))
    assert not launches.failures()


@every_kernel
def test_same_inputs_give_the_same_bits(spec: KernelSpec) -> None:
    """Twenty launches are bit-equal."""
    fc = layer(spec, Shape(act_order=True))
    x = torch.randn(5, 256).to(torch.bfloat16)
    first = fc(x)
    assert all(torch.equal(fc(x), first) for _ in range(20))
    assert error(first, x.double() @ dense(weight(Shape(act_order=True)))) < 2e-3
