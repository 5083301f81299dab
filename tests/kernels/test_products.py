"""Both torch kernels against float64: shapes, widths, orders, hard inputs, and errors that must be noticed."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_cases import CPU, Shape, backend_of, copied, dense, dtypes_of, error, records, verdict, weight
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from quantfarm.declare.spec import KernelSpec
from quantfarm.formats.packing import pack_codes
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.runtime import panels

torch_kernels = pytest.mark.parametrize("spec", records(training=True))


def _run(spec: KernelSpec, tensor: QuantTensor, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    backend = backend_of(spec)
    out: torch.Tensor = backend.run(backend.prepare(tensor, CPU), x, bias)
    return out


def _drawn(spec: KernelSpec, draw: st.DataObject) -> Shape:
    accepts = spec.accepts[0]
    size = draw.draw(st.sampled_from(accepts.group_sizes), label="group_size")
    return Shape(
        k=draw.draw(st.integers(1, 300), label="k"),
        n=draw.draw(st.integers(1, 80), label="n"),
        bits=draw.draw(st.sampled_from(accepts.bits), label="bits"),
        group_size=size,
        sym=draw.draw(st.booleans(), label="sym"),
        act_order=draw.draw(st.booleans(), label="act_order") and size != -1,
        scale_dtype=draw.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32]), label="scales"),
        seed=draw.draw(st.integers(0, 99), label="seed"),
    )


@torch_kernels
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_declared_weight_multiplies_within_tolerance(spec: KernelSpec, data: st.DataObject) -> None:
    """Drawn sizes (short last groups, odd N), widths, orders, rows, dtypes and biases keep the declared tolerance."""
    shape = _drawn(spec, data)
    tensor = weight(shape)
    rows = data.draw(st.sampled_from([1, 2, 5, 17, 40]), label="rows")
    dtype = data.draw(st.sampled_from(dtypes_of(spec)), label="dtype")
    source = torch.Generator().manual_seed(shape.seed)
    x = torch.randn(rows, shape.k, generator=source).to(dtype)
    bias = torch.randn(shape.n, generator=source) if data.draw(st.booleans(), label="bias") else None
    verdict(spec, _run(spec, tensor, x, bias), x, dense(tensor), bias)


@torch_kernels
@pytest.mark.parametrize("act_order", [False, True])
def test_one_hot_rows_give_the_weight(spec: KernelSpec, act_order: bool) -> None:
    """F-IDENT: x = identity gives each decoded value within one rounding of the activation dtype."""
    tensor = weight(Shape(k=100, n=40, group_size=32, act_order=act_order))
    for dtype in dtypes_of(spec):
        eye = torch.eye(100, dtype=dtype)
        exact = dense(tensor)
        # Twenty rows keep to the path for few rows, all hundred take the other one.
        for rows in (slice(0, 20), slice(0, 100)):
            limit = exact[rows].abs() * max(torch.finfo(dtype).eps, 2e-5) + 1e-7
            assert bool(((_run(spec, tensor, eye[rows]).double() - exact[rows]).abs() <= limit).all())


@torch_kernels
def test_hard_inputs_keep_the_tolerance(spec: KernelSpec) -> None:
    """Heavy tails, constant rows with cancelling weights and tiny or large scales show no early narrowing (A4, E12)."""
    source = torch.Generator().manual_seed(0)
    tails = torch.randn(5, 512, generator=source) * torch.where(torch.rand(5, 512, generator=source) < 0.001, 50, 1)
    for scale in (1.0, 2.0**-14, 2.0**4):
        tensor = weight(Shape(k=512, n=96, group_size=128))
        tensor = replace(tensor, scales=(tensor.scales.float() * scale).half())
        for dtype in dtypes_of(spec):
            for x in (tails, torch.full((5, 512), 3.0)):
                verdict(spec, _run(spec, tensor, x.to(dtype)), x.to(dtype), dense(tensor))


@torch_kernels
def test_partial_sums_beyond_fp16_are_kept(spec: KernelSpec) -> None:
    """A4: partial sums far above 65504 that cancel in the end give the right finite fp16 result."""
    tensor = weight(Shape(k=256, n=32, sym=True))
    codes = tensor.unpacked()
    tensor = replace(tensor, codes=pack_codes(torch.cat([codes[:128], codes[:128]]), 4))
    scales = torch.cat([tensor.scales[:2], tensor.scales[:2]]) * 64
    tensor = replace(tensor, scales=scales)
    x = torch.cat([torch.full((2, 128), 6e4), torch.full((2, 128), -6e4)], dim=1).half()
    assert _run(spec, tensor, x).abs().max() <= 64


@torch_kernels
def test_not_finite_values_stay_in_their_row(spec: KernelSpec) -> None:
    """An infinite input gives infinities in its own row only, at this call and at the next."""
    tensor = weight(Shape(sym=True))
    x = torch.randn(3, 256).to(torch.float16)
    clean = _run(spec, tensor, x)
    prepared = backend_of(spec).prepare(tensor, CPU)
    broken = x.clone()
    broken[1, 7] = float("inf")
    out = backend_of(spec).run(prepared, broken, None)
    nonzero = dense(tensor)[7] != 0
    assert bool(torch.isinf(out[1][nonzero]).all())
    assert torch.equal(out[[0, 2]], clean[[0, 2]])
    assert torch.equal(backend_of(spec).run(prepared, x, None), clean)


def _wrong_scale(t: QuantTensor) -> QuantTensor:
    t.scales[-1, 3] *= 1.01
    return t


def _wrong_zero(t: QuantTensor) -> QuantTensor:
    t.zeros[-1, 0] += 1
    return t


def _swapped_codes(t: QuantTensor) -> QuantTensor:
    codes = t.unpacked()
    different = int(torch.nonzero(codes[-1] != codes[-2])[0])
    codes[-2:, different] = codes[-2:, different].flip(0)
    return replace(t, codes=pack_codes(codes, t.scheme.bits))


def _order_forgotten(t: QuantTensor) -> QuantTensor:
    return replace(t, g_idx=None)


@torch_kernels
@pytest.mark.parametrize("harm", [_wrong_scale, _wrong_zero, _swapped_codes, _order_forgotten])
@pytest.mark.parametrize("size", [64, 640])
def test_injected_errors_are_noticed(spec: KernelSpec, harm: object, size: int) -> None:
    """E1, E2, E4, E5: one scale 1 % off, one zero point, two swapped codes or a lost order fail the one-hot check."""
    tensor = weight(Shape(k=size, n=32, group_size=32, act_order=True))
    harmed = harm(copied(tensor))  # type: ignore[operator]
    eye, exact = torch.eye(size, dtype=torch.float16), dense(tensor)
    limit = exact.abs() * torch.finfo(torch.float16).eps + 1e-7
    assert bool(((_run(spec, tensor, eye).double() - exact).abs() <= limit).all())
    assert not bool(((_run(spec, harmed, eye).double() - exact).abs() <= limit).all())


@torch_kernels
def test_restore_gives_the_codes_back(spec: KernelSpec) -> None:
    """B1: the canonical codes come back bit for bit, unused bits of the last words included."""
    tensor = weight(Shape(k=100, n=24, group_size=32))
    backend = backend_of(spec)
    assert tensor.codes is not None
    assert torch.equal(backend.restore(backend.prepare(tensor, CPU)), tensor.codes)


@torch_kernels
def test_r71_shards_keep_the_meaning_of_their_groups(spec: KernelSpec) -> None:
    """R71: shards along K with act-order and the full scales add up to the whole; no group is taken by position."""
    tensor = weight(Shape(k=256, act_order=True))
    x = torch.randn(4, 256).half()
    codes, g_idx = tensor.unpacked(), tensor.g_idx
    assert g_idx is not None
    for count in (2, 4):
        step, total = 256 // count, torch.zeros(4, 64)
        for start in range(0, 256, step):
            part = slice(start, start + step)
            shard = replace(tensor, k=step, codes=pack_codes(codes[part], 4), g_idx=g_idx[part])
            total += _run(spec, shard, x[:, part].contiguous()).float()
        assert error(total, x.double() @ dense(tensor)) < 1e-3


def test_tiles_cover_the_weight_once() -> None:
    """Every (k, n) lies in exactly one tile, and tiles stay far below 64 MiB for the largest layers."""
    tensor = weight(Shape(k=1000, n=4100, bits=3, group_size=-1))
    seen = torch.zeros(1000, 4100, dtype=torch.int32)
    for tile in panels.tiles(tensor, 1):
        seen[tile.k0 : tile.k1, tile.n0 : tile.n1] += 1
        assert tile.values.numel() * 4 <= 16 << 20
    assert bool((seen == 1).all())


@settings(max_examples=40, deadline=None)
@given(data=st.data(), bits=st.integers(2, 8))
def test_transposed_product_is_that_of_the_same_weight(data: st.DataObject, bits: int) -> None:
    """The gradient's product uses the same decoded weight, for every code width that the stream can hold."""
    size = data.draw(st.sampled_from([-1, 16, 100]))
    tensor = weight(
        Shape(k=data.draw(st.integers(1, 200)), n=data.draw(st.integers(1, 50)), bits=bits, group_size=size)
    )
    y = torch.randn(3, tensor.n)
    assert error(panels.multiply_transposed(y, tensor), y.double() @ dense(tensor).t()) < 2e-6
    x = torch.randn(3, tensor.k)
    assert error(panels.multiply(x, tensor), x.double() @ dense(tensor)) < 2e-5


