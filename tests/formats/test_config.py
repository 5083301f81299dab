"""Every dialect of the settings gives one effective configuration, or an error that names keys and values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import ConfigError, UnknownFormat
from quantfarm.formats.config import QuantConfig, ZeroRule, find_settings, parse

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "gemm"}
MODERN = {"meta": {"quantizer": ["gptqmodel:7.7.0"]}}


def read(**settings: Any) -> QuantConfig:
    """Parse settings under a fixed file name."""
    return parse(settings, source="quantize_config.json")


@pytest.mark.parametrize(
    "left_out", [{"desc_act"}, {"checkpoint_format"}, {"desc_act", "checkpoint_format"}, {"desc_act=null"}]
)
def test_r08_missing_keys_take_one_default_for_every_layer(left_out: set[str]) -> None:
    """Case R08: desc_act and the format may be absent or null; dense and expert layers get the same facts."""
    settings: dict[str, Any] = {"quant_method": "gptq", "checkpoint_format": "gptq", "bits": 4, "group_size": 128}
    settings["desc_act"] = None if "desc_act=null" in left_out else False
    config = read(**{key: value for key, value in settings.items() if key not in left_out})
    dense = config.for_module("model.layers.0.mlp.up_proj")
    expert = config.for_module("model.layers.0.mlp.experts.3.up_proj")
    assert dense is not None
    assert dense == expert
    assert (dense.desc_act, dense.format, dense.sym) == (False, FORMAT.GPTQ, True)
    assert all(value is not None for value in dense.facts().values())
    assert sum("sym=true" in note for note in config.notes) == 1


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", {"model_type": "llama", "quantization_config": AWQ}),
        ("quantize_config.json", AWQ),
        ("quant_config.json", {key: value for key, value in AWQ.items() if key != "quant_method"}),
    ],
)
def test_r10_settings_are_found_in_each_of_the_three_places(tmp_path: Path, file: str, content: dict[str, Any]) -> None:
    """Case R10: one place is enough, and all three give the same effective settings, AWQ keys included."""
    (tmp_path / file).write_text(json.dumps(content))
    settings, source = find_settings(tmp_path)
    config = parse(settings, source=source)
    assert source.startswith(file)
    assert config.facts() == read(**AWQ).facts()
    assert (config.method, config.format, config.bits, config.group_size, config.sym) == (
        METHOD.AWQ,
        FORMAT.GEMM,
        4,
        128,
        False,
    )


def test_r10_a_folder_without_settings_names_the_three_places(tmp_path: Path) -> None:
    """Case R10: the error says that the checkpoint is not quantized and where was looked."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a quantized checkpoint") as caught:
        find_settings(tmp_path)
    for place in (
        "quantize_config.json: no such file",
        "quant_config.json: no such file",
        "no key quantization_config",
    ):
        assert place in str(caught.value)


def test_files_that_disagree_are_refused_with_both_names(tmp_path: Path) -> None:
    """Two files may both state a fact only when they state the same."""
    (tmp_path / "quantize_config.json").write_text(json.dumps(GPTQ))
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": GPTQ | {"group_size": 64}}))
    with pytest.raises(ConfigError, match="disagree on group_size") as caught:
        find_settings(tmp_path)
    assert "quantize_config.json: group_size is 128" in str(caught.value)
    assert "config.json (quantization_config): group_size is 64" in str(caught.value)


def test_a_later_file_adds_what_the_first_leaves_out(tmp_path: Path) -> None:
    """A rule that only config.json states is not lost, and other spellings of one fact agree."""
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": "4", "group_size": 128, "sym": True}))
    nested = {**GPTQ, "dynamic": {"-:.*gate": {}}, "modules_to_not_convert": None}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": nested}))
    settings, source = find_settings(tmp_path)
    config = parse(settings, source=source)
    assert config.for_module("mlp.gate") is None
    assert source == "quantize_config.json and config.json (quantization_config)"


