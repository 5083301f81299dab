"""bitsandbytes: stored tensors against the package itself, the reference and real files; settings; what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from formats.makers import DATA, K_PROJ
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st
from safetensors.torch import load_file

from quantfarm import reference
from quantfarm.errors import ConfigError, InexactConversion, TensorMismatch
from quantfarm.formats.bitsandbytes import TABLES, read, write
from quantfarm.formats.bitsandbytes_packer import from_floats, nested_table
from quantfarm.formats.config import QuantConfig, find_settings, parse
from quantfarm.formats.facts import TensorFact, modules_of
from quantfarm.formats.packed import packed_modules
from quantfarm.formats.packing import pack_high_first, unpack_high_first
from quantfarm.formats.settings.bitsandbytes import BLOCK_SIZES, facts
from quantfarm.formats.table import find
from quantfarm.formats.weights.base import Weight
from quantfarm.formats.weights.table_codes import TableCodes

UPSTREAM = "weight.quant_state.bitsandbytes__"


def config(kind: str = "nf4", block: int = 64, **changes: Any) -> QuantConfig:
    """Return parsed settings in the peer's spelling."""
    raw = {"method": "bitsandbytes", "bits": 8 if kind == "int8" else 4, "format": kind, "block_size": block}
    return parse(raw | changes, source="quantize_config.json")


def stored(weight: Weight) -> dict[str, torch.Tensor]:
    """Return the tensors of a packed weight."""
    return write(weight, config())


def underscored(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Spell upstream's names as the peer does."""
    names = {name: name.partition(".bitsandbytes")[0].replace(".", "_") for name in tensors}
    return {names[name].replace("SCB", "weight_scb"): tensor for name, tensor in tensors.items()}


def module_of(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of k_proj of a real file, by suffix."""
    tensors = load_file(path)
    row = find(config().method, config().format)
    names = modules_of(tensors, row.markers, row.suffixes)[K_PROJ]
    return {suffix: tensors[name] for suffix, name in names.items()}


@pytest.mark.parametrize(
    ("folder", "file", "expected"),
    [
        ("bnb-nf4-b64", "model", ("expected", "layers.0.self_attn.k_proj.weight")),
        ("bnb-fp4-b64", "k_proj", ("k_proj", "expected")),
        ("bnb-int8", "model", ("expected", "layers.0.self_attn.k_proj.weight")),
    ],
)
def test_real_files_decode_to_the_last_bit(folder: str, file: str, expected: tuple[str, str]) -> None:
    """Files that transformers wrote give the writer's own fp32 weight, and come back as they were."""
    tensors = module_of(DATA / folder / f"{file}.safetensors")
    kind = folder.split("-")[1]
    weight = read(tensors, config(kind), module="m", k=576, n=192)
    assert torch.equal(weight.decoded(), load_file(DATA / folder / f"{expected[0]}.safetensors")[expected[1]])
    assert weight.code_type == kind
    assert write(weight, config(kind)).keys() == tensors.keys()


@budget(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 90)),
    kind=st.sampled_from(["nf4", "fp4"]),
    block=st.sampled_from(BLOCK_SIZES),
    nested=st.booleans(),
    spelling=st.sampled_from([dict, underscored]),
)
def test_table_codes_mean_what_the_reference_says(
    size: tuple[int, int], kind: str, block: int, nested: bool, spelling: Any
) -> None:
    """Odd counts, partial last blocks, blocks across rows, both levels, both spellings: equal to the closed form."""
    n, k = size
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(n + k))
    tensors = spelling(stored(from_floats(w, config(kind, block), nested=nested)))
    weight = read(tensors, config(kind, block), module="m", k=k, n=n)
    exact = reference.decode(
        tensors, method="bitsandbytes", format="bitsandbytes", bits=4, group_size=block, n=n, k=k, code_type=kind
    )
    decoded = weight.decoded()
    assert decoded.shape == (n, k)
    assert bool((decoded.double() - torch.from_numpy(exact)).abs().max() <= 3e-7 * decoded.abs().max())
    cut = k % n
    assert torch.equal(torch.cat([weight.decoded(0, cut), weight.decoded(cut)]), decoded)
    again = write(weight, config(kind, block))
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("block", [32, 64, 256])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(8, 64), (5, 51), (1, 1), (130, 33)], ids=str)
def test_the_package_packs_and_decodes_the_same(kind: str, block: int, nested: bool, shape: tuple[int, int]) -> None:
    """What bitsandbytes stores is read to its own values, and our rounding gives its codes, absmax and tables."""
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    w = torch.randn(shape, generator=torch.Generator().manual_seed(block))
    packed, state = functional.quantize_4bit(w, blocksize=block, quant_type=kind, compress_statistics=nested)
    tensors = {"weight": packed} | {f"weight.{name}": t for name, t in state.as_dict(packed=True).items()}
    weight = read(tensors, config(kind, block), module="m")
    assert isinstance(weight, TableCodes)
    assert (weight.n, weight.k) == shape
    absmax = weight.absmax(0, weight.stored_absmax.numel())
    flat = torch.ops.bitsandbytes.dequantize_4bit(packed, absmax, block, kind, (packed.numel() * 2,), torch.float32)
    assert torch.equal(weight.decoded().reshape(-1), flat.reshape(-1)[: w.numel()])
    ours = stored(from_floats(w, config(kind, block), nested=nested))
    assert ours.keys() == tensors.keys()
    mine, theirs = (unpack_high_first(codes.view(-1))[: w.numel()] for codes in (ours["weight"], packed))
    assert (mine != theirs).float().mean() < 0.01
    if nested:
        outer = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
        assert torch.allclose(absmax, outer, rtol=1e-6)
        assert torch.equal(nested_table(), state.state2.code)
    else:
        assert torch.equal(ours["weight.absmax"], state.absmax)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_tables_are_those_of_the_package(kind: str) -> None:
    """The sixteen values are bit for bit those that the package stores."""
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    _, state = functional.quantize_4bit(torch.ones(1, 16), blocksize=64, quant_type=kind)
    assert torch.equal(torch.tensor(TABLES[kind], dtype=torch.float32), state.code)


