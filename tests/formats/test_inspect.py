"""What ``inspect`` says of real slices, of made-up contradictions, and of files that are broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf_files import SMALL, Entry, encoded, three, write
from header_files import GPTQ
from load_cases import SLICES
from safetensors.torch import save_file
from torch import Tensor, float16, int32, zeros

from quantfarm.errors import CheckpointError, UnknownFormat
from quantfarm.formats.config import find_settings, parse
from quantfarm.formats.inspect_folder import inspect_folder
from quantfarm.formats.inspect_gguf import inspect_gguf
from quantfarm.formats.inspection import Inspection

K, N = 256, 64
INDEX = "model.safetensors.index.json"


def layer(name: str, bits: int = 4, k: int = K, n: int = N) -> dict[str, Tensor]:
    """Return the tensors of a GPTQ layer with one group of 128 after the other."""
    groups = -(-k // 128)
    return {
        f"{name}.qweight": zeros(k * bits // 32, n, dtype=int32),
        f"{name}.qzeros": zeros(groups, n * bits // 32, dtype=int32),
        f"{name}.scales": zeros(groups, n, dtype=float16),
    }


def folder(path: Path, tensors: dict[str, Tensor], settings: dict[str, Any] | None = None, **model: Any) -> Path:
    """Write a checkpoint of one file with settings in config.json."""
    said = {} if settings is None else {"quantization_config": settings}
    (path / "config.json").write_text(json.dumps(model | said), encoding="utf-8")
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.mark.parametrize("path", SLICES, ids=lambda path: path.name)
def test_real_slices_are_consistent(path: Path) -> None:
    """Every slice in the repository agrees with itself; method, width and writer are those of its settings."""
    found = inspect_folder(path)
    settings, source = find_settings(path)
    config = parse(settings, source=source)
    kind = "table" if config.code_type in ("nf4", "fp4") else "int"
    assert found.contradictions == ()
    assert found.exit_code == 0
    assert found.method == config.method.value
    assert all(f"{kind}{config.bits} g{config.group_size} " in scheme + " " for scheme in found.kinds)
    assert sum(found.kinds.values()) == len(found.layers) > 0
    flat = kind == "table"
    assert (found.bits_per_weight == 0) if flat else (config.bits < found.bits_per_weight < config.bits + 1)
    assert found.writer.startswith("gptqmodel") == config.producer.startswith("gptqmodel")
    assert "consistent" in str(found)


def test_odd_layers_are_named_and_counted(tmp_path: Path) -> None:
    """A layer of another width is odd and no contradiction where a rule says so; sizes are those of the tensors."""
    tensors = layer("a.fc") | layer("b.fc") | layer("c.fc", bits=8) | {"norm.weight": zeros(8, dtype=float16)}
    found = inspect_folder(folder(tmp_path, tensors, GPTQ | {"dynamic": {"c": {"bits": 8}}}))
    assert found.exit_code == 0
    assert found.kinds == {"int4 g128 sym": 2, "int8 g128 sym": 1}
    assert found.odd == ("c.fc: int8 g128 sym, most are int4 g128 sym",)
    assert (found.dense_tensors, found.dense_size, found.dense_values) == (1, 16, 8)
    assert found.packed_size == sum(t.numel() * t.element_size() for t in tensors.values()) - 16
    shown = found.as_json()
    assert (shown["schema"], shown["consistent"], len(shown["layers"])) == ("quantfarm-inspect/1", True, 3)
    assert json.loads(json.dumps(shown)) == shown


def contradictions(found: Inspection) -> str:
    """Return them as lines; there must be some."""
    assert found.exit_code == 1
    return "\n".join(found.contradictions)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"fc.scales": zeros(4, N, dtype=float16)},
            "fc: scales needs 128 values (K=256, N=64, int4 g128 sym), got [4, 64]",
        ),
        ({"fc.qzeros": None}, "fc: qzeros is missing"),
        ({"fc.qzeros": zeros(2, 64, dtype=int32)}, "fc: qzeros needs 16 values"),
        ({"fc.g_idx": zeros(128, dtype=int32)}, "fc: scales needs"),
        ({"fc.bias": zeros(63, dtype=float16)}, "fc: bias needs 64 values"),
        ({"fc.weight": zeros(N, K, dtype=float16)}, "fc: weight beside packed tensors"),
        ({"fc.secret": zeros(1, dtype=float16)}, "fc: secret is no tensor of gptq"),
        ({"b.fc.weight": zeros(N, K, dtype=float16)}, "b.fc: dense, the settings say packed"),
        (layer("lm_head"), "lm_head: packed, the settings say dense"),
        (layer("lm_head"), "lm_head: packed, and config.json ties it to the embedding"),
    ],
)
def test_tensors_against_settings(tmp_path: Path, change: dict[str, Tensor | None], says: str) -> None:
    """Every way in which tensors and settings can not both be right is a contradiction with module and numbers."""
    merged = {name: t for name, t in (layer("fc") | layer("other.fc") | change).items() if t is not None}
    found = inspect_folder(folder(tmp_path, merged, GPTQ, tie_word_embeddings=True))
    assert says in contradictions(found)
    assert "contradiction" in str(found)


def test_settings_that_disagree(tmp_path: Path) -> None:
    """Two files that state another width are told with both, and the tensors are left unread."""
    folder(tmp_path, layer("fc"), GPTQ)
    (tmp_path / "quantize_config.json").write_text(json.dumps(GPTQ | {"bits": 8}), encoding="utf-8")
    text = contradictions(inspect_folder(tmp_path))
    assert "disagree on bits" in text
    assert "bits is 8" in text
    assert "packed tensors such as fc.qweight" in text


def test_packed_tensors_without_settings(tmp_path: Path) -> None:
    """Packed tensors in a folder without settings contradict it; plain ones are simply not quantized."""
    assert "no settings that say how" in contradictions(inspect_folder(folder(tmp_path, layer("fc"))))
    found = inspect_folder(folder(tmp_path, {"fc.weight": zeros(4, 4, dtype=float16)}))
    assert found.exit_code == 0
    assert "no packed layers" in str(found)
    assert "not a quantized checkpoint" in str(found)


def test_r16_index_against_files(tmp_path: Path) -> None:
    """R16: a file or a tensor that only the index has, or only the files have, is a contradiction by name."""
    folder(tmp_path, layer("fc"), GPTQ)
    (tmp_path / "model.safetensors").rename(tmp_path / "one.safetensors")
    listed = dict.fromkeys([*layer("fc"), "ghost.weight"], "one.safetensors") | {"other.weight": "two.safetensors"}
    del listed["fc.scales"]
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": listed}), encoding="utf-8")
    text = contradictions(inspect_folder(tmp_path))
    assert f"two.safetensors: {INDEX} lists it, the folder lacks it" in text
    assert f"ghost.weight: {INDEX} says one.safetensors, which has no such tensor" in text
    assert f"fc.scales: in one.safetensors, not listed in {INDEX}" in text
    (tmp_path / INDEX).unlink()
    save_file({"fc.bias": zeros(N), "fc.scales": zeros(2, N)}, tmp_path / "two.safetensors")
    text = contradictions(inspect_folder(tmp_path))
    assert f"2 files with tensors, and no {INDEX}" in text
    assert "fc.scales: stored in one.safetensors and two.safetensors" in text


def test_broken_things_are_refused(tmp_path: Path) -> None:
    """A cut file, foreign bytes, a missing folder and a method without a reader end the look with their name."""
    folder(tmp_path, layer("fc"), GPTQ)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: cut or damaged\n.*needs {len(content)} bytes"):
        inspect_folder(tmp_path)
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="no safetensors file"):
        inspect_folder(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors file"):
        inspect_folder(tmp_path)
    with pytest.raises(CheckpointError, match="got nothing"):
        inspect_folder(tmp_path / "absent")
    with pytest.raises(UnknownFormat, match="cannot read"):
        inspect_folder(folder(tmp_path, layer("fc"), GPTQ | {"quant_method": "nf12"}))


def native(path: Path, metadata: dict[str, tuple[str, Any]], *more: Entry) -> Path:
    """Write a .gguf file of two packed layers of one block and an embedding."""
    embedding = Entry(name="token_embd.weight", shape=(3, 32), number=8, data=bytes(102))
    named = [Entry(**{**vars(entry), "name": f"blk.0.{entry.name}.weight"}) for entry in three()]
    return write(path / "m.gguf", encoded(SMALL | metadata, [embedding, *named, *more]))


def test_a_gguf_file(tmp_path: Path) -> None:
    """Types with counts, the odd ones and the bits of a weight come from the header of a native file."""
    found = inspect_gguf(native(tmp_path, {"general.quantized_by": ("str", "someone")}))
    assert (found.method, found.format, found.writer, found.exit_code) == ("gguf", "gguf", "someone", 0)
    assert [layer.module for layer in found.layers] == ["blk.0.eight", "blk.0.four"]
    assert len(found.odd) == 1
    assert found.bits_per_weight == (3 * 34 + 16 * 36) * 8 / (3 * 32 + 16 * 64)
    assert any("token_embd.weight: q8_0" in note for note in found.notes)


def test_contradictions_of_a_gguf_file(tmp_path: Path) -> None:
    """R89: an unknown type is told and the rest still shown; counts of the metadata are compared with the tensors."""
    metadata: dict[str, tuple[str, Any]] = {
        "llama.block_count": ("u32", 2),
        "llama.embedding_length": ("u32", 64),
        "llama.vocab_size": ("u32", 4),
        "tokenizer.ggml.tokens": ("[str]", ["a", "b", "c", "d"]),
    }
    new = Entry(name="blk.0.new.weight", shape=(3, 32), number=200, data=bytes(96))
    text = contradictions(inspect_gguf(native(tmp_path, metadata, new)))
    assert "blk.0.new.weight: unknown type 200, 96 bytes" in text
    assert "llama.block_count says 2, the tensors are of 1 blocks" in text
    assert "llama.embedding_length says 64, token_embd.weight has 32" in text
    assert "llama.vocab_size says 4, token_embd.weight has 3" in text
    assert "tokenizer.ggml.tokens has 4 entries, token_embd.weight has 3 rows" in text


def test_inspecting_needs_neither_torch_nor_numpy(tmp_path: Path) -> None:
    """Folders and files are looked at with the standard library alone."""
    script = (
        "import sys; from pathlib import Path; from quantfarm.formats import inspect_folder, inspect_gguf;"
        f"inspect_folder.inspect_folder(Path({str(SLICES[0])!r}));"
        f"inspect_gguf.inspect_gguf(Path({str(native(tmp_path, {}))!r}));"
        "print({'torch', 'numpy', 'safetensors'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
