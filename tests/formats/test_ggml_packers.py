"""Rounding floats to ggml blocks, and the exact way from blocks to affine codes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from ggml_cases import config, rows, weight
from gguf import quants

from quantfarm.declare import ggml
from quantfarm.errors import InexactConversion, UnknownFormat
from quantfarm.formats import gptq
from quantfarm.formats.ggml_affine import to_affine
from quantfarm.formats.ggml_packers import PACKERS, quantize
from quantfarm.formats.gguf import read

SAME_AS_THE_PACKAGE = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4", "bf16", "f16", "f32")
LARGEST_ERROR = {
    "f32": 0.0,
    "f16": 1e-3,
    "bf16": 4e-3,
    "q8_0": 0.01,
    "q6_k": 0.03,
    "q5_k": 0.05,
    "q5_0": 0.06,
    "q5_1": 0.05,
    "q4_k": 0.1,
    "q4_0": 0.11,
    "q4_1": 0.1,
    "iq4_nl": 0.1,
    "mxfp4": 0.14,
    "q3_k": 0.2,
    "q2_k": 0.4,
    "q2_0": 0.5,
    "q1_0": 0.7,
    "tq1_0": 0.9,
    "tq2_0": 0.9,
}
"""Relative error on normal weights."""


def _drawn(k: int = 1024) -> torch.Tensor:
    """Draw rows of different size, among them zeros, a constant, one sign only."""
    source = torch.Generator().manual_seed(0)
    w = torch.randn(12, k, generator=source) * torch.exp(torch.randn(12, 1, generator=source) * 2)
    w[1], w[2], w[3], w[4, ::2] = 0, 1.0, w[3].abs(), 0
    return w


@pytest.mark.parametrize("name", SAME_AS_THE_PACKAGE)
def test_plain_types_are_packed_as_in_the_package(name: str) -> None:
    """Bytes equal those of ggml's own rule as the package has it."""
    w = _drawn()
    expected = quants.quantize(w.numpy(), gguf.GGMLQuantizationType[name.upper()])
    assert np.array_equal(quantize(w, name).numpy(), np.ascontiguousarray(expected).view(np.uint8).reshape(12, -1))


@pytest.mark.parametrize("name", PACKERS)
def test_packed_weights_are_near(name: str) -> None:
    """Every packer writes what the decoder reads back, also where K does not fill the block; zeros stay zero."""
    for k in (1024, 300):
        w = _drawn(k)
        made = read({"qweight": quantize(w, name)}, config(name), module="fc", k=k)
        assert not made.decoded()[1].any()
        near = made.decoded()[5:], w[5:]
        assert float((near[0] - near[1]).norm() / near[1].norm()) <= LARGEST_ERROR[name]


@pytest.mark.parametrize("block", [64, 128])
def test_two_bits_are_packed_with_either_block(block: int) -> None:
    """The name with its block says which of the two sizes is written."""
    w = torch.tensor([-1.0, 0, 1, 2]).repeat(2, 64) * 0.5
    made = read({"qweight": quantize(w, f"q2_0_g{block}")}, config(f"q2_0_g{block}"), module="fc", k=256)
    assert made.type.block == block
    assert torch.equal(made.decoded(), w)


def test_what_can_not_be_packed_is_named() -> None:
    """A type without a packer, an unknown one, values that are not finite, scales beyond fp16."""
    w = torch.ones(2, 256)
    for name, says in (("iq2_xs", "no packer for it"), ("nvfp4", "no packer for it"), ("q9", "no such type")):
        with pytest.raises(UnknownFormat, match=f"cannot quantize to {name}: {says}"):
            quantize(w, name)
    with pytest.raises(InexactConversion, match="got 1 values that are not finite"):
        quantize(torch.where(torch.arange(256) == 3, torch.nan, 1.0).unsqueeze(0), "q4_0")
    with pytest.raises(InexactConversion, match="needs the range of float16, got 2 scales"):
        quantize(torch.full((1, 64), 1e7), "q4_0")


@pytest.mark.parametrize(("name", "zero"), [("q4_0", 8), ("q8_0", 128)])
@pytest.mark.parametrize("k", [256, 100])
def test_blocks_become_affine_codes_exactly(name: str, zero: int, k: int) -> None:
    """Q4_0 and Q8_0 of any bytes have the same fp32 values as integer codes, behind a GPTQ_V2 file too."""
    (entry,) = ggml.named(name)
    made = weight(entry, rows(entry, 8, -(-k // 32)), k)
    affine = to_affine(made)
    assert (affine.scheme.group_size, affine.scheme.sym, affine.scheme.bits) == (32, True, entry.bits)
    assert bool((affine.zeros == zero).all())
    assert torch.equal(affine.decoded(), made.decoded())
    if k % 32 == 0:
        from quantfarm.formats.config import parse

        says = {"quant_method": "gptq", "format": "gptq_v2", "bits": entry.bits, "group_size": 32}
        target = parse(says, source="test")
        again = gptq.read(gptq.write(affine, target), target, module="fc", k=k, n=8)
        assert torch.equal(again.decoded(), made.decoded())


def test_minima_must_be_whole_multiples() -> None:
    """Q4_1 with m = -3d converts exactly; any other minimum is refused, or rounded when forced; other types never."""
    (entry,) = ggml.named("q4_1")
    qweight = rows(entry, 4, 8)
    whole = qweight.view(4, 8, 20).clone()
    d = torch.full((4, 8, 1), 0.25, dtype=torch.float16)
    whole[..., :2], whole[..., 2:4] = d.view(torch.uint8), (-3 * d).view(torch.uint8)
    made = weight(entry, whole.view(4, -1))
    affine = to_affine(made)
    assert bool((affine.zeros == 3).all())
    assert torch.equal(affine.decoded(), made.decoded())
    other = weight(entry, qweight)
    with pytest.raises(InexactConversion, match="got 32 of 32 blocks with others"):
        to_affine(other)
    assert to_affine(other, force=True).zeros.shape == (8, 4)
    with pytest.raises(InexactConversion, match="cannot convert q6_k exactly"):
        to_affine(weight(ggml.named("q6_k")[0], rows(ggml.named("q6_k")[0], 2, 1)))
