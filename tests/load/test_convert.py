"""convert: what is written, that it reads back within rounding, and that nothing is left half done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from load_cases import logits, stored, tiny
from safetensors.torch import load_file, save_file

import quantfarm
from quantfarm.errors import CheckpointError, ConfigError, InexactConversion, KernelRefused, UnknownFormat
from quantfarm.formats.config import find_settings, parse
from quantfarm.load.convert import convert
from quantfarm.runtime.linear import QuantLinear

IDS = torch.tensor([[1, 7, 150, 3]])


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the tiny dense model once, with files around it as a tokenizer leaves them."""
    folder = tiny(tmp_path_factory.mktemp("tiny") / "dense")
    for name in ("tokenizer.json", "tokenizer_config.json", "merges.txt"):
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"group_size": 32}, 0.2),
        ({"group_size": 32, "desc_act": True}, 0.2),
        ({"group_size": -1, "bits": 8}, 0.02),
        ({"group_size": 16, "bits": 3, "sym": False, "format": "gptq_v2"}, 0.4),
        ({"group_size": 16, "bits": 2, "format": "gptq_v2"}, 1.0),
        ({"group_size": 32, "format": "gemm", "sym": False}, 0.2),
        ({"group_size": 64}, 0.2),
        ({"group_size": 32, "format": "gptq_p", "bits": 5}, 0.1),
        ({"group_size": 32, "format": "gemv"}, 0.2),
        ({"format": "fp8"}, 0.1),
        ({"format": "fp8", "code_type": "float8_e5m2"}, 0.2),
        ({"format": "mxfp4"}, 0.4),
        ({"format": "nvfp4"}, 0.3),
        ({"format": "gguf"}, 0.3),
        ({"format": "gguf", "code_type": "q8_0"}, 0.02),
        ({"format": "gguf", "code_type": "q4_0"}, 0.3),
        ({"format": "bitsandbytes"}, 0.2),
        ({"format": "bitsandbytes", "code_type": "fp4"}, 0.4),
        ({"format": "bitsandbytes", "code_type": "int8"}, 0.05),
    ],
    ids=str,
)
def test_written_models_load_and_stay_close(dense: Path, tmp_path: Path, options: dict[str, Any], limit: float) -> None:
    """Every layout and width reads back; the logits differ by the quantization only."""
    from transformers import AutoModelForCausalLM

    report = convert(dense, tmp_path / "out", **options)
    model = quantfarm.load(tmp_path / "out", device="cpu", dtype=torch.float32)
    expected = logits(AutoModelForCausalLM.from_pretrained(dense), IDS)
    assert float((logits(model, IDS) - expected).norm() / expected.norm()) < limit
    quantized = {m.module_name for m in model.modules() if isinstance(m, QuantLinear)}
    assert quantized == set(report.quantized)
    assert len(report.quantized) + len(report.dense) == 7
    assert not any("lm_head" in name for name in report.quantized)


def test_files_around_the_weights_come_along(dense: Path, tmp_path: Path) -> None:
    """Tokenizer and generation files are copied, both settings agree, and every written file can be read by others."""
    convert(dense, tmp_path / "out", group_size=32)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"config.json", "quantize_config.json", "generation_config.json", "model.safetensors"}
    assert names >= {"tokenizer.json", "tokenizer_config.json", "merges.txt"}
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1
    settings, _ = find_settings(tmp_path / "out")
    config = parse(settings, source="test")
    assert (config.bits, config.group_size, config.sym, config.producer.split(":")[0]) == (4, 32, True, "quantfarm")
    nested = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert nested == json.loads((tmp_path / "out" / "quantize_config.json").read_text())


def test_shards_have_an_index(dense: Path, tmp_path: Path) -> None:
    """Above the size limit there are numbered files and an index, with the same tensors as in one file."""
    convert(dense, tmp_path / "one", group_size=32)
    convert(dense, tmp_path / "many", group_size=32, shard_bytes=20_000)
    assert stored(tmp_path / "one").keys() == stored(tmp_path / "many").keys()
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "many").glob("*.safetensors"))
    assert files == sorted(set(index["weight_map"].values()))
    assert files[0].endswith(f"-of-{len(files):05d}.safetensors")
    assert index["metadata"]["total_size"] == sum(
        t.numel() * t.element_size() for t in stored(tmp_path / "many").values()
    )


def test_short_groups_are_written_with_a_note(dense: Path, tmp_path: Path) -> None:
    """Where group_size does not divide K, gptq ends in a short group; a layout without such groups stays dense."""
    report = convert(dense, tmp_path / "gptq", group_size=64)
    assert any("short group (K = 96)" in note for note in report.notes)
    report = convert(dense, tmp_path / "awq", group_size=64, format="gemm")
    assert report.dense == ("model.layers.0.mlp.down_proj",)
    assert report.notes == ("model.layers.0.mlp.down_proj stays dense: K=96 is no multiple of group_size=64",)
    model = quantfarm.load(tmp_path / "awq", device="cpu")
    assert dict(model.quantfarm.counts)["dense"] == 2
    assert not any("decide" in note for note in model.quantfarm.notes)


