"""FP8: every code, every shape and direction of a scale, files that nothing says the direction of, bad values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantfarm import reference
from quantfarm.errors import ConfigError, InexactConversion, TensorMismatch
from quantfarm.formats import fp8
from quantfarm.formats.config import QuantConfig, parse
from quantfarm.formats.facts import TensorFact
from quantfarm.formats.packing_floats import FLOAT8, float8_table
from quantfarm.formats.settings.fp8 import facts
from quantfarm.formats.weights.floats import NarrowFloats

HF = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}


def config(**changes: Any) -> QuantConfig:
    """Return parsed settings in the keys of this project."""
    return parse({"method": "fp8", "bits": 8, "group_size": -1} | changes, source="settings")


def read(tensors: dict[str, torch.Tensor], says: QuantConfig, **sizes: int) -> NarrowFloats:
    """Read one module."""
    return fp8.read(tensors, says, module="m", **sizes)


def codes_of(n: int, k: int, kind: str, seed: int) -> torch.Tensor:
    """Return random codes [n, k] that are all finite."""
    finite = torch.nonzero(torch.isfinite(float8_table(kind))).flatten().to(torch.uint8)
    chosen = torch.randint(0, len(finite), (n, k), generator=torch.Generator().manual_seed(seed))
    return finite[chosen].view(FLOAT8[kind])


@pytest.mark.parametrize("kind", list(FLOAT8))
def test_every_code_is_torchs(kind: str) -> None:
    """All 256 bytes of each dtype decode to what torch's own dtype says, NaN and infinities included."""
    expected = torch.arange(256, dtype=torch.uint8).view(FLOAT8[kind]).to(torch.float64)
    assert torch.equal(torch.nan_to_num(float8_table(kind).double()), torch.nan_to_num(expected))
    assert torch.equal(torch.isnan(float8_table(kind)), torch.isnan(expected))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_decodes_as_the_reference(data: st.DataObject) -> None:
    """Any dtype, recipe, direction and edge decodes to the float64 closed form within one or two fp32 roundings."""
    n, k = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 70))
    kind = data.draw(st.sampled_from([name for name in FLOAT8 if "e8m0" not in name]))
    method = data.draw(st.sampled_from(["tensor", "row", "block"]))
    direction = data.draw(st.sampled_from(["inverse", "multiply"]))
    block = [data.draw(st.integers(1, 50)), data.draw(st.integers(1, 80))]
    shape = {"tensor": (), "row": (n,), "block": (-(-n // block[0]), -(-k // block[1]))}[method]
    seed = data.draw(st.integers(0, 999))
    exponents = torch.randint(-8, 8, shape, generator=torch.Generator().manual_seed(seed))
    tensors = {"weight": codes_of(n, k, kind, seed), "weight_scale_inv": 1.37 * 2.0**exponents}
    says = config(format=kind, weight_scale_method=method, weight_block_size=block, weight_scale_semantics=direction)
    weight = read(tensors, says, k=k, n=n)
    expected = reference.decode(
        tensors, method="fp8", format="fp8", bits=8, group_size=-1, code_type=kind, details=says.details
    )
    assert np.allclose(weight.decoded().numpy(), expected, rtol=2e-7, atol=0)
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start + 1, n))
    assert torch.equal(weight.decoded(start, stop), weight.decoded()[start:stop])
    assert weight.scheme.bits == 8
    assert weight.code_type == kind


@pytest.mark.parametrize("direction", ["inverse", "multiply"])
@pytest.mark.parametrize("method", ["tensor", "row", "block"])
@pytest.mark.parametrize("size", [0.01, 1e4])
def test_rounding_and_reading_back(direction: str, method: str, size: float) -> None:
    """Values below and above the dtype's maximum come back within half a step; what is written is read the same."""
    w = torch.randn(70, 100, generator=torch.Generator().manual_seed(0)) * size
    w[64:, 96:] = 0
    says = config(weight_scale_method=method, weight_block_size=[32, 48], weight_scale_semantics=direction)
    packed = fp8.pack(w, says, bias=torch.ones(70))
    stored = fp8.write(packed, says)
    again = read(stored, says, k=100, n=70)
    assert torch.equal(again.decoded(), packed.decoded())
    assert set(stored) == {"weight", "weight_scale_inv", "bias"}
    # Three mantissa bits: at most 1/16 of the value, or half of the smallest step of the block.
    assert bool(((again.decoded() - w).abs() <= w.abs() / 16 + w.abs().max() * 2e-6).all())
    with pytest.raises(InexactConversion, match="weight_scale_semantics"):
        fp8.write(packed, config(weight_scale_semantics="multiply" if direction == "inverse" else "inverse"))


def test_the_scales_of_the_packer_are_the_formulas() -> None:
    """A divisor is max / amax, a multiplier amax / max, and 1 for a row of zeros."""
    w = torch.tensor([[896.0, 1.0], [0.0, 0.0], [0.5, -1.75]])
    inverse = fp8.pack(w, config(weight_scale_method="row", weight_scale_semantics="inverse"))
    assert inverse.source["weight_scale_inv"].tolist() == [0.5, 1.0, 256.0]
    multiply = fp8.pack(w, config(weight_scale_method="row", weight_scale_semantics="multiply"))
    assert multiply.source["weight_scale_inv"].tolist() == [2.0, 1.0, 1.75 / 448]


R19_SCALES = {
    "weight_scale_inv of blocks": ("weight_scale_inv", (2, 3), (128, 128)),
    "weight_scale of rank 4": ("weight_scale", (2, 1, 3, 1), (128, 128)),
    "weight_scale of the tensor": ("weight_scale", (), (256, 384)),
    "weight_scale of channels": ("weight_scale", (256, 1), (1, 384)),
}


@pytest.mark.parametrize("name", list(R19_SCALES))
def test_r19_every_convention_of_a_scale_is_read(name: str) -> None:
    """R19: four ways to name and shape the scale of one weight, each decoded as its convention says."""
    suffix, shape, (br, bc) = R19_SCALES[name]
    weight = codes_of(256, 384, "float8_e4m3fn", 0)
    scale = (2.0 ** torch.arange(torch.Size(shape).numel()).fmod(11)).reshape(shape)
    decoded = read({"weight": weight, suffix: scale}, parse(HF, source="config.json"), k=384, n=256).decoded()
    grid = scale.reshape(256 // br, 384 // bc).repeat_interleave(br, 0).repeat_interleave(bc, 1)
    assert torch.equal(decoded, weight.float() * grid)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (1, 256), (2, 3, 1), (256, 3)])
