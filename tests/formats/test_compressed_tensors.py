"""compressed-tensors: groups and targets of its settings, and packed integers as its files hold them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import ConfigError, TensorMismatch, UnknownFormat
from quantfarm.formats import pack_quantized
from quantfarm.formats.config import QuantConfig, parse
from quantfarm.formats.table import find

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
NVFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}


def said(form: str, *groups: tuple[list[str], dict[str, Any]], **more: Any) -> QuantConfig:
    """Return the parsed settings of groups of (targets, weights)."""
    listed = {f"group_{i}": {"targets": targets, "weights": w} for i, (targets, w) in enumerate(groups)}
    raw = {"quant_method": "compressed-tensors", "format": form, "config_groups": listed, "ignore": ["lm_head"]}
    return parse(raw | more, source="config.json")


@settings(max_examples=40, deadline=None)
@given(data=st.data(), bits=st.sampled_from([4, 8]), sym=st.booleans())
def test_packed_integers_decode_by_the_letter_and_come_back(data: st.DataObject, bits: int, sym: bool) -> None:
    """Any words, odd tails, groups, zero points and orders: W = (q - z) s by a plain loop, and the same bytes back."""
    n, k = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 40))
    size = data.draw(st.sampled_from([-1, 3, 16]))
    groups = 1 if size == -1 else -(-k // size)
    source = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))

    def words(*shape: int) -> torch.Tensor:
        return torch.randint(-(1 << 31), 1 << 31, shape, generator=source, dtype=torch.int64).to(torch.int32)

    tensors = {
        "weight_packed": words(n, -(-k * bits // 32)),
        "weight_scale": torch.rand(n, groups, generator=source) + 0.5,
        "weight_shape": torch.tensor([n, k]),
    }
    if not sym:
        tensors["weight_zero_point"] = words(-(-n * bits // 32), groups)
    ordered = size != -1 and data.draw(st.booleans())
    if ordered:
        tensors["weight_g_idx"] = torch.randint(0, groups, (k,), generator=source).to(torch.int32)
    weights = INT4 | {"num_bits": bits, "group_size": size, "symmetric": sym, "actorder": "group" if ordered else None}
    weights["strategy"] = "channel" if size == -1 else "group"
    config = said("pack-quantized", (["Linear"], weights))
    weight = find(config.method, config.format, config.dialect).read()(tensors, config, module="m", k=k, n=n)

    def field(row: torch.Tensor, i: int) -> int:
        return int(row[i * bits // 32]) >> (i * bits % 32) & ((1 << bits) - 1)

    decoded = weight.decoded()
    for row in range(n):
        for column in range(k):
            group = int(tensors["weight_g_idx"][column]) if ordered else (0 if size == -1 else column // size)
            zero = 1 << (bits - 1) if sym else field(tensors["weight_zero_point"][:, group], row)
            expected = (field(tensors["weight_packed"][row], column) - zero) * tensors["weight_scale"][row, group]
            assert decoded[row, column] == expected
    back = dict(weight.source) | dict(weight.packed())
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)
    written = pack_quantized.write(weight, config)
    assert torch.equal(pack_quantized.read(written, config, module="m", k=k, n=n).decoded(), decoded)


def test_groups_become_settings_and_rules() -> None:
    """The class is the scheme of the whole, names and patterns are rules, what is ignored stays dense."""
    config = said(
        "pack-quantized",
        (["Linear"], INT4),
        (["re:.*down_proj$"], INT4 | {"num_bits": 8, "strategy": "channel", "group_size": None}),
        (["model.layers.1.mlp.down_proj"], INT4 | {"symmetric": False}),
    )
    assert (config.method, config.format, config.dialect) == (METHOD.GPTQ, FORMAT.GPTQ_V2, "compressed-tensors")
    found = {
        name: config.for_module(f"model.layers.{name}") for name in ("0.q_proj", "0.mlp.down_proj", "1.mlp.down_proj")
    }
    assert [(c.bits, c.group_size, c.sym) for c in found.values() if c] == [
        (4, 32, True),
        (8, -1, True),
        (4, 32, False),
    ]
    assert config.for_module("lm_head") is None
    assert parse(config.as_settings(), source="again").facts() == config.facts()


def test_modules_that_no_pattern_names_stay_dense() -> None:
    """Without a group for the class, only the modules that a target names are packed."""
    config = said("pack-quantized", (["re:.*mlp.*"], INT4))
    assert config.for_module("model.layers.0.mlp.up_proj") is not None
    assert config.for_module("model.layers.0.self_attn.q_proj") is None


def test_float_groups_share_one_method() -> None:
    """FP8 and NVFP4 in one file are one method with two formats; the directions of the scales are this dialect's."""
    config = parse(
        {
            "quant_method": "compressed-tensors",
            "format": "mixed-precision",
            "config_groups": {
                "a": {"targets": ["Linear"], "weights": FP8, "format": "float-quantized"},
                "b": {"targets": ["re:.*mlp.*"], "weights": NVFP4, "format": "nvfp4-pack-quantized"},
            },
            "kv_cache_scheme": {"num_bits": 8},
        },
        source="config.json",
    )
    assert config.format is FORMAT.FP8
    inner = config.for_module("model.layers.0.mlp.up_proj")
    assert inner is not None
    assert (inner.format, inner.bits, inner.group_size) == (FORMAT.NVFP4, 4, 16)
    assert config.details == {"weight_scale_semantics": "multiply", "weight_global_scale_semantics": "divide"}
    assert any("kv_cache_scheme is not used" in note for note in config.notes)


@pytest.mark.parametrize(
    ("form", "weights", "more", "message"),
    [
        ("int-quantized", INT4 | {"num_bits": 8, "strategy": "channel"}, {}, "int-quantized: int8, strategy channel"),
        ("marlin-24", INT4, {}, "marlin-24"),
        ("pack-quantized", INT4 | {"num_bits": 3}, {}, "int3"),
        ("nvfp4-pack-quantized", NVFP4 | {"group_size": 32}, {}, "group_size 32"),
        ("pack-quantized", INT4, {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
        ("pack-quantized", INT4, {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
    ],
)
def test_what_nothing_reads_is_refused_by_name(
    form: str, weights: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    """Formats, widths, sparsity and transforms that have no reader are named in the refusal."""
    with pytest.raises(UnknownFormat, match=message):
        said(form, (["Linear"], weights), **more)


def test_groups_that_contradict_are_refused() -> None:
    """Two schemes for one class, no weights at all, or integers beside floats."""
    with pytest.raises(ConfigError, match="describe the same class"):
        said("pack-quantized", (["Linear"], INT4), (["Linear"], INT4 | {"group_size": 64}))
    with pytest.raises(ConfigError, match="no group of config_groups has weights"):
        said("pack-quantized")


def test_bad_packed_tensors_name_every_problem() -> None:
    """Shapes that fit neither the settings nor each other are all told at once."""
    config = said("pack-quantized", (["Linear"], INT4 | {"symmetric": False}))
    tensors = {
        "weight_packed": torch.zeros(8, 9, dtype=torch.int32),
        "weight_scale": torch.ones(8, 3),
        "weight_shape": torch.tensor([8, 70]),
    }
    with pytest.raises(TensorMismatch) as caught:
        pack_quantized.read(tensors, config, module="m", k=64, n=8)
    for part in ("8 (K=64, 4 bits), got 9", "2 (K=64, group_size=32), got 3", "got [8, 70]", "weight_zero_point"):
        assert part in str(caught.value)
