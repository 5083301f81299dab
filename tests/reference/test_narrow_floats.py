"""The closed forms of narrow floats against torch's dtypes, and scales by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from reference import stored_makers_of_kinds as kinds
from reference.stored_makers import Made

from quantfarm import reference
from quantfarm.reference import narrow_floats
from quantfarm.reference.stored import as_numpy

KINDS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")


def decode(tensors: dict[str, torch.Tensor], code_type: str = "float8_e4m3fn", **details: object) -> np.ndarray:
    """Decode one float8 weight."""
    return reference.decode(
        tensors, method="fp8", format="fp8", bits=8, group_size=-1, code_type=code_type, details=details
    )


def ones(*shape: int) -> torch.Tensor:
    """Return float8 ones."""
    return torch.ones(shape).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("kind", KINDS)
def test_every_code_is_that_of_torch(kind: str) -> None:
    """All 256 codes, zeros of both signs, infinities and NaN included."""
    weight = torch.arange(256, dtype=torch.int64).to(torch.uint8).view(getattr(torch, kind)).reshape(16, 16)
    wanted = weight.to(torch.float64).numpy()
    tensors = {"weight": weight, "weight_scale_inv": torch.ones(16)}
    w = decode(tensors, kind, weight_scale_semantics="inverse", weight_scale_method="row")
    assert np.array_equal(w, wanted, equal_nan=True)
    assert np.array_equal(np.signbit(w[~np.isnan(w)]), np.signbit(wanted[~np.isnan(w)]))


def test_both_directions_of_a_scale() -> None:
    """``inverse`` divides, ``multiply`` multiplies; nothing is taken from the values."""
    for stored, semantics, value in ((4.0, "inverse", 0.25), (4.0, "multiply", 4.0), (0.25, "inverse", 4.0)):
        tensors = {"weight": ones(2, 3), "weight_scale_inv": torch.tensor(stored)}
        w = decode(tensors, weight_scale_semantics=semantics, weight_scale_method="tensor")
        assert set(w.flatten()) == {value}
    with pytest.raises(ValueError, match="scale direction None"):
        decode({"weight": ones(2, 3), "weight_scale_inv": torch.tensor(4.0)}, weight_scale_method="tensor")


def test_scales_of_rows_and_blocks() -> None:
    """A row has one scale; a block repeats its scale, and those at the edges may be partial."""
    row = {"weight": ones(3, 2), "weight_scale": torch.tensor([[1.0], [2.0], [4.0]])}
    w = decode(row, weight_scale_semantics="multiply", weight_scale_method="row")
    assert w.tolist() == [[1, 1], [2, 2], [4, 4]]
    block = {"weight": ones(3, 5), "weight_scale_inv": torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])}
    w = decode(block, weight_scale_semantics="multiply", weight_scale_method="block", weight_block_size=[2, 2])
    assert w.tolist() == [[1, 1, 2, 2, 4], [1, 1, 2, 2, 4], [8, 8, 16, 16, 32]]


def test_scales_that_are_powers_of_two() -> None:
    """Bytes of e8m0 are 2^(byte - 127), and 255 is NaN."""
    scale = torch.tensor([127, 130, 124, 255], dtype=torch.uint8)
    for stored in (scale, scale.view(torch.float8_e8m0fnu)):
        w = decode({"weight": ones(4, 1), "scale": stored}, weight_scale_semantics="multiply")
        assert w[:3, 0].tolist() == [1.0, 8.0, 0.125]
        assert math.isnan(w[3, 0])


def four_bits(form: str, made: Made) -> np.ndarray:
    """Decode by one closed form of E2M1 codes."""
    arrays = {name: as_numpy(tensor) for name, tensor in made.tensors.items()}
    says = reference.Stored(**made.says)
    decoded: np.ndarray = getattr(narrow_floats, form)(arrays, says)
    return decoded


def test_mxfp4_by_hand() -> None:
    """Every 32 inputs share a power of two."""
    made = kinds.mxfp4(np.random.default_rng(0), 96, 4)
    w = four_bits("mxfp4", made)
    packed, scale = made.tensors["weight_packed"], made.tensors["weight_scale"]
    for n in range(4):
        for k in range(96):
            code = int(packed[n, k // 2]) >> (4 * (k % 2)) & 15
            value = (0, 0.5, 1, 1.5, 2, 3, 4, 6)[code % 8] * (-1 if code >= 8 else 1)
            assert w[n, k] == value * 2.0 ** (int(scale[n, k // 32]) - 127)


@pytest.mark.parametrize("semantics", ["divide", "multiply"])
def test_nvfp4_by_hand(semantics: str) -> None:
    """Every 16 inputs share an e4m3 scale; the scale over all divides or multiplies, as the settings say."""
    made = kinds.nvfp4(np.random.default_rng(1), 64, 4, semantics=semantics)
    w = four_bits("nvfp4", made)
    packed, scale = made.tensors["weight_packed"], made.tensors["weight_scale"].to(torch.float64)
    for n in range(4):
        for k in range(64):
            code = int(packed[n, k // 2]) >> (4 * (k % 2)) & 15
            value = (0, 0.5, 1, 1.5, 2, 3, 4, 6)[code % 8] * (-1 if code >= 8 else 1) * float(scale[n, k // 16])
            assert w[n, k] == (value / 3.5 if semantics == "divide" else value * 3.5)
    with pytest.raises(ValueError, match="direction None"):
        four_bits("nvfp4", Made(tensors=made.tensors, says=made.says | {"details": {}}))


def test_values_of_e2m1() -> None:
    """Element 2i lies in the low nibble, bit 3 is the sign."""
    packed = np.array([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE]], dtype=np.uint8)
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert narrow_floats.e2m1(packed)[0].tolist() == [*positive, *[-v for v in positive]]
