"""The reader and the float64 reference, which share no code, decode the same weights from the same bytes."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
import torch
from formats.makers import CHECKPOINTS, Case, awq_cases, checkpoint, gptq_cases, settings
from hypothesis import given
from hypothesis import strategies as st

from quantfarm import reference
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.formats.table import find

ANY_CASE = st.one_of(*[gptq_cases(bits) for bits in (2, 3, 4, 8)], awq_cases())


def expected(tensors: dict[str, torch.Tensor], config: QuantConfig, k: int | None = None) -> np.ndarray:
    """Decode by the closed forms."""
    return reference.decode(
        tensors,
        method=config.method,
        format=config.format,
        bits=config.bits,
        group_size=config.group_size,
        sym=config.sym,
        zeros_rule=config.zeros_rule.value,
        k=k,
    )


def assert_same(tensor: QuantTensor, wanted: np.ndarray) -> None:
    """The float64 product of code difference and scale is exact, so one rounding to fp32 gives the reader's value."""
    assert wanted.dtype == np.float64
    assert np.array_equal(tensor.decoded().numpy(), wanted.astype(np.float32))


@hypothesis.settings(max_examples=250)
@given(case=ANY_CASE)
def test_reader_and_reference_agree_on_any_tensor(case: Case) -> None:
    """Every width, tail, short group, index, negative word and corner zero point decodes to the same fp32 bits."""
    assert_same(case.read(), expected(case.tensors, case.config, case.k))


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_reader_and_reference_agree_on_real_checkpoints(name: str) -> None:
    """Every packed module of every real checkpoint decodes to the same fp32 bits."""
    found = checkpoint(name)
    assert len(found.modules) == 7
    read = find(found.config.method, found.config.format).read()
    for module, tensors in found.modules.items():
        assert_same(read(tensors, found.config, module=module), expected(tensors, found.config))


def test_three_bit_lanes_by_hand() -> None:
    """Lanes 10 and 21 of a 3-bit block straddle words: written bit by bit from one Python integer."""
    codes = [(5 * i + 3) % 8 for i in range(32)]
    stream = sum(code << (3 * i) for i, code in enumerate(codes))
    words = [(stream >> shift) & 0xFFFFFFFF for shift in (0, 32, 64)]
    signed = np.array([[w - 2**32 if w >= 2**31 else w] for w in words], dtype=np.int32)
    tensors = {
        "qweight": signed,
        "qzeros": np.zeros((1, 1), dtype=np.int32),
        "scales": np.ones((1, 1), dtype=np.float16),
    }
    w = reference.decode(tensors, method="gptq", format="gptq_v2", bits=3, group_size=-1)
    assert w[0].astype(int).tolist() == codes


def test_both_borrow_rules_by_hand() -> None:
    """0x7777776F is 8 in all lanes but a 0 in lane 0 word-wise; per field, lane 1 reads as 7."""
    tensors = {
        "qweight": np.zeros((1, 8), dtype=np.int32),
        "qzeros": np.array([[0x7777776F]], dtype=np.int32),
        "scales": np.ones((1, 8), dtype=np.float32),
    }
    for rule, zeros in (("word_wise", [0] + [8] * 7), ("per_field", [0, 7] + [8] * 6)):
        w = reference.decode(tensors, method="gptq", format="gptq", bits=4, group_size=-1, zeros_rule=rule)
        assert (-w[:, 0]).astype(int).tolist() == zeros


def test_an_awq_word_by_hand() -> None:
    """0x75316420 holds outputs 0 to 7 in their nibbles 0, 4, 1, 5, 2, 6, 3, 7."""
    tensors = {
        "qweight": np.array([[0x75316420]], dtype=np.int32),
        "qzeros": np.zeros((1, 1), dtype=np.int32),
        "scales": torch.ones(1, 8, dtype=torch.bfloat16),
    }
    assert reference.decode(tensors, method="awq", format="gemm", bits=4, group_size=1)[:, 0].tolist() == list(range(8))


def test_what_has_no_closed_form_is_refused() -> None:
    """The reference never decodes by a form that was not made for the format."""
    for method, layout, bits in (("awq", "gemm", 8), ("gptq", "bitblas", 4), ("awq", "gemv", 8)):
        with pytest.raises(ValueError, match="no closed form"):
            reference.decode({}, method=method, format=layout, bits=bits, group_size=32)


def test_r23_the_reference_takes_the_stored_zero_points_as_they_are() -> None:
    """Case R23: a symmetric file labelled wrong is corrected by the reader only; the bytes alone say 9."""
    config = settings(sym=True, group_size=-1)
    tensors = {
        "qweight": torch.zeros(4, 8, dtype=torch.int32),
        "qzeros": torch.full((1, 1), -2004318072, dtype=torch.int32),
        "scales": torch.ones(1, 8),
    }
    assert set(expected(tensors, config).flatten()) == {-9.0}
    read = find(config.method, config.format).read()
    assert set(read(tensors, config, module="m").decoded().flatten().tolist()) == {-8.0}
