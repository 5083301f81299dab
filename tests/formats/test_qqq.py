"""QQQ: stored tensors of both modes, rounding from floats, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from quantfarm.errors import ConfigError, InexactConversion, TensorMismatch
from quantfarm.formats.config import QuantConfig, parse
from quantfarm.formats.facts import TensorFact
from quantfarm.formats.packing_qqq import QQQ_GROUPED, QQQ_PER_CHANNEL
from quantfarm.formats.qqq import from_floats, read, write
from quantfarm.formats.table import find

both_modes = pytest.mark.parametrize("size", [128, -1])


def config(size: int, **changes: Any) -> QuantConfig:
    """Return parsed settings."""
    return parse({"quant_method": "qqq", "bits": 4, "group_size": size} | changes, source="config.json")


def stored(k: int, n: int, size: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Draw the tensors of one module; any word is valid. Fine scales reach where 8 bits saturate."""
    source = torch.Generator().manual_seed(seed)
    fine = (torch.rand(k // 128, n, generator=source) * 20).half() if size != -1 else torch.empty(0).half()
    return {
        "B": torch.randint(-(2**31), 2**31, (k // 16, n * 2), generator=source).to(torch.int32),
        "s_channel": torch.rand(1, n, generator=source) * 0.01 + 0.001,
        "s_group": fine,
        "bias": torch.randn(n, generator=source).half(),
    }


def literal(tensors: dict[str, torch.Tensor], size: int) -> torch.Tensor:
    """Return W [N, K] in float64, word by word as formats, section 9 says it."""
    rows, columns = tensors["B"].shape
    out = torch.zeros(columns // 2, rows * 16, dtype=torch.float64)
    order = (0, 2, 4, 6, 1, 3, 5, 7) if size != -1 else (4, 0, 5, 1, 6, 2, 7, 3)
    # Where the scale of an output lies: the rules of 64 and of 32 of section 7, searched instead of inverted.
    rule64 = {i + 8 * j: 8 * i + j for i in range(8) for j in range(8)}
    rule32 = {2 * i + (0, 1, 8, 9, 16, 17, 24, 25)[j]: 8 * i + j for i in range(4) for j in range(8)}
    words = tensors["B"].tolist()
    for kt in range(rows):
        for column in range(columns):
            nt, rest = divmod(column, 128)
            th, wp = divmod(rest, 4)
            n0, k0 = 64 * nt + 16 * wp + th // 4, 16 * kt + 4 * (th % 4)
            for i in range(8):
                v = order[i]
                n, k = n0 + 8 * (v // 4), k0 + v % 4
                nibble = words[kt][column] >> 4 * i & 15
                if size == -1:
                    w8 = 16.0 * (nibble - 16 if nibble > 7 else nibble)
                else:
                    fine = float(tensors["s_group"][k // 128, n // 64 * 64 + rule64[n % 64]])
                    w8 = float(max(-128, min(127, round((nibble - 8) * fine))))
                out[n, k] = w8 * float(tensors["s_channel"][0, n // 32 * 32 + rule32[n % 32]])
    return out


@both_modes
def test_the_weight_is_that_of_the_closed_form(size: int) -> None:
    """Codes, both levels of scales and their saved orders decode as a literal loop over the words does."""
    tensors = stored(256, 128, size)
    weight = read(tensors, config(size), module="m")
    expected = literal(tensors, size)
    assert torch.allclose(weight.decoded().double(), expected, rtol=1e-6)
    assert torch.equal(weight.decoded(60, 70), weight.decoded()[60:70])
    integers = weight.integers()
    assert torch.equal(integers, integers.round())
    assert (int(integers.min()), int(integers.max())) == ((-128, 127) if size != -1 else (-128, 112))


@budget(max_examples=12, deadline=None)
@given(size=st.sampled_from([128, -1]), k=st.integers(1, 3), n=st.integers(1, 3), seed=st.integers(0, 999))
def test_tensors_come_back_bit_for_bit(size: int, k: int, n: int, seed: int) -> None:
    """Reading and writing give the same bytes for random words, which hold every code in every place."""
    tensors = stored(128 * k, 64 * n, size, seed)
    weight = read(tensors, config(size), module="m", k=128 * k, n=64 * n)
    written = write(weight, config(size))
    assert written.keys() == tensors.keys()
    assert all(torch.equal(written[name], tensors[name]) for name in tensors)
    assert all(written[name].dtype == tensors[name].dtype for name in tensors)


@pytest.mark.parametrize("order", [QQQ_GROUPED, QQQ_PER_CHANNEL])
def test_the_orders_hold_each_place_once(order: Any) -> None:
    """A tile's words hold each of its 1024 codes once, and packing undoes unpacking with the top bit set."""
    assert sorted(order.places) == list(range(1024))
    words = torch.randint(-(2**31), 2**31, (3, 256)).to(torch.int32)
    assert torch.equal(order.pack(order.unpack(words)), words)


@both_modes
@pytest.mark.parametrize("nibble", [0, 7, 8, 15])
def test_the_lowest_and_the_highest_code(size: int, nibble: int) -> None:
    """Codes -8 and 7 come out as such in both modes: unsigned with zero 8, and two's complement."""
    word = int.from_bytes(bytes([nibble * 17] * 4), "little", signed=True)
    tensors = stored(128, 64, size) | {
        "B": torch.full((8, 128), word, dtype=torch.int32),
        "s_channel": torch.ones(1, 64),
    }
    if size != -1:
        tensors["s_group"].fill_(2.0)
    expected = (nibble - 8) * 2 if size != -1 else (nibble - 16 if nibble > 7 else nibble) * 16
    assert bool((read(tensors, config(size), module="m").decoded() == expected).all())


@both_modes
def test_rounding_from_floats_is_close(size: int) -> None:
    """A dense weight decodes within the step of 4 bits; zero outputs stay zero; what can not be stored is refused."""
    dense = torch.randn(64, 256)
    dense[5] = 0
    weight = from_floats(dense, config(size), bias=torch.ones(64))
    assert float((weight.decoded() - dense).norm() / dense.norm()) < 0.15
    assert not weight.decoded()[5].any()
    again = from_floats(weight.decoded(), config(size))
    assert float((again.decoded() - weight.decoded()).norm() / dense.norm()) < 0.15
    assert read(write(weight, config(size)), config(size), module="m").bias is not None
    with pytest.raises(
        InexactConversion, match=r"K: needs a multiple of \d+, got 40\n  N: needs a multiple of 64, got 5"
    ):
        from_floats(torch.ones(5, 40), config(size))
    with pytest.raises(InexactConversion, match="weights: needs finite ones, got 1"):
        from_floats(dense.where(dense < dense.max(), torch.nan), config(size))


def test_rounding_is_the_stated_one() -> None:
    """With groups q = round(W / s_fine) and s_group = s_fine / s_channel in fp16; without, s_channel is s / 16."""
    dense = torch.randn(64, 256)
    fine = 2 * dense.view(64, 2, 128).abs().amax(2) / 15
    weight = from_floats(dense, config(128))
    channel = fine.amax(1) * 8 / 127
    assert torch.equal(weight.channel_scales, channel)
    assert weight.group_scales is not None
    assert torch.equal(weight.group_scales, (fine / channel[:, None]).t().half())
    q = torch.round(dense.view(64, 2, 128) / fine[:, :, None]).clamp(-8, 7)
    w8 = torch.round(q * weight.group_scales.float().t()[:, :, None]).clamp(-128, 127).view(64, 256)
    assert torch.equal(weight.integers().t(), w8)
    whole = from_floats(dense, config(-1))
    assert torch.equal(whole.channel_scales, 2 * dense.abs().amax(1) / 15 / 16)


def test_every_wrong_shape_is_named_at_once() -> None:
    """Truncated words, scales of another mode or dtype and values that are not finite are told in one error."""
    tensors = stored(256, 64, 128)
    broken = tensors | {"B": tensors["B"][:15], "s_channel": tensors["s_channel"].half()}
    broken["s_group"] = tensors["s_group"][:1].clone()
    broken["s_group"][0, 0] = torch.nan
    with pytest.raises(TensorMismatch) as caught:
        read(broken, config(128), module="m", k=256, n=64)
    for text in ("rows: needs 16", "float32, got float16", "groups: needs 2", "finite ones, got 1 that are not"):
        assert text in str(caught.value)
    with pytest.raises(TensorMismatch, match=r"s_group +entries: needs 0 \(group_size=-1\), got 128"):
        read(tensors, config(-1), module="m")
    with pytest.raises(TensorMismatch, match=r"s_group .*needs .*got"):
        read(stored(256, 64, -1), config(128), module="m")
    with pytest.raises(TensorMismatch, match=r"B +tensor: needs one, got none"):
        read({"s_channel": tensors["s_channel"]}, config(128), module="m")
    with pytest.raises(TensorMismatch, match=r"inputs: needs a multiple of 128, got 160(.|\n)*outputs: .* 64, got 96"):
        read(tensors, config(128), module="m", k=160, n=96)


@pytest.mark.parametrize(
    "change", [{"group_size": 64}, {"sym": False}, {"desc_act": True}, {"bits": 8}], ids=lambda c: next(iter(c))
)
def test_settings_without_meaning_are_refused(change: dict[str, Any]) -> None:
    """R32: groups other than 128 and one for the row are refused by name, like other widths, zero points and orders."""
    with pytest.raises(ConfigError, match=next(iter(change))):
        parse({"quant_method": "qqq", "bits": 4, "group_size": 128} | change, source="config.json")


def test_a_header_tells_the_layer() -> None:
    """K, N and scheme follow from B alone."""
    row = find(config(128).method, config(128).format)
    facts = row.describe()({"B": TensorFact(dtype="I32", shape=(16, 128))}, config(128))
    assert (facts.k, facts.n, str(facts.scheme)) == (256, 64, "int4 g128 sym")