def test_named_modules_stay_dense(dense: Path, tmp_path: Path) -> None:
    """modules_to_not_convert is honoured and written into the settings."""
    report = convert(dense, tmp_path / "out", group_size=32, modules_to_not_convert=("mlp",))
    assert all(".self_attn." in name for name in report.quantized)
    assert len(quantfarm.load(tmp_path / "out", device="cpu").quantfarm.dense) == 4


def test_used_targets_are_refused(dense: Path, tmp_path: Path) -> None:
    """A folder that holds anything is left alone; an empty one is filled."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(CheckpointError, match="not an empty folder"):
        convert(dense, tmp_path / "out", group_size=32)
    (tmp_path / "out" / "mine").unlink()
    convert(dense, tmp_path / "out", group_size=32)
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    """An error in the middle leaves neither a target nor a partial folder."""
    source = tiny(tmp_path / "in" / "dense")
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "out").mkdir()
    with pytest.raises(
        InexactConversion, match=r"1 values that are not finite \(layer model\.layers\.0\.mlp\.up_proj\)"
    ):
        convert(source, tmp_path / "out" / "target", group_size=32)
    assert list((tmp_path / "out").iterdir()) == []


def test_zero_points_of_zero_are_refused_in_v1(tmp_path: Path) -> None:
    """An asymmetric gptq tensor with a zero point of 0 is refused with gptq_v2 as the way out, unless it is forced."""
    source = tiny(tmp_path / "dense")
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"].abs_()
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InexactConversion, match=r"(?s)up_proj\).*gptq_v2"):
        convert(source, tmp_path / "v1", group_size=32, sym=False)
    convert(source, tmp_path / "v1", group_size=32, sym=False, force=True)
    convert(source, tmp_path / "v2", group_size=32, sym=False, format="gptq_v2")
    both = [quantfarm.load(tmp_path / name, device="cpu") for name in ("v1", "v2")]
    assert torch.equal(logits(both[0], IDS), logits(both[1], IDS))


def test_bad_requests_are_clear(dense: Path, tmp_path: Path) -> None:
    """A missing source, a format without writer and a bad width each say so before writing."""
    with pytest.raises(CheckpointError, match="got nothing"):
        convert(tmp_path / "none", tmp_path / "out")
    with pytest.raises(UnknownFormat, match="cannot write marlin"):
        convert(dense, tmp_path / "out", format="marlin")
    with pytest.raises(ConfigError, match="bits"):
        convert(dense, tmp_path / "out", bits=5)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["gptq_p", "gemv", "gemv_fast", "llm-awq"])
def test_planes_and_rows_are_written_and_opened(dense: Path, tmp_path: Path, name: str) -> None:
    """Rounded into GPTQ_P or a row layout of AWQ, a model opens on the CPU; the last two force fp16 and say so."""
    convert(dense, tmp_path / "out", group_size=32, sym=True, format=name)
    model = quantfarm.load(tmp_path / "out", device="cpu")
    fast = name in ("gemv_fast", "llm-awq")
    assert bool(torch.isfinite(logits(model, IDS)).all())
    assert any("the format" in note and "demands it" in note for note in model.quantfarm.notes) is fast
    assert (model.dtype == torch.float16) is fast
    if fast:
        with pytest.raises(KernelRefused, match=r"activation_dtype: needs float16, got float32"):
            quantfarm.load(tmp_path / "out", device="cpu", dtype="float32")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"format": "bitsandbytes", "code_type": "int8", "group_size": 64},
            "group_size: needs -1 for bitsandbytes int8",
        ),
        ({"format": "gguf", "code_type": "q4_k", "group_size": 64}, "group_size: needs -1 for gguf q4_k"),
        ({"format": "mxfp4", "sym": False}, "sym: needs True for mxfp4"),
        ({"format": "gptq", "code_type": "nf4"}, "code_type: needs nothing, got nf4"),
    ],
    ids=str,
)
def test_an_option_that_a_format_can_not_follow_is_refused(
    dense: Path, tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    """What the format fixes otherwise is an error with both values; nothing asked for is dropped in silence."""
    with pytest.raises(ConfigError, match=text):
        convert(dense, tmp_path / "out", **options)


def test_a_name_that_leaves_no_layer_dense_is_said(dense: Path, tmp_path: Path) -> None:
    """modules_to_not_convert with a name that no layer has gives a note."""
    report = convert(dense, tmp_path / "out", group_size=32, modules_to_not_convert=("nowhere",))
    assert "nowhere names no layer, so nothing stays dense for it" in report.notes