@pytest.mark.parametrize("shape", [(4, 32), (3, 17), (1, 1)], ids=str)
def test_eight_bit_rows_follow_the_package(shape: tuple[int, int]) -> None:
    """int8: w = q * scale / 127; codes and scales are the package's, values within its own rounding."""
    functional = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")
    w = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    codes, scales, _ = functional.int8_vectorwise_quant(w.half())
    weight = read({"weight": codes, "weight_scb": scales}, config("int8"), module="m")
    theirs = functional.int8_vectorwise_dequant(codes, scales)
    assert bool(((weight.decoded() - theirs).abs() <= 3e-7 * theirs.abs().max()).all())
    assert torch.equal(weight.decoded(), codes.float() * scales[:, None] / 127)
    ours = stored(from_floats(w.half(), config("int8")))
    assert torch.equal(ours["SCB"], scales)
    assert int((ours["weight"].int() - codes.int()).abs().max()) <= 1


@given(codes=st.lists(st.integers(0, 15), max_size=50))
def test_nibbles_go_high_first(codes: list[int]) -> None:
    """Element 2i lies in the high nibble; packing and unpacking are inverse, an odd count is padded with code 0."""
    given_codes = torch.tensor(codes, dtype=torch.uint8)
    packed = pack_high_first(given_codes)
    assert torch.equal(unpack_high_first(packed)[: len(codes)], given_codes)
    assert packed.numel() == -(-len(codes) // 2)
    assert not codes or int(packed[0]) >> 4 == codes[0]


@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32, torch.int8], ids=str)
def test_codes_may_be_stored_in_another_dtype(storage: torch.dtype) -> None:
    """bnb_4bit_quant_storage only renames the bytes; they come back in their dtype."""
    weight = from_floats(torch.randn(8, 64), config())
    tensors = stored(weight)
    tensors["weight"] = tensors["weight"].view(-1).view(storage).unsqueeze(1)
    again = read(tensors, config(), module="m", k=64, n=8)
    assert torch.equal(again.decoded(), weight.decoded())
    assert write(again, config())["weight"].dtype is storage


