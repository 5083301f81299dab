"""convert of a quantized source: every exact pair of formats, what is refused, and going on after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from formats.makers import DATA
from load_cases import logits, stored, tiny

import quantfarm
from quantfarm.errors import CheckpointError, InexactConversion, WriteFailed
from quantfarm.formats.config import find_settings, parse
from quantfarm.load import writer
from quantfarm.load.convert import convert

IDS = torch.tensor([[1, 7, 150, 3]])
SMALL = 300_000


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the tiny dense model once."""
    return tiny(tmp_path_factory.mktemp("tiny") / "dense")


def answers(folder: Path) -> torch.Tensor:
    """Return the logits of a converted model in fp32 through the portable path of its method."""
    settings, source = find_settings(folder)
    backend = f"{parse(settings, source=source).method.value}_torch"
    return logits(quantfarm.load(folder, device="cpu", dtype=torch.float32, backend=backend), IDS)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ({"format": "gptq"}, "gptq_v2"),
        ({"format": "gptq_v2", "sym": False}, "gptq_v2"),
        ({"format": "gptq", "bits": 3}, "gptq_v2"),
        ({"format": "gptq", "desc_act": True}, "gptq_v2"),
        ({"format": "gptq_v2"}, "gptq"),
        ({"format": "gptq"}, "gemm"),
        ({"format": "gptq_v2", "sym": False}, "gemm"),
        ({"format": "gemm"}, "gptq"),
        ({"format": "gemm", "sym": False}, "gptq_v2"),
        ({"format": "gemm", "sym": False}, "gemv"),
        ({"format": "gemv"}, "gemm"),
        ({"format": "gptq_v2", "bits": 3, "sym": False}, "gptq_p"),
        ({"format": "gptq", "bits": 8}, "gptq_p"),
    ],
    ids=str,
)
def test_rewriting_changes_no_answer(dense: Path, tmp_path: Path, source: dict[str, Any], target: str) -> None:
    """The rewritten model gives the same logits bit for bit, and the way back gives the same files."""
    convert(dense, tmp_path / "from", group_size=32, **source)
    report = convert(tmp_path / "from", tmp_path / "to", format=target)
    assert report.config.format.value == target
    assert len(report.quantized) == 7
    assert torch.equal(answers(tmp_path / "to"), answers(tmp_path / "from"))
    convert(tmp_path / "to", tmp_path / "back", format=source["format"])
    first, back = stored(tmp_path / "from"), stored(tmp_path / "back")
    assert all(torch.equal(first[name], back[name]) for name in first.keys() & back.keys())
    assert first.keys() ^ back.keys() <= {name for name in {*first, *back} if name.endswith(".g_idx")}


@pytest.mark.parametrize(
    ("folder", "target", "text"),
    [
        ("gptq-4bit-g64-actorder", "gemm", "g_idx: needs k // group_size"),
        ("gptq-2bit-g32-asym", "gemm", "bits: needs 4, got 2"),
        ("gptq-4bit-g32-asym", "gptq", "gptq_v2"),
    ],
)
def test_what_has_no_exact_form_is_refused(tmp_path: Path, folder: str, target: str, text: str) -> None:
    """A layout that can not hold a weight, or that readers decode differently, is refused with the layer's name."""
    source = DATA / folder
    if folder == "gptq-4bit-g32-asym" and not _zero_of_zero(source):
        source = _with_zero_of_zero(source, tmp_path / "edited")
    with pytest.raises(InexactConversion, match=text) as caught:
        convert(source, tmp_path / "out", format=target)
    assert "(layer model.layers.0." in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def _zero_of_zero(folder: Path) -> bool:
    return any(bool((t == -1).any()) for name, t in stored(folder).items() if name.endswith("qzeros"))


def _with_zero_of_zero(folder: Path, target: Path) -> Path:
    """Copy a checkpoint and store a word of zero points 0 in one of its tensors."""
    import shutil

    from safetensors.torch import save_file

    shutil.copytree(folder, target)
    tensors = stored(target)
    name = next(n for n in tensors if n.endswith("qzeros"))
    tensors[name][0, 0] = -1
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.parametrize("code_type", ["q4_0", "q8_0"])
def test_ggml_blocks_become_affine_codes(dense: Path, tmp_path: Path, code_type: str) -> None:
    """Q4_0 and Q8_0 are rewritten as GPTQ in groups of 32 with the same answers; the way back is another rounding."""
    convert(dense, tmp_path / "from", format="gguf", code_type=code_type)
    report = convert(tmp_path / "from", tmp_path / "to", format="gptq_v2")
    assert (report.config.bits, report.config.group_size) == ({"q4_0": 4, "q8_0": 8}[code_type], 32)
    first, last = answers(tmp_path / "from"), answers(tmp_path / "to")
    assert float((first - last).norm() / first.norm()) < 1e-6
    with pytest.raises(InexactConversion, match="whose values would be rounded again"):
        convert(tmp_path / "to", tmp_path / "back", format="gguf")


