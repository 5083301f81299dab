"""GGUF blocks in safetensors: reader, writer, settings, header facts, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from ggml_cases import OWN, config, literal, outside, rows, weight

from quantfarm.declare import ggml
from quantfarm.declare.ggml import TYPES, GgmlType
from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import WeightKind
from quantfarm.errors import InexactConversion, TensorMismatch, UnknownFormat
from quantfarm.formats.config import parse
from quantfarm.formats.facts import TensorFact
from quantfarm.formats.gguf import read, write
from quantfarm.formats.table import find

every_type = pytest.mark.parametrize("entry", TYPES, ids=ggml.block_name)


@every_type
def test_stored_bytes_come_back(entry: GgmlType) -> None:
    """The writer gives the tensors that were read, the same storage; the scheme tells width and scale groups."""
    qweight = rows(entry, 6, 3)
    bias = torch.randn(6)
    made = weight(entry, qweight, bias=bias)
    written = write(made, config(ggml.block_name(entry)))
    assert written["qweight"] is qweight
    assert written["bias"] is bias
    assert (made.method, made.format, made.code_type) == (METHOD.GGUF, FORMAT.GGUF, entry.name)
    assert (made.k, made.n, made.scheme.bits, made.scheme.group_size) == (3 * entry.block, 6, entry.bits, entry.group)
    assert (made.scheme.weight_kind is WeightKind.FLOAT) == (entry.block == 1)
    assert set(made.source) == {"qweight"}
    assert made.packed() == {}


@every_type
def test_a_header_tells_the_layer(entry: GgmlType) -> None:
    """Shape and settings give K (whole blocks), N and the reader's scheme."""
    qweight = rows(entry, 5, 7)
    says = config(ggml.block_name(entry))
    fact = {"qweight": TensorFact(dtype="U8", shape=tuple(qweight.shape))}
    told = find(METHOD.GGUF, FORMAT.GGUF).describe()(fact, says)
    made = read({"qweight": qweight}, says, module="fc")
    assert (told.k, told.n, told.scheme, told.code_type) == (made.k, made.n, made.scheme, made.code_type)


@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q4_k", "q6_k", "iq2_xs", "mxfp4", "q2_0_g128", "q1_0_g32"])
def test_r86_inputs_that_do_not_fill_the_block_are_padded(name: str) -> None:
    """K of 31, 300 or 2688: the last block is padded, its padding is not part of the weight."""
    (entry,) = ggml.named(name)
    for k in (31, 300, 2688):
        qweight = rows(entry, 3, -(-k // entry.block))
        decoded = weight(entry, qweight, k).decoded()
        expected = (literal if entry.name in OWN else outside)(entry, qweight)
        assert decoded.shape == (3, k)
        assert torch.equal(decoded, torch.from_numpy(expected[:, :k]))


@pytest.mark.parametrize(
    ("name", "k", "row_bytes", "block"),
    [
        ("q2_0", 256, 72, 64),
        ("q2_0", 256, 68, 128),
        ("q1_0", 256, 48, 32),
        ("q1_0", 256, 36, 128),
        ("q1_0", 96, 18, 32),
    ],
)
def test_the_bytes_say_which_block(name: str, k: int, row_bytes: int, block: int) -> None:
    """One name, two block sizes: the bytes of a row decide; whole blocks are likelier than padded ones."""
    qweight = torch.zeros(2, row_bytes, dtype=torch.uint8)
    assert read({"qweight": qweight}, config(name), module="fc", k=k).type.block == block


def test_sizes_that_fit_no_block_are_refused() -> None:
    """70 bytes for 256 values are neither block of Q2_0: both needs are told, and both problems of a module at once."""
    tensors = {"qweight": torch.zeros(3, 70, dtype=torch.uint8), "bias": torch.zeros(4)}
    with pytest.raises(TensorMismatch) as caught:
        read(tensors, config("q2_0"), module="model.fc", k=256, n=4)
    text = str(caught.value)
    assert "cannot load model.fc" in text
    assert "rows: needs 4 (N=4), got 3" in text
    assert (
        "needs 72 (K=256, q2_0 (18 bytes per 64 values); q2_0 (34 bytes per 128 values) would need 68), got 70" in text
    )


def test_sizes_that_fit_two_blocks_are_refused_unless_named() -> None:
    """90 values of Q1_0 are 18 bytes with either block: the name must say which, and then does."""
    tensors = {"qweight": torch.zeros(3, 18, dtype=torch.uint8)}
    with pytest.raises(TensorMismatch, match="needs q1_0_g128 or q1_0_g32"):
        read(tensors, config("q1_0"), module="fc", k=90)
    for block in (32, 128):
        assert read(tensors, config(f"q1_0_g{block}"), module="fc", k=90).type.block == block
    with pytest.raises(TensorMismatch, match="do not say how many values"):
        read(tensors, config("q1_0"), module="fc")


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({}, "qweight        tensor: needs one, got none"),
        ({"qweight": torch.zeros(4, dtype=torch.uint8)}, "qweight        shape: needs 2 sides, got [4]"),
        ({"qweight": torch.zeros(2, 18, dtype=torch.int8)}, "qweight        dtype: needs uint8, got int8"),
        ({"qweight": torch.zeros(2, 17, dtype=torch.uint8)}, "bytes per row: needs 18 (K=32"),
        (
            {"qweight": torch.tensor([[0, 0x7E] + [0] * 16, [0, 0x7C] + [0] * 16], dtype=torch.uint8)},
            "scales: needs finite fp16 numbers, got 2 that are not finite",
        ),
    ],
)
def test_bad_tensors_are_named(tensors: dict[str, torch.Tensor], says: str) -> None:
    """A missing, flat or wrongly typed tensor, a short row, and scales that are infinite or no number."""
    with pytest.raises(TensorMismatch, match=re.escape(says)):
        read(tensors, config("q4_0"), module="fc", k=32)


