"""The backend of narrow floats: products, biases, gradients, state and memory of every format that it reads."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from layer_cases import backend_of, error, verdict

from quantfarm.declare.names import BACKEND
from quantfarm.declare.registry import KERNELS
from quantfarm.formats import fp4, fp8
from quantfarm.formats.config import QuantConfig, parse
from quantfarm.formats.weights.floats import NarrowFloats
from quantfarm.runtime.adapter import LoraAdapter
from quantfarm.runtime.linear import QuantLinear

(SPEC,) = (spec for spec in KERNELS if spec.backend is BACKEND.FP8_TORCH)
N, K = 80, 96
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_FP8 = {"method": "fp8", "bits": 8, "group_size": -1}
SETTINGS: dict[str, dict[str, Any]] = {
    "tensor": _FP8 | {"weight_scale_method": "tensor", "weight_scale_semantics": "inverse"},
    "row": _FP8 | {"format": "float8_e5m2", "weight_scale_semantics": "multiply"},
    "block with edges": _FP8 | {"weight_block_size": [64, 64], "weight_scale_semantics": "inverse"},
    "mxfp4": {"method": "fp8", "format": "mxfp4", "bits": 4, "group_size": 32},
    "nvfp4": {
        "method": "fp8",
        "format": "nvfp4",
        "bits": 4,
        "group_size": 16,
        "weight_global_scale_semantics": "divide",
    },
}
PACKERS: dict[str, Any] = {"fp8": fp8, "mxfp4": fp4, "nvfp4": fp4}
every_weight = pytest.mark.parametrize("name", list(SETTINGS))


def config_of(name: str) -> QuantConfig:
    """Return the parsed settings of a case."""
    return parse(SETTINGS[name], source="settings")


def weight(name: str, bias: torch.Tensor | None = None, seed: int = 0) -> NarrowFloats:
    """Round a drawn weight."""
    config = config_of(name)
    drawn = torch.randn(N, K, generator=torch.Generator().manual_seed(seed))
    found: NarrowFloats = PACKERS[config.format.value].pack(drawn, config, bias=bias)
    return found


def layer(name: str, bias: torch.Tensor | None = None, seed: int = 0) -> QuantLinear:
    """Build a layer that can read its stored tensors again."""
    config = config_of(name)
    read = partial(PACKERS[config.format.value].read, config=config, module="fc", k=K, n=N)
    return QuantLinear(weight(name, bias, seed), backend_of(SPEC), SPEC, name="fc", read=read)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Say whether names, dtypes and bytes are equal; torch compares no narrow floats."""
    return left.keys() == right.keys() and all(
        left[name].dtype is right[name].dtype
        and torch.equal(left[name].reshape(-1).view(torch.uint8), right[name].reshape(-1).view(torch.uint8))
        for name in left
    )


@every_weight
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 17, 65])
def test_products_keep_the_tolerance(name: str, dtype: torch.dtype, rows: int) -> None:
    """Every dtype of x, few and many rows, without and with a wide bias, against float64."""
    x = torch.randn(rows, K, generator=torch.Generator().manual_seed(rows)).to(dtype)
    w = weight(name).decoded().double().t()
    bias = torch.randn(N, generator=torch.Generator().manual_seed(1))
    verdict(SPEC, layer(name)(x), x, w)
    verdict(SPEC, layer(name, bias)(x), x, w, bias)


@every_weight
def test_leading_dimensions_and_strides_are_kept(name: str) -> None:
    """Zero rows, one dimension, three dimensions and strided x give the rows of the plain product."""
    fc, x = layer(name), torch.randn(2, 3, K)
    flat = fc(x.reshape(6, K))
    assert torch.equal(fc(x), flat.view(2, 3, N))
    assert torch.equal(fc(torch.randn(0, K)), torch.empty(0, N))
    assert fc(torch.randn(2, 0, K)).shape == (2, 0, N)
    assert torch.allclose(fc(x[0, 0]), flat[0], rtol=1e-5, atol=1e-5)
    strided = x.transpose(0, 1)
    assert torch.allclose(fc(strided), fc(strided.contiguous()))