def test_rounding_is_to_the_nearest_code() -> None:
    """No value of the table is nearer than the chosen one, and weights that are not finite are refused."""
    w = torch.randn(16, 64)
    for kind, table in TABLES.items():
        weight = from_floats(w, config(kind), bias=torch.ones(16))
        scaled = (w.view(-1, 64) / w.view(-1, 64).abs().amax(1, keepdim=True)).view(-1, 1)
        nearest = (scaled - torch.tensor(table)).abs().amin(1)
        off = (weight.decoded().view(-1, 64) / w.view(-1, 64).abs().amax(1, keepdim=True)).view(-1) - scaled.view(-1)
        assert bool((off.abs() <= nearest + 1e-6).all())
        assert weight.bias is not None
    with pytest.raises(InexactConversion, match="got 1 values that are not finite"):
        from_floats(torch.tensor([[1.0, float("nan")]]), config())


TRANSFORMERS = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


@pytest.mark.parametrize("folder", ["bnb-nf4-b64", "bnb-int8"])
def test_settings_of_real_files_survive_writing(folder: str) -> None:
    """Transformers' keys give width and type of code, none is reported as unknown, and they parse again to the same."""
    raw, source = find_settings(DATA / folder)
    found = parse(raw, source=source)
    assert (found.bits, found.code_type) == ((8, "int8") if "int8" in folder else (4, "nf4"))
    assert found.ignored == ()
    assert parse(found.as_settings(), source=source).facts() == found.facts()


def test_the_list_of_exceptions_replaces_the_usual_one() -> None:
    """llm_int8_skip_modules names what stays dense; with it the output head is packed unless listed."""
    found = parse(TRANSFORMERS | {"llm_int8_skip_modules": ["gate"]}, source="s")
    assert found.modules_to_not_convert == ("gate",)
    assert found.for_module("lm_head") is not None
    assert found.for_module("model.gate") is None
    assert parse(TRANSFORMERS, source="s").for_module("lm_head") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"load_in_8bit": True}, r"about the width\n.*load_in_4bit=true\n.*load_in_8bit=true"),
        ({"bits": 8}, r"about the width\n.*bits=8\n.*load_in_4bit=true"),
        ({"format": "fp4"}, r"about the type of code\n.*format=fp4\n.*bnb_4bit_quant_type=nf4"),
        ({"format": "int8"}, r"about the width\n.*load_in_4bit=true\n.*format=int8"),
        ({"compress_statistics": True, "bnb_4bit_use_double_quant": False}, "about nested statistics"),
        ({"block_size": 48}, "block_size: needs one of 32, 64"),
        ({"bnb_4bit_quant_type": "nf3"}, "bnb_4bit_quant_type: needs nf4 or fp4, got 'nf3'"),
        ({"llm_int8_skip_modules": 3}, "llm_int8_skip_modules: needs a list"),
        ({"load_in_4bit": False}, "needs a width"),
        ({"desc_act": True}, "desc_act: needs false"),
    ],
)
def test_contradictions_in_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    """Two keys that say different things, and values without a meaning, are named with both values."""
    with pytest.raises(ConfigError, match=message):
        parse(TRANSFORMERS | changes, source="config.json")


def test_tensors_decide_and_settings_that_disagree_are_named() -> None:
    """A layer of another type than the settings claim is read as it is stored, with a note."""
    weight = from_floats(torch.randn(4, 64), config("fp4"))
    again = read(stored(weight), config("nf4"), module="model.fc", k=64, n=4)
    assert again.notes == ("model.fc: the settings say nf4, the tensors are fp4; the tensors decide",)
    assert torch.equal(again.decoded(), weight.decoded())
    rows = read(stored(from_floats(torch.randn(4, 64), config("int8"))), config("nf4"), module="model.fc")
    assert "the tensors are int8" in rows.notes[0]