class _Memory(TorchDispatchMode):
    """Adds up the storages that operators make and that are still alive; ``peak`` is the most at any time, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: Counter[int] = Counter()
        self.size: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        known = {t.untyped_storage()._cdata for t in args if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))  # type: ignore[operator]
        if isinstance(out, torch.Tensor):
            storage = out.untyped_storage()._cdata
            if storage in self.size or storage not in known:
                self.size[storage] = out.untyped_storage().nbytes()
                self.alive[storage] += 1
                weakref.finalize(out, self._gone, storage)
            self.peak = max(self.peak, sum(self.size[s] for s in self.alive))
        return out

    def _gone(self, storage: int) -> None:
        self.alive[storage] -= 1
        if not self.alive[storage]:
            del self.alive[storage]


@pytest.mark.parametrize(("k", "n"), [(28672, 8192), (8192, 28672)])
@pytest.mark.parametrize(("group_size", "act_order"), [(16, False), (128, True), (-1, False)])
def test_extra_memory_is_bounded(k: int, n: int, group_size: int, act_order: bool) -> None:
    """B3: decoding the largest layers needs less than 64 MiB at any time, whatever the number of rows."""
    scheme = replace(weight(Shape()).scheme, group_size=group_size, act_order=act_order)
    like = weight(Shape())
    for rows in (1, 64):
        with FakeTensorMode():
            groups = 1 if group_size == -1 else k // group_size
            g_idx = torch.empty(k, dtype=torch.int32) if act_order else None
            tensor = replace(weight_of_nothing(like, k, n, groups), scheme=scheme, g_idx=g_idx)
            with _Memory() as memory:
                # All tiles are alike, so the first few stand for the rest.
                shapes = [tile.values.shape for tile in itertools.islice(panels.tiles(tensor, rows), 4)]
        assert len(shapes) == 4
        assert 1 << 20 < memory.peak < 64 << 20


def weight_of_nothing(like: QuantTensor, k: int, n: int, groups: int) -> QuantTensor:
    """Return a weight of another size without values, for shape-only runs."""
    return replace(
        like,
        k=k,
        n=n,
        codes=torch.empty(k // 8, n, dtype=torch.int32),
        scales=torch.empty(groups, n, dtype=torch.float16),
        zeros=torch.empty(groups, n, dtype=torch.int32),
    )