@pytest.mark.parametrize(
    ("bits", "code_type", "width"),
    [
        *((name, name, ggml.named(name)[0].bits) for name in ggml.NAMES),
        ("Q4_K_M", "q4_k", 4),
        ("q4_k_s", "q4_k", 4),
        ("q5_k_m", "q5_k", 5),
        ("q1_0_g128", "q1_0_g128", 1),
        *(
            (1, "q1_0", 1),
            (2, "q2_0", 2),
            (3, "q3_k", 3),
            (4, "q4_0", 4),
            (5, "q5_k", 5),
            (6, "q6_k", 6),
            (8, "q8_0", 8),
        ),
    ],
)
def test_bits_name_a_type(bits: str | int, code_type: str, width: int) -> None:
    """A name or a width gives type and nominal width, whatever group size is stated; settings are written back."""
    says = config(bits, group_size=128, pack_dtype="int8")
    assert (says.code_type, says.bits, says.group_size) == (code_type, width, -1)
    again = parse(says.as_settings(), source="config.json")
    assert again.facts() == says.facts()


@pytest.mark.parametrize("bits", ["q4_9", 7, "iq9"])
def test_unknown_types_are_refused(bits: Any) -> None:
    """A type or a width that nothing decodes is named, with the known ones."""
    with pytest.raises(UnknownFormat, match="unknown ggml type") as caught:
        config(bits)
    assert "q4_k" in str(caught.value)


def test_r91_modules_of_one_file_have_types_of_their_own() -> None:
    """A dynamic rule gives some modules another type, as names or widths do; the rest keep theirs."""
    says = config("q4_k_m", dynamic={r".*v_proj": {"bits": "q6_k"}, r".*down": {"bits": 8}, "-:.*gate": {}})
    found = [says.for_module(f"layers.0.{name}") for name in ("q_proj", "v_proj", "down_proj", "gate")]
    assert [f and (f.code_type, f.bits) for f in found] == [("q4_k", 4), ("q6_k", 6), ("q8_0", 8), None]
    assert [f.code_type for f in map(parse(says.as_settings(), source="").for_module, ("v_proj",)) if f] == ["q6_k"]


def test_other_weights_are_not_written_quietly() -> None:
    """Blocks of another type would be rounded again: refused, unless forced."""
    made = weight(ggml.named("q4_0")[0], rows(ggml.named("q4_0")[0], 4, 8))
    with pytest.raises(InexactConversion, match="cannot write q8_0: the weight holds q4_0"):
        write(made, config("q8_0"))
    forced = read(write(made, config("q8_0"), force=True), config("q8_0"), module="fc", k=256)
    error = (forced.decoded() - made.decoded()).norm() / made.decoded().norm()
    assert float(error) < 0.02
