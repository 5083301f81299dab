"""AWQ GEMV, GEMV_FAST and LLM_AWQ tensors are read, checked and written bit for bit."""

from __future__ import annotations

import dataclasses
import pickle

import hypothesis
import pytest
import torch
from formats.makers import Case, random_scales, random_words, settings
from hypothesis import given
from hypothesis import strategies as st

from quantfarm import reference
from quantfarm.declare.names import FORMAT
from quantfarm.errors import ConfigError, InexactConversion, TensorMismatch
from quantfarm.formats import awq_gemv
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.formats.table import find

ROWS = ("gemv", "gemv_fast", "llm-awq")
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
every_layout = pytest.mark.parametrize("version", ROWS)


def config_of(version: str, **changes: object) -> QuantConfig:
    """Return AWQ settings of a layout, groups of 64 unless changed."""
    base = {"quant_method": "awq", "group_size": 64, "sym": None, "zero_point": True}
    named = {"version": None, "backend": "llm-awq"} if version == "llm-awq" else {"version": version}
    return settings(**{**base, **named, **changes})


def zero_words(k: int, size: int) -> int:
    """Return zw by the words of formats, section 5."""
    m = {32: 4, 64: 2}.get(size, 1)
    groups = k // size
    eights = groups // 8 + (groups % 8 > 0)
    return (eights // m + (eights % m > 0)) * m


def stored(version: str, k: int, n: int, size: int, seed: int = 0, dtype: torch.dtype = torch.float16) -> dict:
    """Return random stored tensors with zero padding, any words among them."""
    source = torch.Generator().manual_seed(seed)
    groups, padded = k // size, 8 * zero_words(k, size)
    scales = torch.zeros(padded, n, dtype=dtype)
    scales[:groups] = random_scales(source, groups, n, dtype)
    points = torch.randint(0, 16, (groups, n), generator=source)
    if version == "gemv":
        words = torch.zeros(n, padded // 8, dtype=torch.int64)
        for g in range(groups):
            words[:, g // 8] |= points[g] << (4 * (g % 8))
        qzeros = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
        return {"qweight": random_words(source, n, k // 8), "qzeros": qzeros, "scales": scales.t().contiguous()}
    offsets = torch.zeros(padded, n, dtype=dtype)
    offsets[:groups] = (-(scales[:groups].float() * points)).to(dtype)
    words = torch.randint(-(1 << 15), 1 << 15, (n // 4, k), generator=source).to(torch.int16)
    return {"qweight": words, "scales": scales, ("qzeros" if version == "gemv_fast" else "scaled_zeros"): offsets}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Make stored tensors of any of the three, with every group size, number of groups and dtype of scales."""
    version = draw(st.sampled_from(ROWS))
    size = draw(st.sampled_from([-1, 32, 64, 128, 192]))
    k = draw(st.sampled_from([64, 128])) if size == -1 else 0
    if not k:
        step = 2 if version != "gemv" and size % 64 else 1
        k = size * step * draw(st.integers(1, 17))
    n = draw(st.integers(1, 5)) * (1 if version == "gemv" else 4)
    seed, dtype = draw(st.integers(0, 2**31)), draw(st.sampled_from(FLOATS))
    tensors = stored(version, k, n, k if size == -1 else size, seed, dtype)
    return Case(tensors=tensors, config=config_of(version, group_size=size), k=k, n=n)


@hypothesis.settings(deadline=None)
@given(case=cases())
def test_any_tensor_returns_bit_for_bit_and_decodes_as_the_reference(case: Case) -> None:
    """Writer and way back give exactly the stored words; each weight is the float64 one, rounded once."""
    tensor = case.read()
    written = awq_gemv.write(tensor, case.config)
    assert written.keys() == case.tensors.keys()
    assert all(torch.equal(written[key], case.tensors[key]) for key in written)
    again = pickle.loads(pickle.dumps(tensor))
    assert torch.equal(again.packed()["qweight"], case.tensors["qweight"])
    assert tensor.source.keys() == case.tensors.keys() - {"qweight"}
    w = reference.decode(
        case.tensors,
        method="awq",
        format=case.config.format,
        bits=4,
        group_size=case.config.group_size,
        k=case.k,
        n=case.n,
    )
    # A product of 4-bit code and 16-bit scale is exact in fp32; that of an fp32 scale is rounded once more.
    slack = 16 * torch.finfo(torch.float32).eps * float(tensor.scales.max()) * (tensor.scales.dtype is torch.float32)
    assert bool(((tensor.decoded() - torch.from_numpy(w).float()).abs() <= slack).all())


def test_gemv_words_run_along_the_inputs() -> None:
    """Word c of a row holds inputs 8c to 8c + 7 from the lowest nibble up; groups take theirs in the same way."""
    tensors = stored("gemv", 512, 3, 32, seed=1)
    tensor = awq_gemv.read(tensors, config_of("gemv", group_size=32), module="m")
    assert tensors["qzeros"].shape == (3, 4)
    for n, k in ((0, 0), (1, 77), (2, 511), (2, 256)):
        q = (int(tensors["qweight"][n, k // 8]) >> (4 * (k % 8))) & 15
        g = k // 32
        z = (int(tensors["qzeros"][n, g // 8]) >> (4 * (g % 8))) & 15
        assert tensor.decoded()[n, k] == (q - z) * tensors["scales"][n, g].float()


@pytest.mark.parametrize(
    ("size", "k", "words"), [(32, 96, 4), (32, 1088, 8), (64, 576, 2), (128, 1152, 2), (128, 128, 1)]
)
def test_the_width_of_zero_points_follows_its_rule(size: int, k: int, words: int) -> None:
    """A number of groups that is no multiple of 8, nor of 8m, is padded; the padding is written as 0."""
    config = config_of("gemv", group_size=size)
    tensors = stored("gemv", k, 2, size)
    written = awq_gemv.write(awq_gemv.read(tensors, config, module="m"), config)
    assert written["qzeros"].shape == (2, words)
    assert written["scales"].shape == (2, 8 * words)
    assert not bool(written["scales"][:, k // size :].any())


@every_layout
def test_a_group_size_without_a_width_rule_is_refused(version: str) -> None:
    """Groups of 16 (and any other small size) do not exist in these layouts; reading and writing say so."""
    config = config_of(version, group_size=16)
    with pytest.raises(TensorMismatch, match="group_size: needs 32, 64 or at least 128, got 16"):
        awq_gemv.read(stored(version, 64, 4, 64), config, module="m")
    tensor = awq_gemv.read(stored(version, 64, 4, 64), config_of(version), module="m")
    small = dataclasses.replace(tensor, scheme=dataclasses.replace(tensor.scheme, group_size=16))
    with pytest.raises(InexactConversion, match="group_size: needs 32, 64 or at least 128, got 16"):
        awq_gemv.write(small, config)


@pytest.mark.parametrize(
    ("version", "k", "n", "line"),
    [
        ("gemv", 60, 4, "K: needs a multiple of 8, got 60"),
        ("gemv", 72, 4, "K: needs a multiple of group_size=64, got 72"),
        ("gemv_fast", 96, 4, "K: needs a multiple of 64, got 96"),
        ("llm-awq", 64, 6, "N: needs a multiple of 4, got 6"),
    ],
)
def test_shapes_without_a_place_are_refused(version: str, k: int, n: int, line: str) -> None:
    """K and N have the divisors of their layout; the message has the side, the divisor and the number."""
    with pytest.raises(TensorMismatch, match=line):
        awq_gemv.read(stored(version, 64, 4, 64), config_of(version), module="m", k=k, n=n)


@every_layout
def test_every_mismatch_is_told_at_once(version: str) -> None:
    """A cut file names all of its tensors with both numbers."""
    tensors = stored(version, 128, 8, 64)
    points = next(name for name in tensors if "zeros" in name)
    cut = {"qweight": tensors["qweight"][:1], "scales": tensors["scales"][:1], points: tensors[points][:1]}
    with pytest.raises(TensorMismatch, match=r"cannot load m: tensors do not match") as caught:
        awq_gemv.read(cut | {"bias": torch.zeros(7)}, config_of(version), module="m", k=128, n=8)
    for name in ("qweight", "scales", points, "bias"):
        assert f"  {name:<14} " in str(caught.value)


def test_words_of_another_width_are_refused() -> None:
    """GEMV has words of 32 bits, the other two of 16; pack_dtype in the settings has to agree."""
    tensors = stored("gemv_fast", 64, 4, 64)
    wide = tensors | {"qweight": tensors["qweight"].to(torch.int32)}
    with pytest.raises(TensorMismatch, match=r"qweight +dtype: needs int16, got int32"):
        awq_gemv.read(wide, config_of("gemv_fast"), module="m")
    assert config_of("gemv_fast").pack_dtype == "int16"
    with pytest.raises(ConfigError, match="pack_dtype: needs int16, got 'int32'"):
        config_of("llm-awq", pack_dtype="int32")


def test_llm_awq_is_known_by_its_backend_and_its_name() -> None:
    """Backend llm-awq gives the format; its zero points are scaled_zeros, with the values of GEMV_FAST."""
    config = config_of("llm-awq")
    assert config.format is FORMAT.LLM_AWQ
    tensors = stored("llm-awq", 128, 4, 64)
    tensor = awq_gemv.read(tensors, config, module="m")
    renamed = {"qzeros" if name == "scaled_zeros" else name: t for name, t in tensors.items()}
    same = awq_gemv.read(renamed, config_of("gemv_fast"), module="m")
    assert torch.equal(tensor.decoded(), same.decoded())
    with pytest.raises(TensorMismatch, match=r"scaled_zeros +tensor: needs one, got none"):
        awq_gemv.read(renamed, config, module="m")


@every_layout
def test_zero_points_under_two_names_are_refused(version: str) -> None:
    """Both names in one module contradict each other; none of them is chosen silently."""
    tensors = stored(version, 64, 4, 64)
    points, other = ("scaled_zeros", "qzeros") if version == "llm-awq" else ("qzeros", "scaled_zeros")
    both = tensors | {other: tensors[points].clone()}
    with pytest.raises(TensorMismatch, match=rf"{other} +tensor: needs none beside {points}, got both"):
        awq_gemv.read(both, config_of(version), module="m")
    assert {points, other} <= set(find(config_of(version).method, config_of(version).format).suffixes)


@every_layout
def test_a_filled_padding_is_told_and_kept(version: str) -> None:
    """Values behind the last group change no weight: a note counts them, the stored tensor keeps them."""
    tensors = stored(version, 128, 4, 64)
    clean = awq_gemv.read(tensors, config_of(version), module="m")
    filled = {name: t.clone() for name, t in tensors.items()}
    filled["scales"].view(-1)[-1] = 3
    tensor = awq_gemv.read(filled, config_of(version), module="m")
    assert "1 values behind the last group are not 0" in tensor.notes[0]
    assert torch.equal(tensor.decoded(), clean.decoded())
    assert tensor.source["scales"].view(-1)[-1] == 3
    assert awq_gemv.write(tensor, config_of(version))["scales"].view(-1)[-1] == 0


@every_layout
def test_floats_that_are_not_finite_are_refused(version: str) -> None:
    """NaN or infinity among scales, stored products or bias is named and counted."""
    tensors = stored(version, 64, 4, 64)
    names = [name for name, t in tensors.items() if t.is_floating_point()]
    for name in names:
        broken = tensors[name].clone()
        broken.view(-1)[0] = float("nan")
        with pytest.raises(TensorMismatch, match=rf"{name} +values: needs finite ones, got 1 that are not"):
            awq_gemv.read(tensors | {name: broken}, config_of(version), module="m")
    with pytest.raises(TensorMismatch, match=r"bias +values: needs finite ones, got 4"):
        awq_gemv.read(tensors | {"bias": torch.full((4,), float("inf"))}, config_of(version), module="m")


@every_layout
def test_symmetry_is_read_from_what_is_stored(version: str) -> None:
    """zero_point false with zero points of 8 is symmetric; others decide against the settings, and a note says so."""
    claimed = config_of(version, zero_point=False)
    odd = awq_gemv.read(stored(version, 64, 4, 64), claimed, module="m")
    assert not odd.scheme.sym
    assert "the settings say symmetric" in odd.notes[0]
    even = dataclasses.replace(odd, zeros=torch.full_like(odd.zeros, 8), offsets=None)
    again = awq_gemv.read(awq_gemv.write(even, claimed), claimed, module="m")
    assert again.scheme.sym
    assert again.notes == ()


# ---- between the layouts


def moved(tensor: QuantTensor, version: str, *, force: bool = False) -> QuantTensor:
    """Write a tensor in a layout and read it again."""
    config = config_of(version) if version in ROWS else settings(quant_method="awq", version="gemm", group_size=64)
    row = find(config.method, config.format)
    found: QuantTensor = row.read()(row.write()(tensor, config, force=force), config, module="m")
    return found


def exact(version: str = "gemv") -> QuantTensor:
    """Return a weight whose products of scale and zero point fp16 holds: scales are powers of two."""
    tensor = awq_gemv.read(stored("gemv", 128, 8, 64), config_of("gemv"), module="m")
    scales = 2.0 ** torch.randint(-9, -3, tensor.scales.shape, generator=torch.Generator().manual_seed(0))
    return moved(dataclasses.replace(tensor, scales=scales.half()), version)


@pytest.mark.parametrize("path", [("gemm", "gemv"), ("gemv", "gemv_fast", "gemm"), ("llm-awq", "gemv_fast", "gemv")])
def test_layouts_convert_into_each_other(path: tuple[str, ...]) -> None:
    """Where no product is rounded, every way between the layouts and back keeps each weight and each stored bit."""
    start = exact(path[0])
    tensor = start
    for version in (*path, *path[-2::-1]):
        tensor = moved(tensor, version)
        assert torch.equal(tensor.decoded(), start.decoded())
    assert all(torch.equal(tensor.source[name], start.source[name]) for name in start.source)
    assert torch.equal(tensor.packed()["qweight"], start.packed()["qweight"])


def test_a_rounded_product_is_refused_unless_forced() -> None:
    """Gemv -> gemv_fast rounds scale * zero to fp16; forced, the way back finds the very zero points again."""
    tensor = awq_gemv.read(stored("gemv", 128, 8, 64), config_of("gemv"), module="m")
    with pytest.raises(InexactConversion, match=r"cannot store scale \* zero in float16: needs"):
        moved(tensor, "gemv_fast")
    fast = moved(tensor, "gemv_fast", force=True)
    assert not torch.equal(fast.decoded(), tensor.decoded())
    with pytest.raises(InexactConversion, match=r"cannot take integer zero points: .* that are rounded"):
        moved(fast, "gemm")
    back = moved(fast, "gemv", force=True)
    assert torch.equal(back.zeros, tensor.zeros)
    assert torch.equal(back.decoded(), tensor.decoded())


def test_offsets_that_are_no_zero_points_stay_floats() -> None:
    """An offset off any multiple of its scale is no zero point, forced or not."""
    fast = exact("gemv_fast")
    assert fast.offsets is not None
    odd = dataclasses.replace(fast, offsets=fast.offsets + fast.scales * 0.5)
    for force in (False, True):
        with pytest.raises(InexactConversion, match="cannot take integer zero points"):
            moved(odd, "gemm", force=force)