def test_r19_another_shape_is_refused_with_the_accepted_ones(shape: tuple[int, ...]) -> None:
    """R19: a shape that no convention has is refused with the key, what it has, and every shape that is read."""
    tensors = {"weight": codes_of(256, 384, "float8_e4m3fn", 0), "weight_scale": torch.ones(shape)}
    with pytest.raises(TensorMismatch) as caught:
        read(tensors, parse(HF, source="config.json"), k=384, n=256)
    assert "weight_scale " in str(caught.value)
    assert f"got {list(shape)}" in str(caught.value)
    assert "[] or [1] or [1, 1] (tensor), [256] or [256, 1] (row), [2, 3] or [2, 1, 3, 1] (block 128x128)" in str(
        caught.value
    )


SAYINGS = {
    "its own key": ({"weight_scale_semantics": "inverse"}, True),
    "its own key against its producer": (
        {"weight_scale_semantics": "multiply", "meta": {"quantizer": ["gptqmodel:7.3.4"]}},
        False,
    ),
    "its producer": ({"meta": {"quantizer": ["gptqmodel:7.3.4"]}}, True),
    "its producer against keys": ({"meta": {"quantizer": ["gptqmodel:7.3.4"]}, "fmt": "e4m3"}, True),
    "keys": ({"fmt": "e4m3", "weight_block_size": [4, 4]}, False),
    "activation_scheme": ({"activation_scheme": "dynamic"}, False),
}


@pytest.mark.parametrize("name", list(SAYINGS))
@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_settings_decide_the_direction_and_values_never_do(name: str, size: float) -> None:
    """E9: scales below and above 1 give the same direction: what a key or the producer says."""
    keys, divides = SAYINGS[name]
    weight = codes_of(8, 8, "float8_e4m3fn", 0)
    decoded = read({"weight": weight, "weight_scale_inv": torch.full((8,), size)}, config(**keys)).decoded()
    assert torch.equal(decoded, weight.float() / size if divides else weight.float() * size)


def test_a_direction_that_nothing_says_is_refused() -> None:
    """weight_scale_inv without key, producer or dialect is refused with the setting to state; other names multiply."""
    tensors = {"weight": codes_of(8, 8, "float8_e4m3fn", 0), "weight_scale_inv": torch.ones(8)}
    with pytest.raises(ConfigError, match="nothing says which way") as caught:
        read(tensors, config(meta={"quantizer": "another:1.0"}))
    assert "state weight_scale_semantics in settings" in str(caught.value)
    for name in ("weight_scale", "scale"):
        assert not read({"weight": tensors["weight"], name: torch.ones(8)}, config()).divides


def test_scales_of_other_dtypes_and_input_scales_are_kept() -> None:
    """fp16, bf16 and e8m0 scales decode as their values; input_scale stays among the stored tensors."""
    weight = codes_of(6, 4, "float8_e5m2", 1)
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e8m0fnu):
        scale = torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0, 8.0]).to(dtype)
        tensors = {"weight": weight, "scale": scale, "input_scale": torch.tensor(3.0)}
        found = read(tensors, config())
        assert torch.equal(found.decoded(), weight.float() * scale.float()[:, None])
        assert found.source == tensors


def _nan_code(t: dict[str, torch.Tensor]) -> None:
    t["weight"].view(torch.uint8)[2, 3] = 0x7F


