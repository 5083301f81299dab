"""Rounding to the nearest code follows its formula, saturates, and packs into any readable format."""

from __future__ import annotations

import pytest
import torch
from formats.makers import settings
from hypothesis import given
from hypothesis import strategies as st

from quantfarm.declare.names import METHOD
from quantfarm.errors import InexactConversion
from quantfarm.formats.packer import quantize_rtn, to_quant_tensor
from quantfarm.formats.table import find

BITS = st.sampled_from([2, 3, 4, 8])


def made(n: int, k: int, seed: int) -> torch.Tensor:
    """Return a random weight [N, K]."""
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed))


@given(bits=BITS, k=st.integers(1, 80), size=st.sampled_from([-1, 8, 32]), sym=st.booleans(), seed=st.integers(0, 99))
def test_codes_follow_the_formula(bits: int, k: int, size: int, *, sym: bool, seed: int) -> None:
    """Each code is clamp(round((W + z*s)/s)) with its own group's unrounded scale; short last groups included."""
    weight = made(5, k, seed)
    result = quantize_rtn(weight, bits=bits, group_size=size, sym=sym)
    top, width = 2**bits - 1, k if size == -1 else size
    for column in range(k):
        s, z = result.scales[column // width], result.zeros[column // width]
        q = torch.clamp(torch.round((weight[:, column] + z * s) / s), 0, top)
        assert torch.equal(result.codes[column].to(torch.float32), q)
    groups = torch.arange(k) // width
    decoded = (result.codes.to(torch.float32) - result.zeros[groups]) * result.scales[groups]
    assert bool(((decoded.t() - weight).abs() <= result.scales[groups].t() * (1.0 if sym else 0.51) + 1e-6).all())
    assert not sym or bool((result.zeros == 2 ** (bits - 1)).all())


def test_halves_round_to_even_and_ends_saturate() -> None:
    """Symmetric 4 bit over -7.5 to 7.5 has the scale 1: halves go to the even code, the upper end stays at 15."""
    weight = torch.tensor([[-7.5, 7.5, 0.5, 1.5, -0.5, 2.5]])
    result = quantize_rtn(weight, bits=4, group_size=-1, sym=True)
    assert result.scales.item() == 1.0
    assert result.codes.flatten().tolist() == [0, 15, 8, 10, 8, 10]


def test_a_group_of_zeros_decodes_to_zeros() -> None:
    """A group without any weight keeps a finite scale."""
    for sym in (True, False):
        result = quantize_rtn(torch.zeros(2, 8), bits=4, group_size=4, sym=sym)
        assert bool((result.codes.to(torch.int32) == result.zeros[0]).all())
        assert bool((result.scales == 1).all())


def test_weights_that_are_not_finite_are_refused() -> None:
    """A NaN or an infinity is no weight; the error counts them."""
    with pytest.raises(InexactConversion, match="got 2 values that are not finite"):
        quantize_rtn(torch.tensor([[1.0, float("nan"), float("inf")]]), bits=4, group_size=-1, sym=True)


def test_scales_outside_the_stored_dtype_are_refused() -> None:
    """A scale that becomes infinite or zero in fp16 would destroy its group."""
    for factor in (1e7, 1e-12):
        result = quantize_rtn(made(2, 32, 0) * factor, bits=4, group_size=32, sym=True)
        with pytest.raises(InexactConversion, match="needs the range of float16, got 2 scales outside it"):
            to_quant_tensor(result, settings(sym=True))


def test_an_order_of_inputs_gives_a_group_index() -> None:
    """With desc_order, neighbours in the order share a group, and the codes stay in the original order."""
    weight = made(4, 64, 1)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(2))
    result = quantize_rtn(weight, bits=4, group_size=32, sym=True, desc_order=order)
    sorted_result = quantize_rtn(weight[:, order], bits=4, group_size=32, sym=True)
    assert result.g_idx is not None
    assert result.g_idx[order].tolist() == [0] * 32 + [1] * 32
    assert torch.equal(result.codes[order], sorted_result.codes)
    assert torch.equal(result.scales, sorted_result.scales)


FORMATS = [
    {"checkpoint_format": "gptq"},
    {"checkpoint_format": "gptq_v2"},
    {"quant_method": "awq", "version": "gemm", "sym": None, "zero_point": False},
]


@pytest.mark.parametrize("dialect", FORMATS)
def test_a_packed_weight_is_written_and_read_in_every_format(dialect: dict[str, object]) -> None:
    """Pack, write, read: the same codes, fp16 scales, zero points and bias, in each readable format."""
    config = settings(**{"sym": True} | dialect)
    result = quantize_rtn(made(16, 96, 3), bits=4, group_size=32, sym=True)
    tensor = to_quant_tensor(result, config, bias=torch.ones(16))
    row = find(config.method, config.format)
    written = row.write()(tensor, config)
    again = row.read()(written, config, module="m")
    assert written["scales"].dtype is torch.float16
    assert torch.equal(again.unpacked(), result.codes)
    assert torch.equal(again.decoded(), tensor.decoded())
    assert torch.equal(again.bias, torch.ones(16))
    assert again.scheme == tensor.scheme
    assert ("g_idx" in written) is (config.method is METHOD.GPTQ)
    assert torch.equal(tensor.codes_to_source(tensor.codes)["qweight"], written["qweight"])


@given(bits=BITS, seed=st.integers(0, 99))
def test_act_order_survives_the_file(bits: int, seed: int) -> None:
    """A group index is written, read back, and decodes to the same weights."""
    order = torch.randperm(70, generator=torch.Generator().manual_seed(seed))
    config = settings(bits=bits, desc_act=True, checkpoint_format="gptq_v2")
    result = quantize_rtn(made(9, 70, seed), bits=bits, group_size=32, sym=False, desc_order=order)
    tensor = to_quant_tensor(result, config)
    row = find(config.method, config.format)
    again = row.read()(row.write()(tensor, config), config, module="m", k=70)
    assert again.scheme.act_order
    assert torch.equal(again.decoded(), tensor.decoded())
