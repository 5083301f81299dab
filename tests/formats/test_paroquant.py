"""ParoQuant: stored tensors, the transform of the input, and what is refused."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from quantfarm.errors import ConfigError, InexactConversion, TensorMismatch
from quantfarm.formats import paroquant
from quantfarm.formats.config import QuantConfig, parse
from quantfarm.formats.facts import TensorFact
from quantfarm.formats.packing import pack_awq
from quantfarm.formats.paroquant import Rotation, from_floats, no_rotation, read, write
from quantfarm.formats.table import find
from quantfarm.formats.weights.rotated import turned, turned_back, turns_of


def config(size: int = 32, rounds: int = 8, **changes: Any) -> QuantConfig:
    """Return parsed settings."""
    raw = {"quant_method": "paroquant", "bits": 4, "group_size": size, "krot": rounds}
    return parse(raw | changes, source="config.json")


def rotation(k: int, size: int, rounds: int, seed: int = 0) -> Rotation:
    """Draw a transform: every input in one pair a round, inside its group."""
    source = torch.Generator().manual_seed(seed)
    orders = [torch.cat([torch.randperm(size, generator=source) for _ in range(k // size)]) for _ in range(rounds)]
    return Rotation(
        theta=(torch.rand(rounds, k // 2, generator=source) * 6 - 3).half(),
        pairs=torch.stack(orders).to(torch.int16),
        channel_scales=(torch.rand(1, k, generator=source) + 0.5).half(),
    )


def stored(k: int, n: int, size: int, rounds: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Draw the tensors of one module, zero points of 8."""
    source = torch.Generator().manual_seed(seed)
    limit = 2**31
    return {
        "qweight": torch.randint(-limit, limit, (k, n // 8), generator=source).to(torch.int32),
        "qzeros": pack_awq(torch.full((k // size, n), 8, dtype=torch.uint8)),
        "scales": (torch.rand(k // size, n, generator=source) * 0.02 + 0.01).half(),
        **rotation(k, size, rounds, seed).tensors(),
        "bias": torch.randn(n, generator=source).half(),
    }


def literal(tensors: dict[str, torch.Tensor], size: int, rounds: int, x: list[float]) -> list[float]:
    """Return y of one row without the bias, in Python floats, by the sentences of formats, sections 4 and 15."""
    k, words = tensors["qweight"].shape
    x = [v * float(s) for v, s in zip(x, tensors["channel_scales"][0], strict=True)]
    for r in range(rounds):
        before = list(x)
        for g in range(k // size):
            for p in range(size // 2):
                i = g * size + int(tensors["pairs"][r, g * size + 2 * p])
                j = g * size + int(tensors["pairs"][r, g * size + 2 * p + 1])
                a = float(tensors["theta"][r, g * size // 2 + p])
                x[i] = before[i] * math.cos(a) + before[j] * math.sin(a)
                x[j] = -before[i] * math.sin(a) + before[j] * math.cos(a)
    out = []
    for n in range(words * 8):
        shift = 4 * (0, 4, 1, 5, 2, 6, 3, 7)[n % 8]
        codes = [int(tensors["qweight"][i, n // 8]) >> shift & 15 for i in range(k)]
        out.append(sum(x[i] * (codes[i] - 8) * float(tensors["scales"][i // size, n]) for i in range(k)))
    return out


@pytest.mark.parametrize("rounds", [1, 8])
@pytest.mark.parametrize("size", [16, 32, 64])
def test_the_weight_is_that_of_the_closed_form(size: int, rounds: int) -> None:
    """The decoded weight, transform included, gives the product that a literal loop over pairs and codes gives."""
    k, n = 128, 16
    tensors = stored(k, n, size, rounds)
    weight = read(tensors, config(size, rounds), module="m", k=k, n=n)
    x = torch.randn(2, k, dtype=torch.float64)
    expected = torch.tensor([literal(tensors, size, rounds, row) for row in x.tolist()], dtype=torch.float64)
    assert torch.allclose(x @ weight.decoded().double().t(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(weight.decoded(3, 9), weight.decoded()[3:9])
    straight = weight.rotated(x.float()).double() @ weight.inner.decoded().double().t()
    assert torch.allclose(straight, expected, rtol=1e-5, atol=1e-5)


@budget(max_examples=25, deadline=None)
@given(
    size=st.sampled_from([2, 16, 128, -1]),
    rounds=st.sampled_from([1, 2, 8]),
    seed=st.integers(0, 999),
    sym=st.booleans(),
)
def test_tensors_come_back_bit_for_bit(size: int, rounds: int, seed: int, sym: bool) -> None:
    """Reading and writing give the same bytes for any group, number of rounds, random words and zero points."""
    k = 256 if size != -1 else 64
    tensors = stored(k, 24, k if size == -1 else size, rounds, seed)
    if not sym:
        tensors["qzeros"] = torch.randint_like(tensors["qzeros"], -(2**31), 2**31 - 1)
    settings = config(size, rounds, sym=sym)
    weight = read(tensors, settings, module="m", k=k, n=24)
    written = write(weight, settings)
    assert written.keys() == tensors.keys()
    assert all(torch.equal(written[name], tensors[name]) for name in tensors)
    assert weight.scheme.sym is sym


def test_zero_points_follow_from_sym_where_none_are_stored() -> None:
    """A file without qzeros means 8 for symmetric settings, stays without them, and is refused for asymmetric ones."""
    tensors = stored(64, 16, 32, 1)
    full = read(tensors, config(32, 1), module="m")
    del tensors["qzeros"]
    weight = read(tensors, config(32, 1), module="m")
    assert torch.equal(weight.decoded(), full.decoded())
    assert "qzeros" not in write(weight, config(32, 1))
    with pytest.raises(TensorMismatch, match=r"qzeros +tensor: needs"):
        read(tensors, config(32, 1, sym=False), module="m")


def test_zero_points_that_contradict_sym_are_told() -> None:
    """Stored zero points decide: other ones than 8 make the weight asymmetric, with a note that says how many."""
    tensors = stored(64, 16, 32, 1)
    tensors["qzeros"][0, 0] += 1
    weight = read(tensors, config(32, 1), module="m")
    assert not weight.scheme.sym
    assert "1 of 32 zero points are not 8" in weight.notes[0]


@pytest.mark.parametrize("rounds", [1, 8])
def test_a_transform_without_effect_is_skipped(rounds: int) -> None:
    """No angle and scales of one: x stays itself and the weight is that of plain AWQ words; one angle changes that."""
    tensors = stored(64, 16, 32, rounds) | no_rotation(64, 32, rounds).tensors()
    weight = read(tensors, config(32, rounds), module="m")
    assert weight.identity
    x = torch.randn(3, 64)
    assert weight.rotated(x) is x
    assert torch.equal(weight.decoded(), weight.inner.decoded())
    tensors["theta"][0, 5] = 0.5
    assert not read(tensors, config(32, rounds), module="m").identity
    tensors["theta"][0, 5] = 0
    tensors["channel_scales"][0, 63] = 2
    assert not read(tensors, config(32, rounds), module="m").identity


@budget(max_examples=20, deadline=None)
@given(size=st.sampled_from([16, 32, 64, 128]), rounds=st.integers(1, 8), seed=st.integers(0, 99))
def test_turning_back_undoes_turning(size: int, rounds: int, seed: int) -> None:
    """The rounds are orthogonal: backwards by opposite angles gives x again, and lengths stay."""
    drawn = rotation(256, size, rounds, seed)
    turns = turns_of(drawn.theta.double(), drawn.pairs, size)
    x = torch.randn(3, 256, dtype=torch.float64)
    assert torch.allclose(turned_back(turned(x, turns), turns), x, atol=1e-12)
    assert torch.allclose(turned(x, turns).norm(dim=1), x.norm(dim=1))


def test_the_transform_passes_gradcheck() -> None:
    """In float64 the gradients of x, of the angles and of the scales agree with finite differences."""
    drawn = rotation(16, 8, 2)
    x, theta, scales = (
        t.double().requires_grad_() for t in (torch.randn(3, 16), drawn.theta.float(), drawn.channel_scales.float())
    )
    through = lambda x, theta, scales: turned(x * scales, turns_of(theta, drawn.pairs, 8))  # noqa: E731 - one line
    assert torch.autograd.gradcheck(through, (x, theta, scales))


def test_rounding_from_floats_is_close_behind_any_transform() -> None:
    """A dense weight that is divided, turned and rounded decodes to itself within the step of 4 bits, bias kept."""
    dense = torch.randn(24, 128)
    for turn in (None, rotation(128, 32, 8)):
        weight = from_floats(dense, config(32), rotation=turn, bias=torch.ones(24))
        assert float((weight.decoded() - dense).norm() / dense.norm()) < 0.15
        assert weight.identity is (turn is None)
        assert write(weight, config(32))["bias"].dtype is torch.float32
    with pytest.raises(InexactConversion, match="multiple of 8, got 5"):
        from_floats(torch.ones(5, 64), config(32))
    with pytest.raises(InexactConversion, match="needs a weight with a rotation, got QuantTensor"):
        write(weight.inner, config(32))  # type: ignore[arg-type]


HARM = {
    "pairs +values: needs 0 to 31, inside a group, got 1 outside": ("pairs", lambda t: t.__setitem__((0, 3), 32)),
    "pairs +values: needs 0 to 31, inside a group, got 2 outside": (
        "pairs",
        lambda t: t.__setitem__((1, slice(0, 2)), -1),
    ),
    "each input once a round, got 1 groups": ("pairs", lambda t: t.__setitem__((0, 3), int(t[0, 4]))),
    "theta +values: needs finite ones, got 1": ("theta", lambda t: t.__setitem__((0, 3), math.nan)),
    "channel_scales values: needs finite ones, got 2": ("channel_scales", lambda t: t[0, :2].fill_(math.inf)),
    "scales +values: needs finite ones, got 1": ("scales", lambda t: t.__setitem__((0, 3), math.nan)),
}


@pytest.mark.parametrize("says", HARM)
def test_values_that_mean_nothing_are_refused(says: str) -> None:
    """Pairs outside their group or twice in a round, angles and scales that are not finite are named and counted."""
    name, harm = HARM[says]
    tensors = stored(64, 16, 32, 2)
    harm(tensors[name])
    with pytest.raises(TensorMismatch, match=says):
        read(tensors, config(32, 2), module="m")


def test_every_wrong_shape_is_named_at_once() -> None:
    """A truncated file: one error names each tensor with needed and found sizes, another number of rounds included."""
    tensors = stored(64, 16, 32, 2)
    broken = {
        **tensors,
        "theta": tensors["theta"][:, :31],
        "pairs": tensors["pairs"].int(),
        "scales": torch.ones(3, 16),
    }
    with pytest.raises(TensorMismatch) as caught:
        read(broken, config(32, 8), module="m", k=64, n=16)
    for line in ("theta .*rounds: needs 8", "theta .*columns: needs 32", "pairs .*int16, got int32", "scales .*groups"):
        assert re.search(line, str(caught.value)), line
    with pytest.raises(TensorMismatch, match=r"channel_scales tensor: needs one, got none"):
        read({name: t for name, t in tensors.items() if name != "channel_scales"}, config(32, 2), module="m")
    with pytest.raises(TensorMismatch, match="a multiple of an even group_size, 48 here, got 64"):
        read(tensors, config(48, 2), module="m")


@pytest.mark.parametrize("change", [{"krot": 0}, {"krot": "many"}, {"group_size": 33}, {"desc_act": True}, {"bits": 8}])
def test_settings_without_meaning_are_refused(change: dict[str, Any]) -> None:
    """Rounds, groups, order and width that the method does not have are named."""
    with pytest.raises(ConfigError, match=next(iter(change))):
        config(**{"size": change.pop("group_size", 32), **change})


def test_settings_are_written_back() -> None:
    """The settings of the method survive a round trip, and eight rounds are assumed where none are stated."""
    settings = config(64, 1)
    assert replace(parse(settings.as_settings(), source="config.json"), notes=(), defaults_used=()) == replace(
        settings, notes=(), defaults_used=()
    )
    assert parse({"method": "paroquant", "bits": 4, "group_size": 64}, source="c").details == {"krot": 8}


def test_a_header_tells_the_layer() -> None:
    """K, N and scheme follow from qweight alone."""
    row = find(config().method, config().format)
    facts = row.describe()({"qweight": TensorFact(dtype="I32", shape=(64, 2))}, config())
    assert (facts.k, facts.n, str(facts.scheme)) == (64, 16, "int4 g32 sym")
    assert row.read() is paroquant.read
