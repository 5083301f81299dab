"""MXFP4 and NVFP4: every code and threshold, the swizzle of scales, files of both writers, bad values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantfarm import reference
from quantfarm.errors import ConfigError, InexactConversion, TensorMismatch
from quantfarm.formats import fp4
from quantfarm.formats.config import QuantConfig, parse
from quantfarm.formats.packing_floats import (
    E2M1,
    e2m1_pairs,
    encode_e2m1,
    pack_nibbles,
    swizzle_scales,
    unpack_nibbles,
    unswizzle_scales,
)
from quantfarm.formats.weights.floats import NarrowFloats

GROUPS = {"mxfp4": 32, "nvfp4": 16}


def config(form: str, **changes: Any) -> QuantConfig:
    """Return parsed settings in the keys of this project."""
    base = {"method": "fp8", "format": form, "bits": 4, "group_size": GROUPS[form]}
    return parse(base | changes, source="settings")


def stored(form: str, n: int, k: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random codes and scales that are all finite."""
    source = torch.Generator().manual_seed(seed)
    tensors = {"weight_packed": torch.randint(0, 256, (n, k // 2), generator=source, dtype=torch.uint8)}
    shape = (n, k // GROUPS[form])
    if form == "mxfp4":
        return tensors | {"weight_scale": torch.randint(0, 255, shape, generator=source, dtype=torch.uint8)}
    scale = torch.randint(0, 0x7F, shape, generator=source, dtype=torch.uint8).view(torch.float8_e4m3fn)
    return tensors | {"weight_scale": scale, "weight_global_scale": torch.tensor([37.5])}


def read(tensors: dict[str, torch.Tensor], says: QuantConfig, **sizes: int) -> NarrowFloats:
    """Read one module."""
    return fp4.read(tensors, says, module="m", **sizes)


def test_every_byte_is_its_two_codes() -> None:
    """Element 2i is the low nibble; all 256 bytes, both signs of zero included."""
    pairs = e2m1_pairs().view(torch.float32).view(256, 2)
    signed = [*E2M1, *(-value for value in E2M1)]
    expected = torch.tensor([[signed[byte % 16], signed[byte // 16]] for byte in range(256)])
    assert torch.equal(pairs.view(torch.int32), expected.view(torch.int32))


@settings(max_examples=60, deadline=None)
@given(st.floats(-8, 8, width=32))
def test_codes_are_the_nearest_values(value: float) -> None:
    """No other code is nearer, and of two that are equally near the even one is taken."""
    code = int(encode_e2m1(torch.tensor(value)))
    distances = [abs(abs(value) - magnitude) for magnitude in E2M1]
    nearest = [index for index, distance in enumerate(distances) if distance == min(distances)]
    assert code & 7 in nearest
    assert len(nearest) == 1 or code % 2 == 0
    assert value == 0 or bool(code & 8) == (value < 0)


def test_thresholds_go_to_the_even_code() -> None:
    """0.25 0.75 1.25 1.75 2.5 3.5 5 round to 0 1 1 2 2 4 4."""
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert [E2M1[code] for code in encode_e2m1(ties)] == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 9), half=st.integers(1, 9), seed=st.integers(0, 99))
def test_nibbles_come_back(n: int, half: int, seed: int) -> None:
    """Packing and unpacking are inverse."""
    codes = torch.randint(0, 16, (n, 2 * half), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    assert torch.equal(unpack_nibbles(pack_nibbles(codes)), codes)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 300), columns=st.integers(1, 11), data=st.data())
def test_swizzled_scales_lie_where_the_formula_says(rows: int, columns: int, data: st.DataObject) -> None:
    """A byte of a tile is at (r % 32) * 16 + (r // 32) * 4 + c, tiles go row by row, and the way back is exact."""
    scales = torch.randint(1, 256, (rows, columns), dtype=torch.uint8)
    flat = swizzle_scales(scales)
    across = -(-columns // 4)
    assert flat.numel() == -(-rows // 128) * across * 512
    r, c = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    tile = r // 128 * across + c // 4
    assert flat[tile * 512 + r % 128 % 32 * 16 + r % 128 // 32 * 4 + c % 4] == scales[r, c]
    assert int((flat != 0).sum()) == rows * columns
    assert torch.equal(unswizzle_scales(flat, rows, columns), scales)


@settings(max_examples=30, deadline=None)
@given(form=st.sampled_from(["mxfp4", "nvfp4"]), direction=st.sampled_from(["divide", "multiply"]), data=st.data())
def test_decodes_as_the_reference(form: str, direction: str, data: st.DataObject) -> None:
    """Any bytes decode to the float64 closed form within two fp32 roundings, whole or by rows."""
    n, k = data.draw(st.integers(1, 9)), GROUPS[form] * data.draw(st.integers(1, 4))
    tensors = stored(form, n, k, data.draw(st.integers(0, 99)))
    if form == "mxfp4":
        tensors["weight_scale"] = tensors["weight_scale"] % 200 + 20
    says = config(form, weight_global_scale_semantics=direction)
    weight = read(tensors, says, k=k, n=n)
    expected = reference.decode(
        tensors, method="fp8", format=form, bits=4, group_size=GROUPS[form], details=says.details
    )
    assert np.allclose(weight.decoded().numpy(), expected, rtol=3e-7, atol=0)
    assert torch.equal(weight.decoded(n // 2, n), weight.decoded()[n // 2 :])


def test_files_of_modelopt_multiply() -> None:
    """weight, weight_scale and weight_scale_2 are read under these names, and the last one multiplies."""
    ours = stored("nvfp4", 4, 32)
    theirs = {
        "weight": ours["weight_packed"],
        "weight_scale": ours["weight_scale"],
        "weight_scale_2": torch.tensor(0.5),
    }
    expected = read(
        ours | {"weight_global_scale": torch.tensor([2.0])}, config("nvfp4", weight_global_scale_semantics="divide")
    )
    found = read(theirs, config("nvfp4"))
    assert torch.equal(found.decoded(), expected.decoded())
    assert found.source == theirs


@pytest.mark.parametrize("form", ["mxfp4", "nvfp4"])
@pytest.mark.parametrize("direction", ["divide", "multiply"])
def test_rounding_and_reading_back(form: str, direction: str) -> None:
    """What the packer writes is read to the same weight, near to what was rounded; a group of zeros stays zero."""
    w = torch.randn(32, 96, generator=torch.Generator().manual_seed(0)) * 3
    w[3, :32] = 0
    says = config(form, weight_global_scale_semantics=direction)
    packed = fp4.pack(w, says, bias=torch.ones(32))
    again = read(fp4.write(packed, says), says, k=96, n=32)
    assert torch.equal(again.decoded(), packed.decoded())
    assert not again.decoded()[3, :32].any()
    assert float((again.decoded() - w).norm() / w.norm()) < 0.13
    assert not fp4.pack(torch.zeros(4, 32), says).decoded().any()


def _nan_block(t: dict[str, torch.Tensor]) -> None:
    t["weight_scale"].view(torch.uint8)[1, 0] = 0x7F


def _zero_whole(t: dict[str, torch.Tensor]) -> None:
    t["weight_global_scale"][0] = 0


def _no_whole(t: dict[str, torch.Tensor]) -> None:
    del t["weight_global_scale"]


def _short(t: dict[str, torch.Tensor]) -> None:
    t["weight_packed"] = t["weight_packed"][:, :-1]


def _two(t: dict[str, torch.Tensor]) -> None:
    t["weight_global_scale"] = torch.ones(2)


BAD = {
    "weight_scale *values: needs finite numbers, got 1 that are NaN": _nan_block,
    "weight_global_scale values: .* got 1 that are 0": _zero_whole,
    "weight_packed *columns: needs 16": _short,
    "weight_global_scale tensor: needs one of": _no_whole,
    r"weight_global_scale shape: needs one number, got \[2\]": _two,
}


@pytest.mark.parametrize("message", list(BAD))
def test_bad_tensors_are_refused(message: str) -> None:
    """Missing, misshapen or senseless tensors stop the load by name."""
    tensors = stored("nvfp4", 8, 32)
    BAD[message](tensors)
    with pytest.raises(TensorMismatch, match=message):
        read(tensors, config("nvfp4", weight_global_scale_semantics="divide"), k=32, n=8)


def test_refusals_of_settings_and_packer() -> None:
    """A direction that nothing says, a K that the groups do not divide, e8m0 scales that are NaN."""
    with pytest.raises(ConfigError, match="weight_global_scale_semantics: needs divide or multiply"):
        read(stored("nvfp4", 4, 32), config("nvfp4"))
    with pytest.raises(InexactConversion, match="K a multiple of 32, got K=40"):
        fp4.pack(torch.ones(2, 40), config("mxfp4"))
    tensors = stored("mxfp4", 2, 32)
    tensors["weight_scale"][0, 0] = 255
    with pytest.raises(TensorMismatch, match="NaN"):
        read(tensors, config("mxfp4"))
    with pytest.raises(ConfigError, match="group_size: needs 16 for nvfp4"):
        parse({"method": "fp8", "format": "nvfp4", "group_size": 32}, source="s")
