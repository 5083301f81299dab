"""Closed forms of GPTQ_P, the MARLIN label, AWQ GEMV, GEMV_FAST and LLM_AWQ against words made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from reference.stored_words import int32, ones, signed, words_of

from quantfarm import reference

PLANES = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}


def planar_words(codes: list[int], bits: int) -> list[int]:
    """Pack 32 codes: every plane is a little-endian stream of its own slice of the bits, low planes first."""
    assert len(codes) == 32
    words, shift = [], 0
    for width in PLANES[bits]:
        words += words_of([(code >> shift) % (1 << width) for code in codes], width)
        shift += width
    return words


@pytest.mark.parametrize("bits", range(2, 9))
def test_planar_codes_and_zero_points_by_hand(bits: int) -> None:
    """Every plane of a block, down the rows for codes and across the columns for zero points."""
    top = 1 << bits
    columns = [[(7 * i + 5 * n + 3) % top for i in range(64)] for n in range(32)]
    zeros = [(11 * n + 1) % top for n in range(32)]
    packed = [planar_words(column[:32], bits) + planar_words(column[32:], bits) for column in columns]
    tensors = {
        "qweight": int32(packed).T.copy(),
        "qzeros": int32([planar_words(zeros, bits)]),
        "scales": ones(1, 32),
    }
    assert bits < 4 or (tensors["qweight"] < 0).any()
    w = reference.decode(tensors, method="gptq", format="gptq_p", bits=bits, group_size=-1)
    assert w.tolist() == [[q - zeros[n] for q in columns[n]] for n in range(32)]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_planar_words_of_one_plane_are_those_of_version_two(bits: int) -> None:
    """Widths of one plane decode alike under both names; three bits do not."""
    generator = np.random.default_rng(bits)
    tensors = {
        "qweight": generator.integers(-(2**31), 2**31, (2 * bits, 32)).astype(np.int32),
        "qzeros": generator.integers(-(2**31), 2**31, (2, bits)).astype(np.int32),
        "scales": generator.random((2, 32)).astype(np.float16),
        "g_idx": generator.integers(-2, 2, 64).astype(np.int32),
    }
    both = [reference.decode(tensors, method="gptq", format=f, bits=bits, group_size=32) for f in ("gptq_p", "gptq_v2")]
    assert np.array_equal(*both)


def test_the_marlin_label_keeps_the_shapes_of_its_method() -> None:
    """Under gptq the label means stored zero points minus one, under awq the interleaved words, also of 8 bits."""
    gptq = {"qweight": int32([[0] * 8]), "qzeros": int32([[0x77777777]]), "scales": ones(1, 8)}
    w = reference.decode(gptq, method="gptq", format="marlin", bits=4, group_size=-1)
    assert set(w.flatten()) == {-8.0}
    awq = {"qweight": int32([[0x75316420]]), "qzeros": int32([[0]]), "scales": ones(1, 8)}
    w = reference.decode(awq, method="awq", format="marlin", bits=4, group_size=-1)
    assert w[:, 0].tolist() == list(range(8))
    wide = {"qweight": int32([[signed(0xFD01FC00, 32)]]), "qzeros": int32([[0]]), "scales": ones(1, 4)}
    w = reference.decode(wide, method="awq", format="marlin", bits=8, group_size=-1)
    assert w[:, 0].tolist() == [0, 1, 0xFC, 0xFD]


def test_gemv_rows_by_hand() -> None:
    """Word c of an output holds inputs 8c to 8c + 7 and groups 8c to 8c + 7 in natural order; padding is not read."""
    k, n, size = 320, 2, 32
    codes = [[(3 * i + 7 * row) % 16 for i in range(k)] for row in range(n)]
    zeros = [[(5 * g + row) % 16 for g in range(10)] for row in range(n)]
    scales = np.zeros((n, 32), dtype=np.float16)
    scales[:, :10] = [[(g + 1) / 8 + row for g in range(10)] for row in range(n)]
    tensors = {
        "qweight": int32([words_of(row, 4) for row in codes]),
        "qzeros": int32([[*words_of(row, 4), 0, 0] for row in zeros]),
        "scales": scales,
    }
    w = reference.decode(tensors, method="awq", format="gemv", bits=4, group_size=size)
    wanted = [
        [(codes[row][i] - zeros[row][i // size]) * float(scales[row, i // size]) for i in range(k)] for row in range(n)
    ]
    assert w.tolist() == wanted


@pytest.mark.parametrize(("layout", "name"), [("gemv_fast", "qzeros"), ("llm-awq", "scaled_zeros")])
def test_interleaved_rows_by_hand(layout: str, name: str) -> None:
    """Four outputs and 64 inputs share 64 words; the offsets hold minus scale times zero."""
    k, n, size = 128, 8, 64
    codes = [[(3 * i + 7 * row + i // 16) % 16 for i in range(k)] for row in range(n)]
    scales = np.zeros((8, n), dtype=np.float16)
    scales[:2] = [[(g + 1) / 4 + row for row in range(n)] for g in range(2)]
    offsets = np.zeros((8, n), dtype=np.float16)
    offsets[:2] = [[-(g + 3) / 2 * (row + 1) for row in range(n)] for g in range(2)]
    tensors = {"qweight": interleaved(codes), "scales": scales, name: offsets}
    assert (tensors["qweight"] < 0).any()
    w = reference.decode(tensors, method="awq", format=layout, bits=4, group_size=size)
    wanted = [
        [codes[row][i] * float(scales[i // size, row]) + float(offsets[i // size, row]) for i in range(k)]
        for row in range(n)
    ]
    assert w.tolist() == wanted


def interleaved(codes: list[list[int]]) -> np.ndarray:
    """Pack by the forward rule: slot 8B + 4C + A of a half holds its column 8A + 2B + C."""
    n, k = len(codes), len(codes[0])
    stored = np.zeros((n // 4, k), dtype=np.int16)
    for four in range(n // 4):
        for tile in range(k // 64):
            fields = []
            for row in codes[4 * four : 4 * four + 4]:
                for half in range(2):
                    first = 64 * tile + 32 * half
                    fields += [row[first + 8 * a + 2 * b + c] for b in range(4) for c in range(2) for a in range(4)]
            stored[four, 64 * tile : 64 * tile + 64] = words_of(fields, 4, word=16)
    return stored


def test_llm_awq_takes_its_own_name_where_both_are_there() -> None:
    """With both tensors each label reads the one of its name."""
    tensors = {
        "qweight": np.zeros((1, 64), dtype=np.int16),
        "scales": ones(8, 4),
        "qzeros": -ones(8, 4),
        "scaled_zeros": -2 * ones(8, 4),
    }
    for layout, value in (("gemv_fast", -1.0), ("llm-awq", -2.0)):
        w = reference.decode(tensors, method="awq", format=layout, bits=4, group_size=64)
        assert set(w.flatten()) == {value}