def test_codes_without_an_affine_form_are_refused(dense: Path, tmp_path: Path) -> None:
    """Table codes and narrow floats have no exact form as integers: the layer, the kind and the way out are named."""
    for name in ("bitsandbytes", "fp8"):
        convert(dense, tmp_path / name, format=name)
        with pytest.raises(InexactConversion, match=rf"cannot convert {name} exactly.*\(layer .*\n.*requantize"):
            convert(tmp_path / name, tmp_path / "out", format="gptq_v2")


def test_another_scheme_is_refused_unless_it_is_to_be_rounded_again(dense: Path, tmp_path: Path) -> None:
    """Stated bits or groups that the source lacks are refused with both numbers; requantize rounds again."""
    convert(dense, tmp_path / "eight", bits=8, group_size=32)
    with pytest.raises(InexactConversion, match=r"(?s)bits: needs 8, got 4.*group_size: needs 32, got 16.*requantize"):
        convert(tmp_path / "eight", tmp_path / "four", bits=4, group_size=16)
    report = convert(tmp_path / "eight", tmp_path / "four", bits=4, group_size=16, requantize=True)
    assert (report.config.bits, report.config.group_size) == (4, 16)
    close = answers(tmp_path / "eight")
    assert float((answers(tmp_path / "four") - close).norm() / close.norm()) < 0.2


def test_layers_of_different_schemes_keep_theirs(dense: Path, tmp_path: Path) -> None:
    """Where one layer differs, the settings get a rule for it, and the model answers the same."""
    convert(dense, tmp_path / "mixed", group_size=32)
    settings = json.loads((tmp_path / "mixed" / "quantize_config.json").read_text())
    convert(dense, tmp_path / "other", group_size=16, bits=8)
    tensors, other = stored(tmp_path / "mixed"), stored(tmp_path / "other")
    module = "model.layers.0.mlp.up_proj"
    tensors |= {name: tensor for name, tensor in other.items() if name.startswith(module)}
    from safetensors.torch import save_file

    save_file(tensors, tmp_path / "mixed" / "model.safetensors", metadata={"format": "pt"})
    settings["dynamic"] = {f"+:{module}": {"bits": 8, "group_size": 16}}
    (tmp_path / "mixed" / "quantize_config.json").write_text(json.dumps(settings))
    (tmp_path / "mixed" / "config.json").write_text(
        json.dumps(json.loads((tmp_path / "mixed" / "config.json").read_text()) | {"quantization_config": settings})
    )
    report = convert(tmp_path / "mixed", tmp_path / "v2", format="gptq_v2")
    assert [rule.matches(module) for rule in report.config.dynamic] == [True]
    assert torch.equal(answers(tmp_path / "v2"), answers(tmp_path / "mixed"))


def test_an_interrupted_conversion_goes_on(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interrupt whole files stay, the same request goes on behind them, and the result is the same."""
    convert(dense, tmp_path / "whole", group_size=32, shard_bytes=SMALL // 20)
    files = len(list((tmp_path / "whole").glob("*.safetensors")))
    written = 0
    save = writer.save_file

    def interrupted(tensors: Any, path: Path, **options: Any) -> None:
        nonlocal written
        if written == files // 2:
            raise KeyboardInterrupt
        written += 1
        save(tensors, path, **options)

    monkeypatch.setattr(writer, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert(dense, tmp_path / "out", group_size=32, shard_bytes=SMALL // 20)
    assert not (tmp_path / "out").exists()
    partial = tmp_path / ".out.partial"
    kept = {path.name: path.stat().st_mtime_ns for path in partial.glob("part-*.safetensors")}
    assert len(kept) == files // 2
    made = []
    monkeypatch.setattr(writer, "save_file", lambda t, path, **o: (made.append(path), save(t, path, **o)))
    report = convert(dense, tmp_path / "out", group_size=32, shard_bytes=SMALL // 20)
    assert len(made) == files - files // 2
    assert not partial.exists()
    assert len(report.quantized) == 7
    whole, resumed = stored(tmp_path / "whole"), stored(tmp_path / "out")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_another_request_starts_anew(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a request with other options, and files that were cut, are not used."""
    save, calls = writer.save_file, []

    def stop(tensors: Any, path: Path, **options: Any) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        save(tensors, path, **options)

    monkeypatch.setattr(writer, "save_file", stop)
    with pytest.raises(WriteFailed, match=r"(?s)cannot write .*part-2.*size: needs \d+ bytes.*No space"):
        convert(dense, tmp_path / "out", group_size=32, shard_bytes=SMALL // 20)
    first = tmp_path / ".out.partial" / "part-0.safetensors"
    first.write_bytes(first.read_bytes()[:-5])
    convert(dense, tmp_path / "out", group_size=16, bits=8, shard_bytes=SMALL // 20)
    convert(dense, tmp_path / "same", group_size=16, bits=8, shard_bytes=SMALL // 20)
    one, other = stored(tmp_path / "out"), stored(tmp_path / "same")
    assert all(torch.equal(one[name], other[name]) for name in {*one, *other})


def test_two_writers_of_one_target_are_refused(dense: Path, tmp_path: Path) -> None:
    """While one process writes a target, another is told so and touches nothing."""
    with (
        FileLock(tmp_path / ".out.lock"),
        pytest.raises(CheckpointError, match="another process is writing it"),
    ):
        convert(dense, tmp_path / "out", group_size=32)
    assert not (tmp_path / ".out.partial").exists()