def _nan_scale(t: dict[str, torch.Tensor]) -> None:
    t["weight_scale"][1] = float("nan")


def _zero_scale(t: dict[str, torch.Tensor]) -> None:
    t["weight_scale"][1] = 0


def _no_weight(t: dict[str, torch.Tensor]) -> None:
    del t["weight"]


def _no_scale(t: dict[str, torch.Tensor]) -> None:
    del t["weight_scale"]


def _two_scales(t: dict[str, torch.Tensor]) -> None:
    t["scale"] = torch.ones(8)


def _plain_weight(t: dict[str, torch.Tensor]) -> None:
    t["weight"] = t["weight"].to(torch.bfloat16)


def _bad_bias(t: dict[str, torch.Tensor]) -> None:
    t["bias"] = torch.ones(5)


def _integer_scale(t: dict[str, torch.Tensor]) -> None:
    t["weight_scale"] = torch.ones(8, dtype=torch.int32)


BAD = {
    "weight *values: needs finite numbers, got 1 codes": _nan_code,
    "weight_scale *values: .* got 1 that are NaN or infinite of 8": _nan_scale,
    "weight_scale *values: .* got 1 that are 0 of 8": _zero_scale,
    "weight *tensor: needs one, got none": _no_weight,
    "scale *tensor: needs one of weight_scale_inv, weight_scale, scale, got none": _no_scale,
    "got weight_scale, scale": _two_scales,
    "weight *dtype: needs float8_e4m3fn or .*, got bfloat16": _plain_weight,
    r"bias *entries: needs 8 \(N=8\), got 5": _bad_bias,
    "weight_scale *dtype: needs float16 or .*float8_e8m0fnu, got int32": _integer_scale,
}


@pytest.mark.parametrize("message", list(BAD))
def test_bad_tensors_are_refused(message: str) -> None:
    """Missing, doubled, misshapen or senseless tensors stop the load and say what was needed and what was there."""
    tensors = {"weight": codes_of(8, 8, "float8_e4m3fn", 0), "weight_scale": torch.ones(8)}
    BAD[message](tensors)
    with pytest.raises(TensorMismatch, match=message):
        read(tensors, config())


def test_every_problem_is_told_at_once() -> None:
    """A module with several problems names them all in one error."""
    tensors = {"weight": codes_of(8, 8, "float8_e5m2", 0), "weight_scale": torch.ones(3), "bias": torch.ones(5)}
    with pytest.raises(TensorMismatch) as caught:
        read(tensors, config(format="float8_e4m3fn"), k=9)
    assert all(part in str(caught.value) for part in ("got 8", "got float8_e5m2", "got [3]", "got 5"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"fmt": "e3m4"}, "fmt: needs e4m3 or e5m2"),
        ({"format": "float8_e3m4"}, "unknown format"),
        ({"weight_scale_method": "column"}, "weight_scale_method: needs tensor or row or block"),
        ({"weight_scale_method": "block"}, "weight_block_size: needs"),
        ({"weight_block_size": [128]}, "weight_block_size: needs two positive integers"),
        ({"weight_block_size": [0, 128]}, "weight_block_size: needs two positive integers"),
        ({"weight_scale_semantics": "both"}, "weight_scale_semantics: needs inverse or multiply"),
        ({"group_size": 128}, "group_size: needs -1"),
        ({"bits": 4}, "bits: needs one of 8"),
    ],
)
def test_bad_settings_are_refused(keys: dict[str, Any], message: str) -> None:
    """A key with a value that nothing here means is refused by its name."""
    with pytest.raises(ConfigError, match=message):
        config(**keys)


def test_settings_come_back_the_same() -> None:
    """Settings of either style, written in canonical keys, are read to the same facts."""
    for raw in (HF, {"method": "fp8", "format": "float8_e5m2", "bits": 8, "weight_scale_semantics": "inverse"}):
        first = parse(raw, source="a")
        assert parse(first.as_settings(), source="b").facts() == first.facts()
        assert first.ignored == ()
    assert parse(HF | {"ignored_layers": ["lm_head"]}, source="a").for_module("lm_head") is None


def test_the_packer_refuses_what_has_no_code() -> None:
    """Values that are not finite, and a dtype without signs, are refused."""
    with pytest.raises(InexactConversion, match="needs finite weights, got 1"):
        fp8.pack(torch.tensor([[1.0, float("inf")]]), config())
    with pytest.raises(InexactConversion, match="only be read"):
        fp8.pack(torch.ones(2, 2), config(format="float8_e8m0fnu"))


def test_a_header_tells_the_layer() -> None:
    """K, N, scheme and type follow from shape and dtype of the header alone."""
    header = {"weight": TensorFact(dtype="F8_E5M2", shape=(6, 8)), "weight_scale": TensorFact(dtype="F32", shape=(6,))}
    layer = facts(header, config())
    assert (layer.k, layer.n, layer.code_type, str(layer.scheme)) == (8, 6, "float8_e5m2", "float8 g-1 sym")
