"""Corners of the affine formats: planes of any width, the label MARLIN, native files, and tensors that are broken."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from formats.makers import Case, planar_cases, settings
from hypothesis import given

from quantfarm import reference
from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import InexactConversion, TensorMismatch, UnknownFormat
from quantfarm.formats import awq, gptq
from quantfarm.formats.facts import TensorFact
from quantfarm.formats.packed import packed_modules
from quantfarm.formats.packer import quantize_rtn, to_quant_tensor
from quantfarm.formats.packing import pack_awq, pack_codes, pack_columns
from quantfarm.formats.settings import affine
from quantfarm.formats.table import find


def symmetric(k: int = 64, n: int = 32) -> dict[str, torch.Tensor]:
    """Return GPTQ_V2 tensors of 4 bits with groups of 32 and zero points of 8."""
    codes = (torch.arange(k * n).reshape(k, n) % 16).to(torch.uint8)
    points = torch.full((k // 32, n), 8, dtype=torch.uint8)
    scales = torch.ones(k // 32, n, dtype=torch.float16)
    return {"qweight": pack_codes(codes, 4), "qzeros": pack_columns(points, 4), "scales": scales}


@given(case=planar_cases())
def test_planes_of_every_width_return_and_decode_as_the_reference(case: Case) -> None:
    """GPTQ_P of 2 to 8 bits, with and without act-order: the same words back, and the float64 weights."""
    tensor = case.read()
    assert torch.equal(tensor.packed()["qweight"], case.tensors["qweight"])
    written = gptq.write(tensor, case.config)
    assert all(torch.equal(written[name], case.tensors[name]) for name in case.tensors)
    c = case.config
    w = reference.decode(case.tensors, method="gptq", format="gptq_p", bits=c.bits, group_size=c.group_size, k=case.k)
    slack = 2.0**-15 if tensor.scales.dtype is torch.float32 else 0.0
    assert bool(np.all(np.abs(tensor.decoded().numpy() - w.astype(np.float32)) <= slack * np.abs(w)))


@pytest.mark.parametrize(("k", "n", "line"), [(31, 32, "K: needs a multiple of 32"), (32, 31, "N: needs a multiple")])
def test_planes_need_whole_blocks(k: int, n: int, line: str) -> None:
    """K or N of 31 has no place in the planes; reading and writing say so."""
    config = settings(checkpoint_format="gptq_p")
    with pytest.raises(TensorMismatch, match=line):
        gptq.read(symmetric(32, 32), config, module="m", k=k, n=n)
    result = quantize_rtn(torch.randn(n, k), bits=5, group_size=32, sym=True)
    planar = settings(bits=5, checkpoint_format="gptq_p", sym=True)
    tensor = to_quant_tensor(result, planar)
    with pytest.raises(InexactConversion, match=line):
        gptq.write(tensor, planar)


@pytest.mark.parametrize("bits", range(2, 9))
def test_rounding_writes_planes_of_every_width(bits: int) -> None:
    """Rounded, written and read again, the codes of each width are the same; other formats lack 5, 6 and 7 bits."""
    config = settings(bits=bits, checkpoint_format="gptq_p")
    result = quantize_rtn(torch.randn(32, 64), bits=bits, group_size=32, sym=False)
    tensor = to_quant_tensor(result, config)
    again = gptq.read(gptq.write(tensor, config), config, module="m")
    assert torch.equal(again.unpacked(), result.codes)
    assert torch.equal(again.decoded(), tensor.decoded())
    if bits in (5, 6, 7):
        with pytest.raises(InexactConversion, match=f"bits: needs one of 2, 3, 4, 8, got {bits}"):
            gptq.write(tensor, dataclasses.replace(config, format=FORMAT.GPTQ_V2))


def test_the_label_marlin_stands_for_the_tensors_of_gptq_and_awq() -> None:
    """Files under the legacy label decode like the format whose tensors they have, and keep the label."""
    tensors = symmetric()
    second = gptq.read(tensors, settings(checkpoint_format="gptq_v2", sym=True), module="m")
    v1 = gptq.write(second, settings(sym=True))
    labelled = gptq.read(v1, settings(checkpoint_format="marlin", sym=True), module="m")
    assert labelled.format is FORMAT.MARLIN
    assert labelled.scheme.sym
    assert torch.equal(labelled.decoded(), second.decoded())
    words = {
        "qweight": pack_awq(second.unpacked()),
        "qzeros": pack_awq(second.zeros.to(torch.uint8)),
        "scales": second.scales,
    }
    config = settings(quant_method="awq", version="marlin", sym=None, zero_point=False)
    assert torch.equal(awq.read(words, config, module="m").decoded(), second.decoded())
    with pytest.raises(UnknownFormat, match="cannot write marlin"):
        find(METHOD.GPTQ, FORMAT.MARLIN).write()


def test_native_files_of_the_old_kernel_are_refused_by_name() -> None:
    """A module with B, s and workspace is found, and told to be in the own layout of the old kernel."""
    config = settings(checkpoint_format="marlin", sym=True)
    native = {"B": torch.zeros(4, 64), "s": torch.ones(2, 32), "workspace": torch.zeros(64)}
    assert packed_modules([f"fc.{name}" for name in native], config) == {"fc": {name: f"fc.{name}" for name in native}}
    with pytest.raises(UnknownFormat, match=r"cannot read fc: .* old marlin kernel") as caught:
        gptq.read(native, config, module="fc")
    assert "needs qweight, qzeros, scales, got B, s, workspace" in str(caught.value)
    with pytest.raises(UnknownFormat, match="old marlin kernel"):
        affine.facts({name: TensorFact(dtype="I32", shape=tuple(t.shape)) for name, t in native.items()}, config)


@pytest.mark.parametrize(
    ("pair", "text"),
    [
        ((METHOD.GPTQ, FORMAT.BITBLAS), "arranged by the library bitblas"),
        ((METHOD.NF12, FORMAT.NF12_AD), "is not public, and none is guessed"),
    ],
)
def test_layouts_that_nobody_can_read_say_why(pair: tuple[METHOD, FORMAT], text: str) -> None:
    """A format with a name and no reader is refused with its own reason."""
    with pytest.raises(UnknownFormat, match=text):
        find(*pair)


@pytest.mark.parametrize("desc_act", [False, True])
def test_an_index_that_was_never_filled_is_refused(desc_act: bool) -> None:
    """A g_idx of one value over several groups would scale every input by one group: named, not followed."""
    config = settings(checkpoint_format="gptq_v2", desc_act=desc_act)
    empty = {"g_idx": torch.zeros(64, dtype=torch.int32)}
    with pytest.raises(TensorMismatch, match=r"g_idx +values: needs the group of each input, 0 to 1, got 0 everywhere"):
        gptq.read(symmetric() | empty, config, module="m")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_scales_that_are_not_finite_are_refused(value: float) -> None:
    """NaN or infinity among the scales of GPTQ and AWQ is counted and named before anything is computed."""
    tensors = symmetric()
    tensors["scales"][1, 3] = value
    with pytest.raises(TensorMismatch, match=r"scales +values: needs finite ones, got 1 that are not"):
        gptq.read(tensors, settings(checkpoint_format="gptq_v2"), module="m")
    words = {"qweight": torch.zeros(64, 4), "qzeros": torch.zeros(2, 4), "scales": tensors["scales"]}
    words = {name: t.to(torch.int32) if name != "scales" else t for name, t in words.items()}
    config = settings(quant_method="awq", version="gemm", sym=None, zero_point=True)
    with pytest.raises(TensorMismatch, match=r"scales +values: needs finite ones, got 1 that are not"):
        awq.read(words, config, module="m")
