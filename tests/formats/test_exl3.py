"""EXL3: decoded words, codebooks, transforms, and everything that a reader must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from layer_cases import Shape
from layer_cases import weight as affine_weight
from trellis_cases import CODEBOOKS, MARKS, literal, literal_inner, settings, stored, value, weight

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import ConfigError, InexactConversion, TensorMismatch
from quantfarm.formats.config import parse
from quantfarm.formats.exl3 import write
from quantfarm.formats.facts import TensorFact
from quantfarm.formats.packing_codebooks import pack_signs, pack_states, unpack_signs, unpack_states
from quantfarm.formats.settings.exl3 import Codebook, facts
from quantfarm.formats.table import find
from quantfarm.formats.weights.trellis import codebook_table, hadamard, natural
from quantfarm.reference import decode

Tensors = dict[str, torch.Tensor]
CPU = torch.device("cpu")


@pytest.mark.parametrize("codebook", CODEBOOKS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_inner_weights_are_the_halves_of_the_layout(bits: int, codebook: str) -> None:
    """Every width and codebook decodes to exactly the literal numbers, those that need preloaded symbols included."""
    tensors = stored(bits=bits, codebook=codebook, seed=bits)
    inner = natural(weight(tensors).inner(slice(0, 8), slice(0, 8)))
    assert np.array_equal(inner.double().numpy(), literal_inner(tensors))


@pytest.mark.parametrize("codebook", CODEBOOKS)
def test_codebooks_are_exact_for_every_state(codebook: str) -> None:
    """All 65536 states give the number of the formula, and none is outside fp16."""
    table = codebook_table(Codebook(codebook), CPU)
    assert torch.equal(table.half().float(), table)
    assert table.tolist() == [value(state, codebook) for state in range(65536)]


@limits(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), bits=st.integers(1, 8), tiles=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_words_and_states_are_inverse(seed: int, bits: int, tiles: tuple[int, int]) -> None:
    """Packing the states of any words, negative ones too, gives the words back."""
    source = torch.Generator().manual_seed(seed)
    words = torch.randint(-(1 << 15), 1 << 15, (*tiles, 16 * bits), generator=source).to(torch.int16)
    states = unpack_states(words)
    assert (int(states.min()) >= 0, int(states.max()) < 65536) == (True, True)
    assert torch.equal(pack_states(states, bits), words)


@given(words=st.lists(st.integers(-(1 << 15), (1 << 15) - 1), min_size=1, max_size=5))
def test_packed_signs_are_inverse(words: list[int]) -> None:
    """A set bit is a minus; the lowest bit is the first entry."""
    packed = torch.tensor(words, dtype=torch.int16)
    signs = unpack_signs(packed)
    assert signs[0] == (-1 if words[0] & 1 else 1)
    assert torch.equal(pack_signs(signs), packed)


@pytest.mark.parametrize("bits", [1, 3, 5, 8])
def test_the_stream_bites_its_tail(bits: int) -> None:
    """The last symbols of a tile reach into its first states and into no other tile."""
    plain = torch.zeros(1, 2, 16 * bits, dtype=torch.int16)
    changed = plain.clone()
    changed[0, 0, -2] = 1  # The last word of the stream: its pair is stored swapped.
    places = torch.nonzero(unpack_states(changed)[0, :, 0]).flatten().tolist()
    assert len(places) == -(-16 // bits)
    assert 0 in places
    assert bool((unpack_states(changed)[0, :, 1] == 0).all())


@pytest.mark.parametrize("packed", [False, True])
def test_decoded_rows_hold_transforms_and_scales(packed: bool) -> None:
    """W holds both Hadamard transforms, signs and scales; any block of rows is that part of the whole."""
    tensors = stored(k=256, n=384, bits=3, codebook="mcg")
    if packed:
        for plain, short in (("suh", "su"), ("svh", "sv")):
            tensors[short] = pack_signs(tensors.pop(plain))
    read = weight(tensors)
    exact = literal(tensors)
    reference = torch.from_numpy(decode(tensors, method="exl3", format="exl3", bits=3, group_size=-1))
    assert float((reference - exact).abs().max()) < 1e-13
    decoded = read.decoded()
    assert decoded.shape == (384, 256)
    assert float((decoded.double() - exact).norm() / exact.norm()) < 4e-7
    assert torch.equal(read.decoded(128, 384), decoded[128:])
    with pytest.raises(ValueError, match="blocks"):
        read.decoded(64)


def test_the_hadamard_matrix_is_sylvesters() -> None:
    """Entry (i, j) is the parity of i & j; the matrix is its own inverse up to 128."""
    matrix = hadamard(CPU)
    assert torch.equal(matrix @ matrix, 128 * torch.eye(128))
    assert matrix[3, 1] == -1
    assert matrix[127, 127] == -1


@pytest.mark.parametrize("codebook", CODEBOOKS)
def test_written_again_the_tensors_are_the_same(codebook: str) -> None:
    """The writer gives back what was read, tensor for tensor, a bias and an unsigned mark too."""
    tensors = stored(codebook=codebook) | {"bias": torch.randn(128)}
    if codebook in MARKS:
        tensors[codebook] = torch.tensor(MARKS[codebook], dtype=torch.uint32)
    written = write(weight(tensors), parse(settings(), source="s"))
    assert written.keys() == tensors.keys()
    assert all(written[name] is tensor for name, tensor in tensors.items())


def test_floats_are_not_packed() -> None:
    """Another weight is refused by the writer, forced or not: a trellis is found by a search, not by rounding."""
    with pytest.raises(InexactConversion, match="a search, not from rounding"):
        write(affine_weight(Shape()), parse(settings(), source="s"), force=True)


def _cut(tensors: Tensors) -> None:
    tensors["trellis"] = tensors["trellis"][:, :, :-1].contiguous()


def _flat(tensors: Tensors) -> None:
    tensors["trellis"] = tensors["trellis"].flatten(1)


def _short(tensors: Tensors) -> None:
    tensors["trellis"] = tensors["trellis"][:7].contiguous()


def _both(tensors: Tensors) -> None:
    tensors["su"] = pack_signs(tensors["suh"])


def _not_a_number(tensors: Tensors) -> None:
    tensors["svh"][3] = float("nan")


def _infinite(tensors: Tensors) -> None:
    tensors["suh"][:2] = float("inf")


def _earliest(tensors: Tensors) -> None:
    tensors["scale"] = torch.ones(128)


def _two_marks(tensors: Tensors) -> None:
    tensors |= {"mcg": torch.tensor(0, dtype=torch.int32), "mul1": torch.tensor(0, dtype=torch.int32)}


def _wrong_mark(tensors: Tensors) -> None:
    tensors["mcg"] = torch.tensor(MARKS["mul1"], dtype=torch.uint32)


def _meta(tensors: Tensors) -> None:
    tensors["trellis"] = tensors["trellis"].to("meta")


REFUSED: dict[Callable[[Tensors], None], str] = {
    _cut: r"trellis +words a tile: needs one of 16, 32, .*, got 63",
    _flat: r"trellis +shape: needs 3 sides .* got \[8, 512\]",
    _short: r"trellis +K: needs a multiple of 128, got 112.*suh +entries: needs 112 \(K=112\), got 128",
    lambda tensors: tensors.__delitem__("trellis"): r"trellis +tensor: needs one, got none",
    lambda tensors: tensors.__delitem__("suh"): r"suh +tensor: needs one of suh and su, got none",
    _both: r"suh +tensor: needs one of suh and su, got both",
    _not_a_number: r"svh +values: needs finite numbers, got 1 that are not",
    _infinite: r"suh +values: needs finite numbers, got 2 that are not",
    _earliest: r"scale +tensor: needs none, got one: files of the earliest writers",
    _two_marks: r"mcg, mul1 +tensor: needs at most one of the two, got both",
    _wrong_mark: r"mcg +value: needs 0xcbac1fed, got 0x83dcd12d",
    _meta: r"trellis +values: needs some, got none \(meta tensor\)",
    lambda tensors: tensors.update(bias=torch.zeros(64)): r"bias +entries: needs 128 \(N=128\), got 64",
    lambda tensors: tensors.update(trellis=tensors["trellis"].int()): r"trellis +dtype: needs int16, got int32",
}


@pytest.mark.parametrize("harm", list(REFUSED), ids=lambda harm: REFUSED[harm][:15])
def test_bad_tensors_are_named(harm: Callable[[Tensors], None]) -> None:
    """Cut, flat, missing, doubled, not finite, wrongly marked or empty tensors are refused with both values."""
    tensors = stored()
    harm(tensors)
    with pytest.raises(TensorMismatch, match=f"(?s)cannot load m.*{REFUSED[harm]}"):
        weight(tensors)


STORAGE = {
    "trellis": {"shape": [8, 8, 48], "dtype": "torch.int16"},
    "m.svh": {"shape": [128], "dtype": "torch.float32"},
}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"codebook": "mul1"}, r"codebook: needs mul1 \(the settings\), got mcg \(the tensors\)"),
        ({"tensor_storage": {"m": {"mcg_multiplier": 3}}}, r"mcg_multiplier: needs 0xcbac1fed .* got 0x3 with mcg"),
        ({"tensor_storage": {"m": {"stored_tensors": STORAGE}}}, r"(?s)trellis +shape: needs \[8, 8, 48\].*svh +dtype"),
        ({"tensor_storage": {"m": {"stored_tensors": {"m.su": {}}}}}, r"su +tensor: needs one .*got none"),
    ],
)
def test_settings_that_contradict_the_tensors_are_refused(changes: dict[str, Any], text: str) -> None:
    """A stated codebook, multiplier, shape or dtype that the file does not have stops the load; true ones do not."""
    tensors = stored(codebook="mcg")
    agreeing = {"m": {"mcg_multiplier": MARKS["mcg"], "stored_tensors": {"m.suh": {"shape": [128]}}}, "other": {}}
    assert weight(tensors, codebook="mcg", tensor_storage=agreeing).codebook is Codebook.MCG
    with pytest.raises(TensorMismatch, match=text):
        weight(tensors, **changes)


def test_a_model_of_another_size_is_refused() -> None:
    """K and N of the model decide: a trellis of another size is named with both numbers."""
    with pytest.raises(TensorMismatch, match=r"(?s)trellis +tiles: needs 16 \(K=256\), got 8.*suh"):
        find(METHOD.EXL3, FORMAT.EXL3).read()(stored(), parse(settings(), source="s"), module="m", k=256, n=128)


def test_the_mean_width_is_kept() -> None:
    """A fraction is no width of a layer: the details keep it, and settings written again say what was read."""
    stated = settings(bits=4.25, out_scales="auto", codebook="mcg", calibration={"rows": 1, "cols": 2}, version="0.0.6")
    config = parse(stated, source="s")
    assert (config.bits, config.group_size, config.lm_head, config.ignored) == (4, -1, True, ())
    written = config.as_settings()
    assert {key: written[key] for key in stated} == stated
    assert parse(written, source="s").facts() == config.facts()
    assert weight(stored(bits=5), bits=4.25).scheme.bits == 5


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bits": 9.5}, "bits: needs the mean width"),
        ({"bits": None}, "bits: needs the mean width"),
        ({"bits": "many"}, "bits: needs the mean width"),
        ({"codebook": "mcg2"}, "codebook: needs 3inst or mcg or mul1"),
        ({"tensor_storage": [1]}, "tensor_storage: needs an object"),
    ],
)
def test_unusable_settings_are_named(changes: dict[str, Any], text: str) -> None:
    """A mean width outside 1 to 8, an unknown codebook and a list in place of an object are refused by key."""
    with pytest.raises(ConfigError, match=text):
        parse(settings(**changes), source="s")


def test_the_head_follows_its_tensors() -> None:
    """Where the settings list tensors, the head is packed if its trellis is among them."""
    listed = {"lm_head": {"stored_tensors": {"lm_head.trellis": {}}}}
    assert parse(settings(tensor_storage=listed), source="s").lm_head
    assert not parse(settings(tensor_storage={"m": {}}), source="s").lm_head
    assert not parse({"quant_method": "exl3", "bits": 3}, source="s").lm_head


def test_a_header_gives_the_facts() -> None:
    """Shape and width of a layer follow from the trellis alone, width by width."""
    config = parse(settings(), source="s")
    found = facts({"trellis": TensorFact(dtype="I16", shape=(16, 24, 48))}, config)
    assert (found.k, found.n, found.scheme) == (256, 384, weight(stored(bits=3)).scheme)
    with pytest.raises(ConfigError, match="trellis: needs shape"):
        facts({"trellis": TensorFact(dtype="I16", shape=(16, 24))}, config)
