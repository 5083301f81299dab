"""Types of ggml: sizes, bit orders, and every decoder against the package ``gguf`` on random bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from ggml_cases import OWN, literal, outside, rows, weight
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

from quantfarm.declare import ggml
from quantfarm.declare.ggml import TYPES, GgmlType
from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.formats import packing_ggml as packing
from quantfarm.formats.settings.gguf import scheme_of
from quantfarm.formats.weights.ggml import GgmlWeight
from quantfarm.formats.weights.ggml_iq import book_of

every_type = pytest.mark.parametrize("entry", TYPES, ids=ggml.block_name)
CPU = torch.device("cpu")


def _decoded(entry: GgmlType, qweight: torch.Tensor) -> np.ndarray:
    """Decode without the reader, which refuses scales that are no numbers."""
    made = GgmlWeight(
        method=METHOD.GGUF,
        format=FORMAT.GGUF,
        scheme=scheme_of(entry),
        k=qweight.shape[1] // entry.size * entry.block,
        n=qweight.shape[0],
        bias=None,
        source={"qweight": qweight},
        type=entry,
        book=book_of(entry.name, CPU),
    )
    decoded: np.ndarray = made.decoded().numpy()
    return decoded


def _same(actual: np.ndarray, expected: np.ndarray) -> bool:
    """Compare bit for bit, zeros with their sign; any NaN equals any other."""
    numbers = ~np.isnan(expected)
    same = np.array_equal(np.isnan(actual), ~numbers)
    return same and np.array_equal(actual[numbers].view(np.uint32), expected[numbers].view(np.uint32))


def test_the_table_has_every_type_that_the_package_decodes() -> None:
    """Every type with a decoder there is here, with its id and sizes; beyond them only what it can not decode."""
    known = {entry.name for entry in TYPES}
    theirs = {kind.name.lower() for kind in quants._type_traits} | {"f32", "f16"}
    assert known == theirs | set(OWN)
    for name in theirs:
        kind = gguf.GGMLQuantizationType[name.upper()]
        (entry,) = ggml.named(name)
        assert (entry.number, entry.block, entry.size) == (kind.value, *GGML_QUANT_SIZES[kind])
    assert GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q1_0] == (128, 18)
    assert all(entry.block % entry.group == 0 for entry in TYPES)


@every_type
@pytest.mark.parametrize("sane", [True, False], ids=["sane", "any-bytes"])
def test_random_bytes_decode_as_in_the_package(entry: GgmlType, sane: bool) -> None:
    """fp32 values equal the package's bit for bit, infinite and undefined scales included; the last row starts late."""
    qweight = rows(entry, 24, 7 if entry.block > 1 else 40, seed=entry.number, sane=sane)
    expected = literal(entry, qweight) if entry.name in OWN else outside(entry, qweight)
    assert _same(_decoded(entry, qweight), expected)
    if sane:
        made = weight(entry, qweight)
        assert np.isfinite(expected).all()
        assert _same(made.decoded(5, 9).numpy(), expected[5:9])
        assert _same(made.decoded(23).numpy(), expected[23:])


def test_many_blocks_are_decoded_in_pieces() -> None:
    """A weight of more values than one panel has the same values."""
    (entry,) = ggml.named("q6_k")
    qweight = rows(entry, 1100, 2)
    assert _same(_decoded(entry, qweight), outside(entry, qweight))


@pytest.mark.parametrize("name", ["q4_k", "q5_k", "q2_k", "q3_k"])
def test_every_pattern_of_the_scale_bytes(name: str) -> None:
    """Each scale byte takes every value: all 6-bit scales and minima of Q4_K and Q5_K, all of Q2_K and Q3_K."""
    (entry,) = ggml.named(name)
    start, stop = {"q4_k": (4, 16), "q5_k": (4, 16), "q2_k": (0, 16), "q3_k": (96, 108)}[name]
    qweight = rows(entry, 256, 1)
    for at in range(start, stop):
        qweight[:, at] = torch.arange(256).roll(at * 37).to(torch.uint8)
    assert _same(_decoded(entry, qweight), outside(entry, qweight))


def test_q6_k_scales_have_a_sign() -> None:
    """Scale bytes of Q6_K are signed: 0x80 is -128, and codes below 32 turn its sign."""
    (entry,) = ggml.named("q6_k")
    qweight = rows(entry, 256, 1)
    qweight[:, 192:208] = torch.arange(256).to(torch.uint8).unsqueeze(1)
    qweight[:, 208:210] = torch.tensor([0, 0x3C], dtype=torch.uint8)
    decoded = _decoded(entry, qweight)
    assert _same(decoded, outside(entry, qweight))
    qweight[:, :192] = 0
    assert np.array_equal(_decoded(entry, qweight)[:, 0], torch.arange(256).to(torch.int8).numpy() * -32.0)


def test_names_ids_and_bytes_decide_together() -> None:
    """Aliases name one type; ids 40, 41 and 42 keep upstream's meaning first; bytes choose between two blocks."""
    assert [ggml.named(name)[0].name for name in ("Q4_K_M", "q4_k_s", " q5_k_m ", "q5_k_s")] == ["q4_k"] * 2 + [
        "q5_k"
    ] * 2
    assert [entry.block for entry in ggml.named("q1_0")] == [128, 32]
    assert [entry.block for entry in ggml.named("q2_0")] == [64, 128]
    assert [ggml.named(f"q1_0_g{block}")[0].size for block in (32, 128)] == [6, 18]
    assert [entry.name for entry in ggml.numbered(40)] == ["nvfp4", "q1_0"]
    assert [entry.name for entry in ggml.numbered(41)] == ["q1_0"]
    assert {entry.block for entry in ggml.numbered(42)} == {64, 128}
    assert (ggml.named("q9_9"), ggml.numbered(255)) == ((), ())
    for number, k, size, block in ((42, 256, 72, 64), (42, 256, 68, 128), (40, 256, 48, 32), (40, 256, 144, 64)):
        (entry,) = ggml.fitting(ggml.numbered(number), k, size)
        assert entry.block == block
    assert ggml.fitting(ggml.numbered(42), 256, 70) == ()


@pytest.mark.parametrize("width", [1, 2, 4])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), size=st.integers(1, 40))
def test_planes_and_sequences_have_inverses(width: int, seed: int, size: int) -> None:
    """Splitting bytes into planes or neighbours and joining them gives the bytes back."""
    packed = torch.randint(0, 256, (3, size), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    planes, sequence = packing.split_planes(packed, width), packing.split_sequence(packed, width)
    assert planes.shape == (3, 8 // width, size)
    assert torch.equal(packing.join_planes(planes, width), packed)
    assert torch.equal(packing.join_sequence(sequence, width), packed)
    assert int(sequence[1, 8 // width - 1]) == int(packed[1, 0]) >> (8 - width)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9999))
def test_scale_bytes_and_digits_have_inverses(seed: int) -> None:
    """The 12 scale bytes of both kinds, and ternary digits, come back from their inverse."""
    source = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (4, 12), generator=source, dtype=torch.uint8)
    assert torch.equal(packing.join_scales_and_minima(*packing.split_scales_and_minima(packed)), packed)
    assert torch.equal(packing.join_sixteen_scales(packing.split_sixteen_scales(packed)), packed)
    for count in (4, 5):
        digits = torch.randint(0, 3, (4, count, 9), generator=source, dtype=torch.uint8)
        assert torch.equal(packing.split_ternary(packing.join_ternary(digits), count), digits)
