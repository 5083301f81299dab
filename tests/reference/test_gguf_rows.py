"""The closed forms of ggml's types against the dequantizer of the gguf package, and corners by hand."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from quantfarm import reference
from quantfarm.reference.gguf_rows import TYPES

OWN = {"q1_0", "q1_0_g32", "q1_0_g128", "q2_0", "q2_0_g64", "q2_0_g128", "f32", "f16"}
"""Types that the package does not decode as blocks; they are tested by hand."""


def decode(rows: np.ndarray, kind: str, k: int | None = None) -> np.ndarray:
    """Decode rows of blocks."""
    return reference.decode({"qweight": rows}, method="gguf", format="gguf", bits=4, group_size=-1, code_type=kind, k=k)


@pytest.mark.parametrize("kind", sorted(set(TYPES) - OWN))
def test_random_bytes_decode_as_in_the_package(kind: str) -> None:
    """Any bytes, scales that are not finite included, give the package's fp32 values to one rounding."""
    member = gguf.GGMLQuantizationType[kind.upper()]
    block, size = gguf.GGML_QUANT_SIZES[member]
    rows = np.random.default_rng(size).integers(0, 256, (64, 3 * size)).astype(np.uint8)
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(rows, member).astype(np.float64)
        decoded = decode(rows, kind, 3 * block)
        narrow = decoded.astype(np.float32).astype(np.float64)
    assert decoded.shape == wanted.shape == (64, 3 * block)
    assert np.array_equal(np.isnan(narrow), np.isnan(wanted))
    finite = np.isfinite(wanted)
    assert finite.mean() > 0.8
    assert np.array_equal(np.isfinite(narrow), finite)
    assert (np.abs(decoded - wanted)[finite] <= 1e-6 * np.abs(wanted[finite])).all()


def test_every_type_of_the_package_has_a_closed_form() -> None:
    """The package decodes no type that has none here."""
    assert {member.name.lower() for member in gguf.quants._type_traits} <= set(TYPES)


def test_plain_floats_are_what_they_are() -> None:
    """F32, F16 and BF16 rows are numbers."""
    values = np.array([[1.0, -2.5, 0.0], [3.0, 65504.0, -(2.0**-24)]])
    assert np.array_equal(decode(values.astype(np.float32).view(np.uint8), "f32"), values)
    assert np.array_equal(decode(values.astype(np.float16).view(np.uint8), "f16"), values)


@pytest.mark.parametrize("block", [32, 128])
def test_signs_by_hand(block: int) -> None:
    """Bit 1 is +d and bit 0 is -d, least significant first; both block sizes are told by the bytes of a row."""
    signs = [(3 * i * i + i // 7) % 2 for i in range(block)]
    stored = sum(sign << i for i, sign in enumerate(signs)).to_bytes(block // 8, "little")
    rows = np.frombuffer(np.float16(1.5).tobytes() + stored, dtype=np.uint8)[None, :]
    assert decode(rows, "q1_0", block)[0].tolist() == [1.5 if sign else -1.5 for sign in signs]


@pytest.mark.parametrize("block", [64, 128])
def test_two_bits_by_hand(block: int) -> None:
    """Codes 0 to 3 are -1, 0, 1 and 2; element j lies in byte j//4 at bits 2*(j%4)."""
    codes = [(5 * i + i // 9) % 4 for i in range(block)]
    stored = sum(code << (2 * i) for i, code in enumerate(codes)).to_bytes(block // 4, "little")
    rows = np.frombuffer(np.float16(-0.25).tobytes() + stored, dtype=np.uint8)[None, :]
    assert decode(rows, "q2_0", block)[0].tolist() == [-0.25 * (code - 1) for code in codes]


def test_a_row_that_fits_two_blocks_takes_the_one_it_fills() -> None:
    """306 bytes are 17 blocks of 64 or 9 of 128: K = 1088 fills only the former; K = 1070 fills neither."""
    rows = np.full((1, 306), 0x3C, dtype=np.uint8)
    assert decode(rows, "q2_0", 1088).shape == (1, 1088)
    for k in (1070, 640, None):
        with pytest.raises(ValueError, match="q2_0 in rows of 306 bytes"):
            decode(rows, "q2_0", k)


def test_padding_falls_off() -> None:
    """K that is no multiple of the block keeps the first K values of a row."""
    rows = np.random.default_rng(0).integers(0, 120, (2, 2 * 34)).astype(np.uint8)
    assert np.array_equal(decode(rows, "q8_0", 40), decode(rows, "q8_0", 64)[:, :40])


def test_an_unknown_type_is_refused() -> None:
    """A name without a closed form decodes to nothing."""
    with pytest.raises(ValueError, match="ggml type 'q9_9'"):
        decode(np.zeros((1, 18), dtype=np.uint8), "q9_9", 32)