def test_r11_modules_to_not_convert_match_whole_path_components() -> None:
    """Case R11: visual and lm_head stay dense; visualizer is another component and is replaced."""
    config = read(**AWQ, modules_to_not_convert=["visual", "lm_head"], lm_head=True)
    names = ("visual.blocks.0.qkv", "model.visual.blocks.0.qkv", "lm_head")
    assert [config.for_module(name) for name in names] == [None, None, None]
    assert config.for_module("model.visualizer.proj") == config
    assert config.for_module("model.layers.0.mlp.up_proj") == config
    gate = read(**AWQ, modules_to_not_convert=["mlp.gate"])
    assert gate.for_module("layers.0.mlp.gate") is None
    assert gate.for_module("layers.0.mlp.gate_proj") == gate
    assert gate.for_module("layers.0.mlp.up") == gate


def test_r13_fused_modules_take_the_rule_that_all_parts_have() -> None:
    """Case R13: rules written for q, k and v hold for the fused layer; a rule for one part refuses the fusion."""
    names = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
    every = read(**GPTQ, dynamic={rf".*{part}_proj": {"group_size": 32} for part in "qkv"})
    fused = every.for_fused(names)
    assert fused is not None
    assert fused.group_size == 32
    one = read(**GPTQ, dynamic={"+:.*k_proj": {"group_size": 32}})
    with pytest.raises(ConfigError, match="cannot fuse") as caught:
        one.for_fused(names)
    assert "k_proj: bits 4, group_size 32" in str(caught.value)
    assert "q_proj: bits 4, group_size 128" in str(caught.value)
    skipped = read(**GPTQ, dynamic={".*_proj": {"bits": 8}, "-:.*v_proj": {}})
    with pytest.raises(ConfigError, match="v_proj: dense"):
        skipped.for_fused(names)


def test_an_excluded_module_stays_dense() -> None:
    """Case R14: a negative rule leaves exactly the modules dense that it matches from the start of the name."""
    config = read(**GPTQ, dynamic={r"-:.*\.1\..*": {}})
    assert config.for_module("m.0.fc") == config
    assert config.for_module("m.1.fc") is None


def test_excludes_come_first_then_the_first_match_wins() -> None:
    """The order of dynamic rules: any exclude, then the first include; patterns are anchored at the start."""
    dynamic = {"layers.1": {"bits": 8}, r"+:layers\.\d": {"bits": 2}, r"-:layers\.3": {}, "1": {"bits": 3}}
    config = read(**GPTQ, dynamic=dynamic)
    found = {name: config.for_module(name) for name in ("layers.1", "layers.2", "layers.3", "other.1")}
    assert {name: part.bits if part else None for name, part in found.items()} == {
        "layers.1": 8,
        "layers.2": 2,
        "layers.3": None,
        "other.1": 4,
    }


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"method": "awq"}, "method and quant_method contradict"),
        ({"format": "gptq", "checkpoint_format": "gptq_v2"}, "format and checkpoint_format contradict"),
        ({"bits": None}, "bits or w_bit: needs an integer, got None"),
        ({"bits": "four"}, "bits: needs an integer, got 'four'"),
        ({"bits": 5}, "bits: needs one of 2, 3, 4, 8 for gptq, got 5"),
        ({"group_size": 0}, "group_size: needs -1 or a positive integer, got 0"),
        ({"desc_act": 1}, "desc_act: needs true or false, got 1"),
        ({"pack_dtype": "torch.int16"}, "pack_dtype: needs int32, got 'int16'"),
        ({"is_marlin_format": True}, "is_marlin_format: needs false, got true"),
        ({"dynamic": {"(": {}}}, "a pattern is no regular expression"),
        ({"dynamic": {"a": 4}}, "dynamic\\['a'\\]: needs an object"),
        ({"dynamic": {"a": {"method": "awq"}}}, "one method per checkpoint"),
        ({"modules_to_not_convert": 3}, "a list of module names"),
        ({"zeros_rule": "guess"}, "zeros_rule: needs per_field or word_wise"),
        ({"meta": 3}, "meta: needs an object"),
    ],
)
def test_unusable_values_name_key_and_values(change: dict[str, Any], text: str) -> None:
    """A wrong, missing or contradicting value is refused with the key, the need and what was found."""
    with pytest.raises(ConfigError, match=text) as caught:
        read(**GPTQ | change)
    assert "quantize_config.json" in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        GPTQ | {"quant_method": "unheard"},
        AWQ | {"version": "gemm_v9"},
        AWQ | {"version": "bitblas"},
        GPTQ | {"format": "bitblas"},
        {"method": "nf12", "format": "nf12", "bits": 12, "group_size": -1},
        GPTQ | {"format": "gemm"},
    ],
)
def test_what_has_no_reader_lists_what_is_read(settings: dict[str, Any]) -> None:
    """Unknown methods and formats are refused, never rewritten, and the error lists the readable ones."""
    with pytest.raises(UnknownFormat) as caught:
        read(**settings)
    assert "this version reads gptq: gptq, gptq_v2" in str(caught.value)
    assert "this version reads awq: gemm" in str(caught.value)


