"""The portable backend of trellis codes against float64, as a layer: products, memory, state, refusals."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from layer_cases import CPU, backend_of, dtypes_of, error, verdict
from trellis_cases import CODEBOOKS, literal, settings, stored, weight

from quantfarm.declare.names import METHOD
from quantfarm.declare.registry import implemented_records
from quantfarm.formats.config import parse
from quantfarm.formats.exl3 import read
from quantfarm.runtime.linear import QuantLinear

SPEC = next(spec for spec in implemented_records() if spec.method is METHOD.EXL3)
BACKEND = backend_of(SPEC)


def _layer(tensors: dict[str, torch.Tensor]) -> QuantLinear:
    reader: Any = partial(read, config=parse(settings(), source="s"), module="model.fc")
    return QuantLinear(reader(tensors), BACKEND, SPEC, name="model.fc", read=reader)


@pytest.mark.parametrize("codebook", CODEBOOKS)
@pytest.mark.parametrize("bits", [1, 4, 7])
def test_products_keep_the_declared_tolerance(bits: int, codebook: str) -> None:
    """Rows 1 to 40, every dtype, no bias and a wide one: within the record's limits of the float64 product."""
    tensors = stored(k=128, n=256, bits=bits, codebook=codebook, seed=bits)
    exact = literal(tensors).t()
    source = torch.Generator().manual_seed(bits)
    for rows, dtype in zip([1, 17, 40], dtypes_of(SPEC), strict=True):
        x = torch.randn(rows, 128, generator=source).to(dtype)
        for bias in (None, torch.randn(256, generator=source)):
            out = BACKEND.run(BACKEND.prepare(weight(tensors), CPU), x, bias)
            verdict(SPEC, out, x, exact, bias)


def test_a_cancelling_wide_bias_is_added_before_rounding() -> None:
    """A2, E6: a bias that cancels the product leaves the small rest that only fp32 sums hold."""
    tensors = stored()
    x = torch.randn(1, 128, dtype=torch.bfloat16).repeat(3, 1)
    product = x.double() @ literal(tensors).t()
    bias = -product[0].float()
    out = _layer(tensors | {"bias": bias})(x)
    assert float(out.float().abs().max()) < 1e-5 * float(product.abs().max())


def test_inputs_of_any_shape() -> None:
    """No rows, 1-D, 3-D and strided inputs keep their leading sides; a part of a wider tensor reads its own values."""
    fc = _layer(stored())
    before = BACKEND.calls()
    assert fc(torch.empty(2, 0, 128)).shape == (2, 0, 128)
    assert BACKEND.calls() == before
    wide = torch.randn(3, 5, 256)
    strided = wide[:, :, ::2]
    assert fc(strided).shape == (3, 5, 128)
    assert torch.equal(fc(strided), fc(strided.contiguous()))
    assert torch.equal(fc(strided[0, 0]), fc(strided[0, :1].contiguous())[0])
    assert BACKEND.calls() > before


def test_many_calls_give_the_same_bits() -> None:
    """The same input gives the same bits 20 times, and the panels of many rows the same weight as those of few."""
    fc = _layer(stored(k=256, n=256, bits=2))
    x = torch.randn(40, 256)
    first = fc(x)
    assert all(torch.equal(fc(x), first) for _ in range(20))
    assert error(fc(x[:16]), first[:16].double()) < 1e-6


def test_panels_cover_wide_layers() -> None:
    """A layer that is wider and higher than a panel is the sum of all its panels."""
    tensors = stored(k=1024, n=8320, bits=1)
    read_back = weight(tensors)
    for rows in (2, 20):
        x = torch.randn(rows, 1024)
        panels = list(BACKEND._panels(read_back, rows))
        assert len(panels) > 2
        out = BACKEND.run(BACKEND.prepare(read_back, CPU), x, None)
        assert error(out, x.double() @ read_back.decoded().double().t()) < 2e-6


def test_state_is_the_checkpoint_and_edits_are_seen() -> None:
    """B1, E10: the state has the stored bytes before and after use; edits in place and loaded states compute anew."""
    tensors = stored(codebook="mul1") | {"bias": torch.randn(128)}
    fc, x = _layer({name: tensor.clone() for name, tensor in tensors.items()}), torch.randn(2, 128)
    first = fc(x)
    fc.half().float()
    state = fc.state_dict()
    assert state.keys() == tensors.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in tensors.items())
    with torch.no_grad():
        fc.get_buffer("suh").mul_(2)
    assert not torch.equal(fc(x), first)
    fc.load_state_dict(tensors)
    assert torch.equal(fc(x), first)
    with torch.inference_mode():
        fc.get_buffer("trellis").zero_()
    fc.clear_weight_cache()
    assert not torch.equal(fc(x), first)


def test_the_record_holds() -> None:
    """Training is refused with the advice, restoring has no meaning, another device is named, activations are three."""
    fc = _layer(stored())
    with pytest.raises(NotImplementedError, match=r"inference-only\n.*auto_trainable"):
        fc.train()
    with pytest.raises(TypeError, match="TrellisWeight keeps its stored tensors"):
        BACKEND.restore(fc.prepare())
    with pytest.raises(ValueError, match="needs device meta, got cpu"):
        BACKEND.prepare(weight(stored()), torch.device("meta"))
    assert SPEC.features.keeps_source is True
    assert SPEC.activations == ("float16", "bfloat16", "float32")