@every_weight
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_wide_bias_that_cancels_the_product_is_added_before_rounding(name: str, dtype: torch.dtype) -> None:
    """A1, A2, E6: what is left of product and bias has the precision of fp32, not that of the rounded product."""
    x = torch.randn(4, K, generator=torch.Generator().manual_seed(3)).to(dtype)
    exact = x.double() @ weight(name).decoded().double().t()
    fc = layer(name, -exact[0].float() + 1e-3)
    assert error(fc(x[:1]), exact[:1] + (-exact[0].float() + 1e-3).double()) < 0.05


@every_weight
def test_gradients_match_float64(name: str) -> None:
    """Input, bias and adapter have gradients, codes and scales have none."""
    fc = layer(name, torch.randn(N)).train()
    fc.set_adapter(LoraAdapter(torch.randn(K, 4) * 0.1, torch.randn(4, N) * 0.1))
    assert fc.bias is not None
    assert fc.adapter is not None
    fc.bias.requires_grad_()
    x = torch.randn(5, K).requires_grad_()
    seed = torch.randn(5, N)
    fc(x).backward(seed)
    wide = seed.double()
    w, a, b = weight(name).decoded().double(), fc.adapter.lora_A.detach().double(), fc.adapter.lora_B.detach().double()
    assert x.grad is not None
    assert fc.bias.grad is not None
    assert error(x.grad, wide @ w + wide @ b.t() @ a.t()) < 1e-5
    assert error(fc.bias.grad, wide.sum(0)) < 1e-5
    assert all(not buffer.requires_grad for buffer in fc.buffers())
    empty = torch.randn(0, K).requires_grad_()
    fc(empty).sum().backward()
    assert empty.grad is not None
    assert empty.grad.shape == (0, K)


@every_weight
def test_the_state_is_what_was_stored(name: str) -> None:
    """B1: names, dtypes and bytes stay those of the file, after calls and dtype moves; another state is taken over."""
    stored = dict(weight(name, torch.ones(N)).source) | {"bias": torch.ones(N)}
    fc, x = layer(name, torch.ones(N)), torch.randn(3, K)
    fc(x)
    fc.half().to(torch.bfloat16)
    assert same(dict(fc.state_dict()), stored)
    other = layer(name, torch.zeros(N), seed=1)
    fc.load_state_dict(other.state_dict())
    assert torch.equal(fc(x), other(x))


@every_weight
def test_an_edit_of_a_scale_is_noticed(name: str) -> None:
    """E10: after a stored scale was edited in place the next call computes with it."""
    fc, x = layer(name), torch.randn(3, K)
    before = fc(x)
    scale = next(suffix for suffix in fc.state_dict() if suffix.startswith("weight_scale"))
    stored = getattr(fc, scale)
    with torch.no_grad():
        stored.copy_(torch.ones_like(stored.float()).to(stored.dtype))
    assert not torch.equal(fc(x), before)
    assert torch.equal(fc(x), layer_of(fc)(x))


def layer_of(fc: QuantLinear) -> QuantLinear:
    """Build a fresh layer from the tensors that another one holds."""
    assert fc.reader is not None
    return QuantLinear(fc.reader(fc.checkpoint_tensors()), backend_of(SPEC), SPEC, name="fc", read=fc.reader)


@every_weight
def test_one_hot_rows_give_the_weight(name: str) -> None:
    """E1, E2: each column of the product with the identity is a decoded value, within one rounding."""
    w = weight(name).decoded().t()
    assert torch.equal(layer(name)(torch.eye(K)), w)
    assert torch.equal(layer(name)(torch.eye(K, dtype=torch.bfloat16)), w.to(torch.bfloat16))
