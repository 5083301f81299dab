"""GPTQ and GPTQ_V2 tensors are read, checked and written bit for bit."""

from __future__ import annotations

import dataclasses
import pickle

import hypothesis
import pytest
import torch
from formats.makers import CHECKPOINTS, Case, checkpoint, gptq_cases, random_scales, random_words, settings
from hypothesis import given
from hypothesis import strategies as st

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import InexactConversion, TensorMismatch
from quantfarm.formats import gptq, zeros
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packing import pack_codes, pack_columns, unpack_columns
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.formats.table import find

ANY_CASE = st.one_of(*[gptq_cases(bits) for bits in (2, 3, 4, 8)])


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors have the same dtype, shape and bits."""
    return one.dtype == other.dtype and torch.equal(
        one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    )


def stored(config: QuantConfig, k: int, n: int, points: torch.Tensor, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return GPTQ_V2 tensors with given zero points [G, N]."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "qweight": random_words(generator, k * config.bits // 32, n),
        "qzeros": pack_columns(points, config.bits),
        "scales": random_scales(generator, points.shape[0], n, torch.float16),
    }


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_writing_what_was_read_gives_the_same_bytes(name: str) -> None:
    """Every module of every real checkpoint survives read and write without a changed bit."""
    for module, tensors in checkpoint(name).modules.items():
        config = checkpoint(name).config.for_module(module)
        assert config is not None
        row = find(config.method, config.format)
        tensor = row.read()(tensors, config, module=module)
        written = row.write()(tensor, config, force=True)
        assert written.keys() == tensors.keys()
        assert all(same_bytes(written[key], tensors[key]) for key in tensors)
        kept = {**tensor.source, **tensor.codes_to_source(tensor.codes)}
        assert kept.keys() == tensors.keys()
        assert all(same_bytes(kept[key], tensors[key]) for key in tensors)


@hypothesis.settings(max_examples=250)
@given(case=ANY_CASE)
def test_a_written_case_reads_back_to_the_same_values(case: Case) -> None:
    """Write is the inverse of read for every width, tail, index and zero point; codes and metadata are not copied."""
    tensor = case.read()
    assert tensor.codes is case.tensors["qweight"]
    written = gptq.write(tensor, case.config, force=True)
    again = dataclasses.replace(case, tensors=written).read()
    assert torch.equal(again.decoded(), tensor.decoded())
    assert torch.equal(again.zeros, tensor.zeros)
    assert again.scheme == tensor.scheme


@given(bits=st.sampled_from([2, 3, 4, 8]), rows=st.integers(1, 5), n=st.integers(1, 70), seed=st.integers(0, 2**31))
def test_columns_pack_and_unpack(bits: int, rows: int, n: int, seed: int) -> None:
    """Fields across columns survive the words, whatever the tail."""
    fields = torch.randint(0, 1 << bits, (rows, n), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    words = pack_columns(fields, bits)
    assert words.shape == (rows, -(-n * bits // 32))
    assert torch.equal(unpack_columns(words, bits, n), fields)


@pytest.mark.parametrize("word_wise", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_v1_zero_points_invert_in_every_lane(bits: int, *, word_wise: bool) -> None:
    """A zero of 0 (stored all ones) and one of 2^bits - 1 come back from every lane, lanes 10 and 21 of 3 bits too."""
    n, top = 64, (1 << bits) - 1
    for value in (0, 1, top):
        points = torch.full((n, n), 1 << (bits - 1), dtype=torch.int32)
        points.fill_diagonal_(value)
        words = zeros.to_v1(points, bits, word_wise=word_wise)
        decoded, _ = zeros.from_v1(words, bits, n, word_wise=word_wise)
        assert torch.equal(decoded, points)


def test_the_two_borrow_rules_differ_beside_a_zero_of_zero() -> None:
    """A zero of 0 in lane 0 borrows from lane 1 under the word-wise rule; the count of such fields is reported."""
    points = torch.tensor([[0, 8, 8, 8, 8, 8, 8, 8]])
    words = zeros.to_v1(points, 4, word_wise=True)
    assert words.item() == 0x7777776F
    assert zeros.to_v1(points, 4, word_wise=False).item() == 0x7777777F
    wrong, differing = zeros.from_v1(words, 4, 8, word_wise=False)
    assert wrong.tolist() == [[0, 7, 8, 8, 8, 8, 8, 8]]
    assert differing == 1


def test_the_two_bit_checkpoint_says_how_many_zero_points_depend_on_the_rule() -> None:
    """The real 2-bit file has 102 such fields, and the notes name number and rule."""
    found = checkpoint("gptq-2bit-g32-asym")
    notes = [n for m, t in found.modules.items() for n in gptq.read(t, found.config, module=m).notes]
    assert sum(int(note.split(": ")[1].split()[0]) for note in notes) == 102
    assert all("the word_wise rule was used" in note for note in notes)


@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_r23_v1_and_v2_decode_the_same(bits: int, *, sym: bool) -> None:
    """Case R23: the same weights packed as gptq and as gptq_v2 decode bit-identically."""
    config = settings(bits=bits, group_size=32, sym=sym, checkpoint_format="gptq_v2")
    points = torch.randint(1, 1 << bits, (3, 64), generator=torch.Generator().manual_seed(bits))
    points = torch.full_like(points, 1 << (bits - 1)) if sym else points
    second = gptq.read(stored(config, 96, 64, points), config, module="m")
    first_config = settings(bits=bits, group_size=32, sym=sym)
    first = gptq.read(gptq.write(second, first_config), first_config, module="m")
    assert torch.equal(first.decoded(), second.decoded())
    assert first.scheme == second.scheme
    assert first.scheme.sym is sym
    assert first.notes == second.notes == ()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_r23_a_symmetric_file_that_is_labelled_wrong_is_corrected_and_reported(bits: int) -> None:
    """Case R23: labelled gptq with the zero points of gptq_v2, symmetric: read with the right ones, said in a note."""
    middle = 1 << (bits - 1)
    config = settings(bits=bits, sym=True)
    tensors = stored(config, 32, 32, torch.full((1, 32), middle))
    tensor = gptq.read(tensors, config, module="layer")
    assert bool((tensor.zeros == middle).all())
    assert tensor.scheme.sym
    assert len(tensor.notes) == 1
    assert f"stored as in gptq_v2 ({middle} instead of {middle - 1})" in tensor.notes[0]


def test_an_asymmetric_file_is_never_guessed_at() -> None:
    """Case R23: with sym false the same words are taken by the label alone."""
    config = settings(sym=False)
    tensor = gptq.read(stored(config, 32, 32, torch.full((1, 32), 8)), config, module="layer")
    assert bool((tensor.zeros == 9).all())
    assert not tensor.scheme.sym
    assert tensor.notes == ()


def test_one_odd_zero_point_makes_a_symmetric_file_asymmetric() -> None:
    """Settings that say symmetric lose against the stored zero points; a note says so."""
    config = settings(sym=True, checkpoint_format="gptq_v2")
    points = torch.full((1, 32), 8)
    points[0, 5] = 7
    tensor = gptq.read(stored(config, 32, 32, points), config, module="layer")
    assert not tensor.scheme.sym
    assert "1 of 32 zero points are not 8" in tensor.notes[0]


def test_a_zero_point_of_zero_is_not_written_as_v1_unless_forced() -> None:
    """Case R23: v2 -> v1 -> v2 with a zero of 0 everywhere returns the same words; unforced it is refused."""
    second, first = settings(checkpoint_format="gptq_v2"), settings()
    original = stored(second, 64, 32, torch.zeros(2, 32, dtype=torch.int64))
    tensor = gptq.read(original, second, module="m")
    with pytest.raises(InexactConversion, match=r'64 zero points are 0(.|\n)*use format="gptq_v2"'):
        gptq.write(tensor, first)
    forced = gptq.write(tensor, first, force=True)
    back = gptq.write(gptq.read(forced, first, module="m"), second)
    assert all(same_bytes(back[key], original[key]) for key in original)


def test_a_zero_point_that_no_field_holds_is_refused() -> None:
    """2^bits is a zero point that a tensor may have, but no format stores it."""
    config = settings(checkpoint_format="gptq_v2")
    tensor = gptq.read(stored(config, 32, 32, torch.full((1, 32), 8)), config, module="m")
    high = dataclasses.replace(tensor, zeros=torch.full_like(tensor.zeros, 16))
    with pytest.raises(InexactConversion, match="needs 0 to 15 in 4 bits, got 16 to 16"):
        gptq.write(high, config)


@pytest.mark.parametrize("k", [4096, 32, 96, 4096 + 32])
def test_r25_three_bit_shapes_and_every_position(k: int) -> None:
    """Case R25: 3-bit qweight has K*3/32 rows, qzeros N*3/32 columns, and each code returns from each position."""
    n = 64
    config = settings(bits=3, group_size=32, checkpoint_format="gptq_v2")
    codes = ((torch.arange(k).unsqueeze(1) + torch.arange(n)) % 8).to(torch.uint8)
    tensors = {
        "qweight": pack_codes(codes, 3),
        "qzeros": pack_columns(torch.full((k // 32, n), 3), 3),
        "scales": torch.ones(k // 32, n, dtype=torch.float16),
    }
    assert tensors["qweight"].shape == (k * 3 // 32, n)
    assert tensors["qzeros"].shape == (k // 32, n * 3 // 32)
    tensor = gptq.read(tensors, config, module="m")
    assert (tensor.k, tensor.n) == (k, n)
    assert torch.equal(tensor.unpacked(), codes)
    assert torch.equal(tensor.decoded(), (codes.to(torch.float32) - 3).t())


def test_a_short_last_group_is_read() -> None:
    """Case R35: K=4304 with groups of 32 has 135 groups, the last one of 16 inputs."""
    config = settings(group_size=32, sym=True, checkpoint_format="gptq_v2")
    tensor = gptq.read(stored(config, 4304, 8, torch.full((135, 8), 8)), config, module="vision.fc1")
    assert (tensor.k, tensor.groups) == (4304, 135)
    codes = tensor.unpacked().to(torch.float32)
    assert torch.equal(tensor.decoded()[:, -16:], ((codes[-16:] - 8) * tensor.scales[134].to(torch.float32)).t())


def test_every_mismatch_is_told_at_once_with_both_numbers() -> None:
    """Case R35: wrong shapes name the module, the tensor, what is needed, why, and what is there."""
    config = settings(group_size=32)
    tensors = stored(config, 4304, 32, torch.full((134, 32), 8))
    tensors |= {"bias": torch.zeros(31), "g_idx": torch.zeros(4304, dtype=torch.int16)}
    with pytest.raises(TensorMismatch, match=r"cannot load vision\.fc1: tensors do not match the settings") as caught:
        gptq.read(tensors, config, module="vision.fc1", k=4320)
    for line in (
        "  qweight        rows: needs 540 (K=4320, 4 bits), got 538",
        "  qzeros         groups: needs 135 (K=4320, group_size=32), got 134",
        "  scales         groups: needs 135 (K=4320, group_size=32), got 134",
        "  g_idx          dtype: needs int32 or int64, got int16",
        "  g_idx          entries: needs 4320 (K=4320), got 4304",
        "  bias           entries: needs 32 (N=32), got 31",
        "compare settings with the tensor list",
    ):
        assert line in str(caught.value)


def test_a_padded_file_is_told() -> None:
    """Tensors of K=11264 do not pass for a layer of K=11008: rows and groups say both numbers."""
    config = settings(group_size=128, checkpoint_format="gptq_v2")
    tensors = stored(config, 11264, 8, torch.full((88, 8), 8))
    with pytest.raises(TensorMismatch, match=r"qweight +rows: needs 1376 \(K=11008, 4 bits\), got 1408") as caught:
        gptq.read(tensors, config, module="model.layers.3.mlp.down_proj", k=11008)
    assert "scales         groups: needs 86 (K=11008, group_size=128), got 88" in str(caught.value)


def test_missing_and_flat_tensors_are_told() -> None:
    """A missing tensor, a tensor of the wrong rank and a missing g_idx name themselves."""
    config = settings(desc_act=True, checkpoint_format="gptq_v2")
    tensors = stored(config, 64, 32, torch.full((2, 32), 8))
    with pytest.raises(TensorMismatch, match=r"qzeros +tensor: needs one, got none"):
        gptq.read({key: value for key, value in tensors.items() if key != "qzeros"}, config, module="m")
    with pytest.raises(TensorMismatch, match=r"scales +shape: needs 2 sides, got \[64\]"):
        gptq.read(tensors | {"scales": tensors["scales"].flatten()}, config, module="m")
    with pytest.raises(TensorMismatch, match=r"g_idx +tensor: needs \[64\] \(desc_act is true\), got none"):
        gptq.read(tensors, config, module="m")


def read_with_index(index: list[int], *, desc_act: bool = True) -> QuantTensor:
    """Read 64 inputs in two groups under a given index."""
    config = settings(desc_act=desc_act, checkpoint_format="gptq_v2")
    tensors = stored(config, 64, 32, torch.full((2, 32), 7))
    return gptq.read(tensors | {"g_idx": torch.tensor(index, dtype=torch.int32)}, config, module="m")


def test_group_indices_are_normalized() -> None:
    """A plain index is None, negative entries count from the last group, an order without desc_act is used and said."""
    assert read_with_index([0] * 32 + [1] * 32).g_idx is None
    assert read_with_index([0] * 32 + [-1] * 32).g_idx is None
    mixed = read_with_index([-2, 1] * 32)
    assert mixed.g_idx is not None
    assert mixed.g_idx.tolist() == [0, 1] * 32
    assert mixed.scheme.act_order
    assert mixed.source["g_idx"].tolist() == [-2, 1] * 32
    unasked = read_with_index([1, 0] * 32, desc_act=False)
    assert unasked.scheme.act_order
    assert "desc_act is false" in unasked.notes[0]
    with pytest.raises(TensorMismatch, match=r"g_idx +values: needs -2 to 1, got 0 to 2"):
        read_with_index([0, 2] * 32)
    whole = settings(group_size=-1, checkpoint_format="gptq_v2")
    tensors = stored(whole, 64, 32, torch.full((1, 32), 7)) | {"g_idx": torch.ones(64, dtype=torch.int32)}
    with pytest.raises(TensorMismatch, match=r"g_idx +values: needs -1 to 0, got 1 to 1"):
        gptq.read(tensors, whole, module="m")


def test_a_read_layer_can_be_pickled() -> None:
    """The way back to the stored words travels with the tensor, so that layers can be copied and sent."""
    tensor = read_with_index([0, 1] * 32)
    again = pickle.loads(pickle.dumps(tensor))
    assert same_bytes(again.codes_to_source(again.codes)["qweight"], tensor.codes_to_source(tensor.codes)["qweight"])


def test_r23_a_symmetric_v1_file_that_is_labelled_v2_is_corrected_and_reported() -> None:
    """Labelled gptq_v2 with the zero points of gptq, symmetric: read with the right ones, said in a note."""
    found = checkpoint("gptq-4bit-g64-sym")
    module, tensors = next(iter(found.modules.items()))
    read = find(METHOD.GPTQ, FORMAT.GPTQ).read()
    right = read(tensors, found.config, module=module)
    wrong = read(tensors, dataclasses.replace(found.config, format=FORMAT.GPTQ_V2), module=module)
    assert torch.equal(wrong.decoded(), right.decoded())
    assert any("are stored as in gptq (7 instead of 8); read as 8" in note for note in wrong.notes)