def _state(**changes: Any) -> torch.Tensor:
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [4, 64]} | changes
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": torch.zeros(100, 1, dtype=torch.uint8)}, r"weight +bytes: needs 128 \(N\*K=256\), got 100"),
        ({"weight.absmax": torch.zeros(3)}, r"weight.absmax +blocks: needs 4 .*got 3"),
        ({"weight.absmax": None}, r"weight_absmax +tensor"),
        (
            {"weight.quant_map": torch.tensor(TABLES["fp4"])},
            r"quant_map +code \d+: needs .* \(nf4\)",
        ),
        ({f"{UPSTREAM}nf4": _state(quant_type="fp4")}, "quant_type: needs nf4, got fp4"),
        ({f"{UPSTREAM}nf4": _state(shape=[64, 4])}, r"shape: needs \[4, 64\], got \[64, 4\]"),
        ({f"{UPSTREAM}nf4": _state(blocksize=48)}, "blocksize: needs one of"),
        ({f"{UPSTREAM}nf4": torch.tensor([1, 2, 3], dtype=torch.uint8)}, "bytes: needs a JSON object"),
        ({"weight.absmax": torch.zeros(4, dtype=torch.uint8)}, "nested_offset: needs a number"),
        ({"bias": torch.zeros(5)}, r"bias +entries: needs 4 \(N=4\), got 5"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    """Cut codes, missing or short scales, another table and a JSON object of another layer are named."""
    tensors = stored(from_floats(torch.randn(4, 64), config())) | changes
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(TensorMismatch, match=message):
        read(tensors, config(), module="m", k=64, n=4)


def test_eight_bit_rows_that_do_not_fit_are_refused() -> None:
    """A wrong dtype, short scales and a layout that only one device reads are named, all at once."""
    tensors = {"weight": torch.zeros(4, 8), "SCB": torch.zeros(3), "weight_format": torch.tensor(2)}
    with pytest.raises(TensorMismatch) as caught:
        read(tensors, config("int8"), module="m", k=8, n=4)
    for part in ("weight +dtype: needs int8", r"SCB +entries: needs 4", "weight_format +value: needs 0"):
        assert re.search(part, str(caught.value))


def test_headers_tell_rows_but_not_flat_shapes() -> None:
    """A header gives K and N of int8 rows; the shape of flat codes lies in the bytes of the JSON object."""
    rows = {"weight": TensorFact(dtype="I8", shape=(4, 8)), "SCB": TensorFact(dtype="F32", shape=(4,))}
    assert (facts(rows, config("int8")).k, facts(rows, config("int8")).n) == (8, 4)
    flat = {"weight": TensorFact(dtype="U8", shape=(16, 1)), f"{UPSTREAM}fp4": TensorFact(dtype="U8", shape=(80,))}
    assert (facts(flat, config()).n, facts(flat, config()).code_type) == (0, "fp4")


@pytest.mark.parametrize("name", ["bnb-nf4-b64", "bnb-int8"])
def test_scales_that_are_not_finite_are_refused(name: str) -> None:
    """A NaN among the scales of a real file stops the load and names the tensor, in either width."""
    settings, source = find_settings(DATA / name)
    config = parse(settings, source=source)
    stored = load_file(DATA / name / "model.safetensors")
    module, names = next(iter(packed_modules(stored, config).items()))
    tensors = {suffix: stored[full] for suffix, full in names.items()}
    suffix = "SCB" if "SCB" in tensors else "weight.absmax"
    tensors[suffix][3] = float("nan")
    with pytest.raises(TensorMismatch, match=rf"{suffix} .*needs finite ones, got 1 that are not"):
        find(config.method, config.format).read()(tensors, config, module=module)
