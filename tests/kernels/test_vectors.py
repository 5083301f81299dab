"""The portable backend of vector codes against float64, as a layer: products, state, refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from layer_cases import CPU, backend_of, dtypes_of, verdict
from vector_cases import Case, literal

from quantfarm.declare.names import METHOD
from quantfarm.declare.registry import implemented_records
from quantfarm.formats.vptq import read
from quantfarm.runtime.linear import QuantLinear

SPEC = next(spec for spec in implemented_records() if spec.method is METHOD.VPTQ)
BACKEND = backend_of(SPEC)
FULL = Case(
    n=46, vector=8, main=8, residual=9, groups=2, group_size=30, outlier_size=4, outlier_vector=3, norm=True, perm=True
)


def _layer(case: Case, bias: torch.Tensor | None = None) -> QuantLinear:
    reader: Any = partial(read, config=case.config(), module="m")
    tensors = case.stored() | ({} if bias is None else {"bias": bias})
    return QuantLinear(reader(tensors), BACKEND, SPEC, name="model.fc", read=reader)


@pytest.mark.parametrize("case", [FULL, Case(n=64, packed=False), replace(FULL, packed=False, dtype=torch.bfloat16)])
def test_products_keep_the_declared_tolerance(case: Case) -> None:
    """Rows 1 to 40, every dtype, no bias and a wide one: within the record's limits of the float64 product."""
    exact = literal(case.stored(), case.own()).t()
    source = torch.Generator().manual_seed(0)
    for rows, dtype in zip([1, 17, 40], dtypes_of(SPEC), strict=True):
        x = torch.randn(rows, case.k, generator=source).to(dtype)
        for bias in (None, torch.randn(case.n, generator=source)):
            out = BACKEND.run(BACKEND.prepare(case.weight(), CPU), x, bias)
            verdict(SPEC, out, x, exact, bias)


def test_one_hot_rows_give_the_columns() -> None:
    """F-IDENT: x = identity gives each decoded value within one rounding of the activation dtype."""
    exact = literal(FULL.stored(), FULL.own()).t()
    for dtype in dtypes_of(SPEC):
        out = BACKEND.run(BACKEND.prepare(FULL.weight(), CPU), torch.eye(FULL.k, dtype=dtype), None)
        assert bool(((out.double() - exact).abs() <= exact.abs() * torch.finfo(dtype).eps + 1e-6).all())


def test_a_wide_bias_stays_wide() -> None:
    """A2, B8: an fp32 bias that cancels the product is added before rounding and is fp32 after moves of dtype."""
    x = torch.randn(1, FULL.k, dtype=torch.bfloat16).repeat(3, 1)
    product = x.double() @ literal(FULL.stored(), FULL.own()).t()
    fc = _layer(FULL, -product[0].float()).to(torch.bfloat16)
    assert float(fc(x).float().abs().max()) < 1e-5 * float(product.abs().max())
    assert fc.state_dict()["bias"].dtype is torch.float32


def test_inputs_of_any_shape() -> None:
    """No rows, 1-D, 3-D and strided inputs keep their leading sides."""
    fc = _layer(FULL)
    before = BACKEND.calls()
    assert fc(torch.empty(2, 0, FULL.k)).shape == (2, 0, FULL.n)
    assert BACKEND.calls() == before
    strided = torch.randn(3, 5, 2 * FULL.k)[:, :, ::2]
    assert fc(strided).shape == (3, 5, FULL.n)
    assert torch.equal(fc(strided), fc(strided.contiguous()))
    assert fc(strided[0, 0]).shape == (FULL.n,)


def test_panels_begin_where_both_vectors_do() -> None:
    """A weight of many panels is the same as in one piece, with outlier vectors of another length."""
    case = Case(n=70, vector=4, group_size=1 << 14, outlier_size=2, outlier_vector=3)
    weight, x = case.weight(), torch.randn(2, case.k)
    assert (weight.row_block, 70 * case.k > 1 << 20) == (12, True)
    out = BACKEND.run(BACKEND.prepare(weight, CPU), x, None)
    assert torch.allclose(out, x @ weight.decoded().t(), rtol=1e-5, atol=1e-3)
    with pytest.raises(ValueError, match="multiple of 12, got 4"):
        weight.decoded(4)


def test_an_edit_in_place_is_seen() -> None:
    """E10: centroids, order and residuals that are edited compute anew; an order that is none is refused."""
    fc, x = _layer(FULL), torch.randn(2, FULL.k)
    for name in ("centroids.weight", "res_centroids.weight", "weight_bias"):
        before = fc(x)
        with torch.no_grad():
            fc._buffers[name].mul_(2)  # type: ignore[union-attr]
        assert not torch.equal(fc(x), before)
    before = fc(x)
    with torch.no_grad():
        fc._buffers["perm"].copy_(fc._buffers["perm"].flip(0))  # type: ignore[union-attr]
    assert not torch.equal(fc(x), before)


def test_the_record_holds() -> None:
    """Training is refused with the advice, restoring has no meaning, and nothing is declared that is unknown."""
    fc = _layer(FULL)
    with pytest.raises(NotImplementedError, match=r"inference-only\n.*auto_trainable"):
        fc.train()
    with pytest.raises(TypeError, match="VectorWeight keeps its stored tensors"):
        BACKEND.restore(fc.prepare())
    assert (SPEC.unknown, SPEC.features.keeps_source, SPEC.features.raw_packing) == ((), True, False)
