"""Checkpoints explained from settings and headers alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from gguf_files import SMALL, Entry, encoded, three, write
from header_files import GPTQ, checkpoint, write_tensors

from quantfarm.cli.layers import layer_kinds
from quantfarm.errors import CheckpointError
from quantfarm.formats.safetensors_header import read_header


def test_layers_of_one_kind_are_told_once(tmp_path: Path) -> None:
    """Modules with the same needs are one kind; shapes, scheme and dtype come from headers and settings."""
    shapes: dict[str, tuple[str, list[int]]] = {"embed.weight": ("BF16", [10, 10])}
    for layer in range(2):
        for name, k, n in (("q", 512, 256), ("down", 1024, 512)):
            shapes[f"layers.{layer}.{name}.qweight"] = ("I32", [k // 8, n])
    kinds = layer_kinds(checkpoint(tmp_path, GPTQ, shapes), (), "auto")
    assert [kind.modules for kind in kinds] == [
        ("layers.0.q", "layers.1.q"),
        ("layers.0.down", "layers.1.down"),
    ]
    assert str(kinds[1].request) == "GPTQ int4 g128 sym, K=1024 N=512, bf16, on the default device"


def test_awq_and_sharded(tmp_path: Path) -> None:
    """AWQ words lie along the outputs; more than one file is a sharded checkpoint."""
    settings = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
    one, two = ({f"{name}.qweight": ("I32", [512, 32])} for name in "ab")
    (kind,) = layer_kinds(checkpoint(tmp_path, settings, one, two), (), "", "fp16")
    assert str(kind.request) == "AWQ/GEMM int4 g64 asym, K=512 N=256, fp16, sharded, on the default device"
    assert kind.modules == ("a", "b")


def test_rules_by_module_are_obeyed(tmp_path: Path) -> None:
    """A module with other settings is a kind of its own, and an excluded one is none; K comes from the index."""
    settings = GPTQ | {"dynamic": {r"-:.*c$": {}, r".*b$": {"bits": 8}}, "desc_act": True}
    shapes = {f"{name}.qweight": ("I32", [64, 32]) for name in ("a", "b", "c")}
    shapes |= {"a.g_idx": ("I32", [500]), "a.scales": ("F16", [4, 32])}
    kinds = layer_kinds(checkpoint(tmp_path, settings, shapes), (), "auto")
    assert [(k.modules, k.request.in_features, k.request.scheme.bits) for k in kinds] == [
        (("a",), 500, 4),
        (("b",), 256, 8),
    ]
    assert kinds[0].request.scheme.act_order


def test_the_dtype_of_scales_is_the_last_resort(tmp_path: Path) -> None:
    """Without a dtype in config.json the scales decide."""
    (tmp_path / "quantize_config.json").write_text(json.dumps(GPTQ), encoding="utf-8")
    write_tensors(tmp_path / "m.safetensors", {"a.qweight": ("I32", [64, 32]), "a.scales": ("F16", [4, 32])})
    (kind,) = layer_kinds(tmp_path, (), "auto")
    assert kind.request.activation_dtype == "float16"


@pytest.mark.parametrize("content", [b"", b"\x01", struct.pack("<Q", 50) + b"{", struct.pack("<Q", 2**60) + b"{}"])
def test_files_that_are_none(content: bytes, tmp_path: Path) -> None:
    """A cut or foreign file is an error that names it, whatever length it claims."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"m\.safetensors"):
        read_header(path)


def test_folders_without_layers(tmp_path: Path) -> None:
    """A folder without tensor files, or without quantized layers, says so."""
    checkpoint(tmp_path, GPTQ)
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file"):
        layer_kinds(tmp_path, (), "auto")
    write_tensors(tmp_path / "m.safetensors", {"a.weight": ("F16", [4, 4])})
    with pytest.raises(CheckpointError, match="cannot find quantized layers"):
        layer_kinds(tmp_path, (), "auto")


def test_a_gguf_file_is_explained_by_its_header(tmp_path: Path) -> None:
    """Each type and shape of a native file is a kind; embeddings, plain matrices and unknown types are none."""
    embedding = Entry(name="token_embd.weight", shape=(3, 32), number=8, data=bytes(102))
    unknown = Entry(name="blk.0.new.weight", shape=(3, 32), number=200, data=bytes(102))
    named = [Entry(**{**vars(entry), "name": f"blk.0.{entry.name}.weight"}) for entry in three()]
    path = write(tmp_path / "m.gguf", encoded(SMALL, [embedding, *named, unknown]))
    kinds = layer_kinds(path, (), "auto", "bf16")
    assert [kind.modules for kind in kinds] == [("blk.0.eight",), ("blk.0.four",)]
    assert str(kinds[1].request) == "GGUF int4 g32 sym, K=64 N=16, bf16, q4_0, on the default device"


def test_files_that_lie_beside_a_checkpoint_do_not_count() -> None:
    """A slice with expected results beside its only file asks for unsharded layers."""
    folder = Path(__file__).resolve().parent.parent / "data" / "gptq-4bit-g64-sym"
    assert {kind.request.sharded for kind in layer_kinds(folder, (), "")} == {False}