def test_awq_states_its_zero_points_the_other_way_round() -> None:
    """zero_point is the opposite of sym; both may stand together when they say the same."""
    assert read(**AWQ).sym is False
    assert read(quant_method="awq", bits=4, group_size=128).sym is False
    assert read(**AWQ | {"zero_point": False, "sym": True}).sym is True
    with pytest.raises(ConfigError, match="sym and zero_point contradict"):
        read(**AWQ | {"sym": True})
    with pytest.raises(ConfigError, match="desc_act: needs false for awq"):
        read(**AWQ | {"desc_act": True})


def test_act_order_with_one_group_is_none() -> None:
    """With group_size -1 there is one group, so the order of activations has no meaning."""
    assert read(**GPTQ | {"desc_act": True, "group_size": -1}).desc_act is False


def test_foreign_keys_give_one_summary() -> None:
    """Keys of other programs are ignored with one sentence; the quantizer's own keys are not even named."""
    config = read(**GPTQ, **MODERN, damp_percent=0.1, offload_to_disk=True, use_fancy=1, exllama_config={})
    assert config.ignored == ("exllama_config", "use_fancy")
    assert sum("exllama_config, use_fancy" in note for note in config.notes) == 1


@pytest.mark.parametrize(
    ("quantizer", "rule", "trusted"),
    [
        (["gptqmodel:7.7.0"], ZeroRule.WORD_WISE, True),
        ("gptqmodel:0.9.0", ZeroRule.WORD_WISE, True),
        (["gptqmodel:0.8.9"], ZeroRule.WORD_WISE, False),
        (["autogptq:0.7.1"], ZeroRule.PER_FIELD, False),
        (None, ZeroRule.PER_FIELD, False),
        (["other:?", "gptqmodel:?"], ZeroRule.WORD_WISE, False),
    ],
)
def test_the_producer_decides_on_zero_points(quantizer: Any, rule: ZeroRule, *, trusted: bool) -> None:
    """meta.quantizer picks the borrow rule and tells whether asymmetric gptq is reliable; a setting forces the rule."""
    config = read(**GPTQ | {"sym": False}, meta={"quantizer": quantizer})
    assert config.zeros_rule is rule
    assert any("may be off by one" in note for note in config.notes) is not trusted
    assert parse({**GPTQ, **MODERN}, source="x", zeros_rule="per_field").zeros_rule is ZeroRule.PER_FIELD
    assert read(**GPTQ, zeros_rule="word_wise").zeros_rule is ZeroRule.WORD_WISE


@given(
    base=st.sampled_from(
        [GPTQ, AWQ, GPTQ | MODERN, GPTQ | {"checkpoint_format": "gptq_v2", "zeros_rule": "word_wise"}]
    ),
    bits=st.sampled_from([4, "4", 4.0]),
    size=st.sampled_from([-1, 32, 64, 128, "128"]),
    dynamic=st.sampled_from([{}, {"-:a": {}, "b": {"bits": 4, "format": "gptq"}}, {"+:c.*": {"sym": True}}]),
    dense=st.lists(st.sampled_from(["visual", "lm_head"]), unique=True),
)
def test_written_settings_read_back_the_same(
    base: dict[str, Any], bits: Any, size: Any, dynamic: dict[str, Any], dense: list[str]
) -> None:
    """as_settings is a fixed point: what it writes parses to the same facts without any default."""
    if base["quant_method"] == "awq":
        dynamic = {key: value for key, value in dynamic.items() if "format" not in value}
    names = {"w_bit": bits, "q_group_size": size} if base is AWQ else {"bits": bits, "group_size": size}
    config = read(**base | names, dynamic=dynamic, modules_to_not_convert=dense)
    again = parse(json.loads(json.dumps(config.as_settings())), source="again")
    assert again.facts() == config.facts()
    assert again.defaults_used == ()
    assert again.ignored == ()
