"""AWQ GEMM tensors are read into the canonical stream and written back bit for bit."""

from __future__ import annotations

import pickle

import pytest
import torch
from formats.makers import Case, awq_cases, settings
from hypothesis import given
from hypothesis import strategies as st

from quantfarm.declare.names import FORMAT
from quantfarm.errors import InexactConversion, TensorMismatch
from quantfarm.formats import awq, gptq
from quantfarm.formats.packing import pack_awq, unpack_awq

CONFIG = settings(quant_method="awq", version="gemm", sym=None, zero_point=True)


def stored(k: int = 64, n: int = 32, zero: int = 8) -> dict[str, torch.Tensor]:
    """Return AWQ tensors with groups of 32 and one zero point everywhere."""
    fields = (torch.arange(k * n).reshape(k, n) % 16).to(torch.uint8)
    return {
        "qweight": pack_awq(fields),
        "qzeros": pack_awq(torch.full((k // 32, n), zero, dtype=torch.uint8)),
        "scales": torch.ones(k // 32, n, dtype=torch.bfloat16),
    }


def test_the_lanes_of_a_word_have_the_order_of_the_format() -> None:
    """Outputs 0 to 7 lie in nibbles 0, 4, 1, 5, 2, 6, 3, 7; unique codes show each lane."""
    word = pack_awq(torch.arange(8, dtype=torch.uint8).reshape(1, 8))
    assert word.item() == 0x75316420
    assert unpack_awq(word).tolist() == [list(range(8))]


@given(rows=st.integers(1, 9), words=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_awq_words_pack_and_unpack(rows: int, words: int, seed: int) -> None:
    """Both directions are inverses, words with the top bit set included."""
    fields = torch.randint(0, 16, (rows, words * 8), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    assert torch.equal(unpack_awq(pack_awq(fields)), fields)


@given(case=awq_cases())
def test_any_tensor_returns_bit_for_bit(case: Case) -> None:
    """The writer and codes_to_source give back exactly the stored words."""
    tensor = case.read()
    written = awq.write(tensor, case.config)
    assert written.keys() == case.tensors.keys()
    assert all(torch.equal(written[key], case.tensors[key]) for key in written)
    again = pickle.loads(pickle.dumps(tensor))
    assert torch.equal(again.codes_to_source(again.codes)["qweight"], case.tensors["qweight"])
    assert "qweight" not in tensor.source


def test_symmetry_is_read_from_the_zero_points() -> None:
    """zero_point false with zeros of 8 is symmetric; with others the stored values decide and a note says so."""
    symmetric = settings(quant_method="awq", version="gemm", sym=None, zero_point=False)
    assert awq.read(stored(), symmetric, module="m").scheme.sym
    assert awq.read(stored(), symmetric, module="m").notes == ()
    odd = awq.read(stored(zero=7), symmetric, module="m")
    assert not odd.scheme.sym
    assert "64 of 64 zero points are not 8" in odd.notes[0]


def test_awq_mismatches_are_told_at_once() -> None:
    """Short groups and wrong shapes are refused with the module, both numbers and every problem."""
    tensors = stored(k=64) | {"scales": torch.ones(3, 32)}
    with pytest.raises(TensorMismatch, match="cannot load up_proj") as caught:
        awq.read(tensors, CONFIG, module="up_proj", k=72)
    for line in (
        "qweight        rows: needs 72 (K=72), got 64",
        "qzeros         groups: needs 3 (K=72, group_size=32), got 2",
        "qweight        rows: needs a multiple of group_size=32, got 72",
    ):
        assert line in str(caught.value)


def test_awq_converts_to_gptq_and_back() -> None:
    """One canonical form between formats: awq -> gptq_v2 -> awq returns the same words and the same weights."""
    original = stored(zero=3)
    tensor = awq.read(original, CONFIG, module="m")
    second = settings(checkpoint_format="gptq_v2")
    moved = gptq.read(gptq.write(tensor, second), second, module="m")
    assert moved.format is FORMAT.GPTQ_V2
    assert torch.equal(moved.decoded(), tensor.decoded())
    back = awq.write(moved, CONFIG)
    assert all(torch.equal(back[key], original[key]) for key in original)


def test_what_awq_can_not_hold_is_refused() -> None:
    """Another width, an index or a short last group has no place in the layout; every obstacle is told."""
    config = settings(bits=8, desc_act=True, checkpoint_format="gptq_v2")
    tensors = {
        "qweight": torch.zeros(10, 12, dtype=torch.int32),
        "qzeros": torch.zeros(2, 3, dtype=torch.int32),
        "scales": torch.ones(2, 12),
        "g_idx": torch.tensor([1, 0] * 20, dtype=torch.int32),
    }
    tensor = gptq.read(tensors, config, module="m")
    with pytest.raises(InexactConversion) as caught:
        awq.write(tensor, CONFIG)
    for line in ("bits: needs 4, got 8", "g_idx: needs", "K: needs a multiple of group_size=32, got 40", "got 12"):
        assert line in str(caught.value)
