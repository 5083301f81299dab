"""VPTQ: every kind of layer against the literal decoder, settings by layer, and everything that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from layer_cases import Shape
from layer_cases import weight as affine_weight
from vector_cases import Case, literal

from quantfarm.errors import ConfigError, InexactConversion, TensorMismatch
from quantfarm.formats.config import parse
from quantfarm.formats.packing import unpack_codes
from quantfarm.formats.packing_codebooks import pack_entries, unpack_entries
from quantfarm.formats.settings.vptq import facts
from quantfarm.formats.vptq import read, write
from quantfarm.reference import decode

Tensors = dict[str, torch.Tensor]

CORNERS = {
    "plain": Case(),
    "pad rows": Case(n=19),
    "residual": Case(residual=2),
    "residual wider than main": Case(main=3, residual=6, n=21),
    "unpacked": Case(packed=False, residual=6, main=3),
    "as float": Case(packed=False, as_float=True, main=16, group_size=5, residual=16, vector=4, n=6),
    "groups": Case(groups=3, group_size=7, residual=5),
    "outliers": Case(outlier_size=3, outlier_vector=3, n=23),
    "order": Case(perm=True),
    "long order": Case(perm=True, outlier_size=2, packed=False),
    "norm": Case(norm=True, dtype=torch.bfloat16),
    "all": Case(n=22, groups=2, residual=7, outlier_size=4, norm=True, perm=True, dtype=torch.bfloat16),
    "16 and 16 bits": Case(main=16, residual=16, group_size=5, vector=5, n=7),
}


@pytest.mark.parametrize("case", CORNERS.values(), ids=CORNERS)
def test_corners_decode_as_the_layout_says(case: Case) -> None:
    """Each corner of the format gives the literal numbers: exactly without residual and norm, else within fp32."""
    _check(case)


@limits(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_layer_decodes_as_the_layout_says(data: st.DataObject) -> None:
    """Drawn sizes, vector lengths, codebooks, orders and kinds of indices decode to the literal numbers."""
    draw, packed = data.draw, data.draw(st.booleans())
    main, residual = draw(st.integers(1, 9)), draw(st.sampled_from([-1, 0, 1, 4, 9]))
    case = Case(
        n=draw(st.integers(1, 30)),
        vector=draw(st.integers(-(-(main + max(residual, 0)) // 8), 9)),
        main=main,
        residual=residual,
        groups=draw(st.integers(1, 3)),
        group_size=draw(st.integers(1, 40)),
        outlier_size=draw(st.integers(0, 3)),
        outlier_vector=draw(st.integers(1, 5)),
        norm=draw(st.booleans()),
        perm=draw(st.booleans()),
        packed=packed,
        as_float=not packed and draw(st.booleans()),
        dtype=draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32])),
        seed=draw(st.integers(0, 999)),
    )
    _check(case)


def _check(case: Case) -> None:
    weight, exact = read(case.stored(), case.config(), module="m"), literal(case.stored(), case.own())
    says = {"bits": weight.scheme.bits, "group_size": -1, "details": case.own()}
    assert torch.equal(torch.from_numpy(decode(case.stored(), method="vptq", format="vptq", **says)), exact)
    found = weight.decoded().double()
    assert found.shape == exact.shape == (case.n, case.k)
    # A residual vector and a norm are sums in fp32, so that the error is relative to the terms.
    slack = 2e-6 * (1 + exact.abs()) if case.norm or case.residual >= 0 else torch.zeros(())
    assert bool(((found - exact).abs() <= slack).all())
    block = weight.row_block
    for start in range(0, case.n, block):
        assert torch.equal(weight.decoded(start, min(start + block, case.n)).double(), found[start : start + block])


@given(bits=st.integers(1, 32), count=st.integers(1, 70), seed=st.integers(0, 999))
def test_entries_of_any_width_are_inverse(bits: int, count: int, seed: int) -> None:
    """Packing and unpacking are inverse up to 32 bits, top bits set, and the stream is that of narrow codes."""
    entries = torch.randint(0, 1 << bits, (2, 3, count), generator=torch.Generator().manual_seed(seed))
    words = pack_entries(entries, bits)
    assert words.shape == (2, 3, -(-count * bits // 32))
    assert torch.equal(unpack_entries(words, bits, count), entries)
    if bits in (2, 3, 4, 8):
        assert torch.equal(unpack_codes(words[0].t(), bits, count).t().long(), entries[0])


def test_a_residual_wider_than_the_main_index_keeps_its_high_bits() -> None:
    """The trap of the format: the residual is masked by its own width, not by the main one."""
    case = CORNERS["residual wider than main"]
    tensors = case.stored()
    entries = torch.full((1, 6, 24), 0b100000 << 3)
    tensors["indices"] = pack_entries(entries, 9)
    expected = tensors["centroids.weight"][0, :4].float() + tensors["res_centroids.weight"][0, 32 * 4 : 33 * 4].float()
    assert torch.equal(read(tensors, case.config(), module="m").decoded()[:4, 0], expected)


@pytest.mark.parametrize("case", CORNERS.values(), ids=CORNERS)
def test_written_again_the_tensors_are_the_same(case: Case) -> None:
    """The writer gives back what was read, tensor for tensor, and a bias in its own dtype."""
    tensors = case.stored() | {"bias": torch.randn(case.n)}
    written = write(read(tensors, case.config(), module="m"), case.config())
    assert written.keys() == tensors.keys()
    assert all(written[name] is tensor for name, tensor in tensors.items())


def test_floats_are_not_packed() -> None:
    """Another weight is refused by the writer, forced or not: codebooks come from clustering."""
    with pytest.raises(InexactConversion, match="clustering, not from rounding"):
        write(affine_weight(Shape()), Case().config(), force=True)


FULL = Case(groups=2, group_size=10, residual=3, outlier_size=2, norm=True, perm=True, packed=False)


def _set(name: str, place: Any, value: float) -> Callable[[Tensors], None]:
    return lambda tensors: tensors[name].__setitem__(place, value)


def _drop(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__delitem__(name)


def _cut(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: tensors[name][..., :-1].contiguous()})


REFUSED: list[tuple[Callable[[Tensors], None], str]] = [
    (_set("centroids.weight", (0, 1), float("nan")), r"centroids.weight +values: needs finite numbers, got 1"),
    (_set("res_centroids.weight", 0, float("inf")), r"res_centroids.weight +values: needs finite numbers, got 32"),
    (_set("weight_scale", 0, float("nan")), r"weight_scale +values: needs finite"),
    (_set("indices", (0, 0, 0), 16), r"indices +values: needs below 16 \(entries of the codebook\), got 1 beyond it"),
    (_set("res_indices", (1, 4), -1), r"res_indices +values: needs below 8 .*, got 10 beyond it"),
    (_set("outlier_indices", (0, 0, 0), 8), r"outlier_indices values: needs below 8 .*got 1 beyond"),
    (_set("perm", slice(0, 2), 3), r"perm +values: needs every number from 0 to 21 once, got no permutation"),
    (_cut("indices"), r"indices +columns: needs 10 \(group_size\), got 9"),
    (_cut("centroids.weight"), r"centroids.weight numbers: needs 64 \(16 entries of 4\), got 63"),
    (_cut("outlier_indices"), r"outlier_indices columns: needs 2 \(outlier_size\), got 1"),
    (_cut("perm"), r"perm +entries: needs 22 \(K=22\), got 21"),
    (_drop("res_indices"), r"res_indices +tensor: needs \[2, 5, 10\], got none"),
    (_drop("weight_bias"), r"weight_bias +tensor: needs \[22\], got none"),
    (lambda t: t.update(indices=t["indices"].int()), r"indices +dtype: needs int16 or uint16, got int32"),
    (lambda t: t.update(indices=t["indices"].view(torch.float16)), r"indices +dtype: needs int16 .*got float16"),
    (lambda t: t.update(perm=t["perm"].to("meta")), r"perm +values: needs some, got none \(meta tensor\)"),
]


@pytest.mark.parametrize(("harm", "text"), REFUSED, ids=[text[:32] for _, text in REFUSED])
def test_bad_tensors_are_named(harm: Callable[[Tensors], None], text: str) -> None:
    """Numbers that are not finite, indices beyond a codebook, a false order, cut or missing tensors are refused."""
    tensors = FULL.stored()
    harm(tensors)
    with pytest.raises(TensorMismatch, match=f"(?s)cannot load m.*{text}"):
        read(tensors, FULL.config(), module="m")


def test_tensors_that_the_settings_exclude_are_refused() -> None:
    """A residual, an order or a norm that the settings deny would make another weight: refused, all in one error."""
    with pytest.raises(TensorMismatch) as caught:
        read(FULL.stored(), Case(groups=2, group_size=11, packed=False).config(), module="m")
    for name in ("res_centroids.weight", "res_indices", "perm", "weight_scale", "weight_bias", "outlier_indices"):
        assert f"{name:<14} tensor: needs none (the settings), got one" in str(caught.value)


def test_a_model_of_another_size_is_refused() -> None:
    """Sizes of settings and model must agree; a bias that the settings promise must be there."""
    case = Case()
    with pytest.raises(TensorMismatch, match=r"(?s)in_features +settings: needs 32 \(the model\), got 24.*out_f"):
        read(case.stored(), case.config(), module="m", k=32, n=24)
    with pytest.raises(TensorMismatch, match=r"bias +tensor: needs \[20\], got none"):
        read(case.stored(), case.config(bias=True), module="m")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"vector_quant_dim": "in"}, "settings, m.*vector_quant_dim: needs out, got 'in'"),
        ({"vector_lens": [4]}, r"vector_lens: needs \[of outliers, of the others\]"),
        ({"vector_lens": [-1, 0]}, "vector_lens: needs at least one"),
        ({"vector_lens": [-1, 1], "num_centroids": [-1, 512]}, "vector_lens: needs vectors so long that .* at most 8"),
        ({"num_centroids": [-1, 1 << 17]}, "num_centroids: needs 2 to 65536"),
        ({"num_centroids": [-1, 12]}, "is_indice_packed: needs false, since a codebook has no power of two"),
        ({"num_res_centroids": [4, -1]}, "num_res_centroids: needs -1 for outliers"),
        ({"num_res_centroids": [-1, 1 << 17]}, "num_res_centroids: needs at most"),
        ({"outlier_size": 4}, "outlier_size: needs 0, since outliers have no codebook"),
        ({"group_size": 20}, r"group_size: needs in_features=24 columns \(outlier_size .*, got 20"),
        ({"group_num": 0}, "group_num: needs a positive integer"),
        ({"enable_norm": "maybe"}, "enable_norm: needs true or false"),
        ({"out_features": None}, "out_features: needs an integer"),
    ],
)
def test_unusable_settings_are_named(changes: dict[str, Any], text: str) -> None:
    """What this reader can not do, or no file can have, is refused with layer, key and value."""
    with pytest.raises(ConfigError, match=f"(?s){text}"):
        Case().config(**changes)


def test_layers_are_found_by_name_then_by_tail() -> None:
    """A module has the settings of its name, else of its last part; one that has neither is dense."""
    narrow, wide = Case().own(), Case(vector=2, main=8).own()
    stated = {"quant_method": "vptq", "config_for_layers": {"a.x": narrow}, "shared_layer_config": {"x": wide}}
    config = parse(stated, source="s")
    assert (config.bits, config.details, config.ignored) == (4, {k: stated[k] for k in list(stated)[1:]}, ())
    by_name, by_tail = config.for_module("a.x"), config.for_module("b.x")
    assert by_name is not None
    assert by_tail is not None
    assert (by_name.details, by_name.bits, by_tail.details, by_tail.bits) == (narrow, 1, wide, 4)
    assert config.for_module("a.y") is None
    assert parse(config.as_settings(), source="s").facts() == config.facts()
    assert parse(by_tail.as_settings(), source="s").facts() == by_tail.facts()


def test_a_layer_without_settings_is_named() -> None:
    """Tensors of a module that no setting describes, and settings without any layer, are refused by name."""
    with pytest.raises(ConfigError, match=r"cannot load other: the settings do not describe it\n.*config_for_layers"):
        read(Case().stored(), Case().config(), module="other")
    for stated in ({}, {"shared_layer_config": {}}):
        with pytest.raises(ConfigError, match="no layer is described"):
            parse({"quant_method": "vptq", **stated}, source="s")
    with pytest.raises(ConfigError, match="config_for_layers: needs an object of layers"):
        parse({"quant_method": "vptq", "config_for_layers": [1]}, source="s")


def test_settings_give_the_facts() -> None:
    """Shape and width of a layer follow from its own settings, which a header does not tell."""
    config = FULL.config().for_module("m")
    assert config is not None
    found = facts({}, config)
    assert (found.k, found.n, found.scheme) == (22, 20, FULL.weight().scheme)
    with pytest.raises(ConfigError, match="vector_lens: needs the settings of this layer"):
        facts({}, FULL.config())
