"""Opening a folder: everything is there, whole and once, or the load stops with names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from quantfarm.errors import CheckpointError
from quantfarm.load.checkpoint import INDEX, open_checkpoint

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Write two shards and their index."""
    save_file({"a": torch.zeros(3), "b": torch.ones(2)}, tmp_path / FIRST)
    save_file({"c": torch.arange(4)}, tmp_path / SECOND)
    _index(tmp_path, {"a": FIRST, "b": FIRST, "c": SECOND})
    return tmp_path


def _index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_a_complete_pair_opens(pair: Path) -> None:
    """R16: both shards are found, and every tensor reads from its own file."""
    checkpoint = open_checkpoint(pair)
    assert set(checkpoint.where) == {"a", "b", "c"}
    assert checkpoint.sharded
    assert torch.equal(checkpoint.tensor("c"), torch.arange(4))
    assert checkpoint.shape("b") == (2,)


def test_r16_a_missing_shard_is_named(pair: Path) -> None:
    """R16: without its second file the folder is refused with the file's name and a hint at the download."""
    (pair / SECOND).unlink()
    with pytest.raises(CheckpointError, match=rf"(?s){SECOND}: missing.*download may be incomplete"):
        open_checkpoint(pair)


def test_a_stale_index_is_refused(pair: Path) -> None:
    """R16: files that never existed, and tensors that their file lacks, are all named at once."""
    _index(pair, {"a": "model-00001-of-00009.safetensors", "b": "model-00002-of-00009.safetensors"})
    with pytest.raises(CheckpointError, match=r"(?s)00001-of-00009\.safetensors: missing.*00002-of-00009"):
        open_checkpoint(pair)
    _index(pair, {"a": FIRST, "b": FIRST, "c": SECOND, "d": SECOND})
    with pytest.raises(CheckpointError, match=r"d: model\.safetensors\.index\.json says .*no such tensor"):
        open_checkpoint(pair)


def test_a_tensor_in_two_places_is_refused(pair: Path) -> None:
    """R16: a tensor that two shards store, or that the index lists twice, has no single truth."""
    save_file({"c": torch.arange(4), "a": torch.ones(3)}, pair / SECOND)
    with pytest.raises(CheckpointError, match=rf"a: stored in {FIRST} and {SECOND}"):
        open_checkpoint(pair)
    (pair / INDEX).write_text(f'{{"weight_map": {{"a": "{FIRST}", "a": "{SECOND}"}}}}')
    with pytest.raises(CheckpointError, match="a: listed twice"):
        open_checkpoint(pair)


def test_a_folder_named_like_a_file_is_refused(pair: Path) -> None:
    """R16: a directory whose name ends in .safetensors is not a shard."""
    (pair / SECOND).unlink()
    (pair / SECOND).mkdir()
    with pytest.raises(CheckpointError, match=f"{SECOND}: needs a file, got a folder"):
        open_checkpoint(pair)


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_cut_file_is_named(pair: Path, keep: int) -> None:
    """R16: a shard that is empty, cut in its header or one byte short is refused with its size."""
    content = (pair / SECOND).read_bytes()[:keep]
    (pair / SECOND).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{SECOND}: cut or damaged, {len(content)} bytes"):
        open_checkpoint(pair)


def test_an_index_cannot_point_outside(pair: Path) -> None:
    """An index that names a path is refused."""
    _index(pair, {"a": "../other.safetensors"})
    with pytest.raises(CheckpointError, match=r"\.\./other\.safetensors: needs a file name, got a path"):
        open_checkpoint(pair)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {}}'])
def test_an_unreadable_index_is_refused(pair: Path, text: str) -> None:
    """An index without a weight map is an error, not an empty checkpoint."""
    (pair / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match="index"):
        open_checkpoint(pair)


def test_one_file_of_any_name_opens(tmp_path: Path) -> None:
    """A single file of a quantizer's own name is the checkpoint; model.safetensors goes before others."""
    save_file({"a": torch.zeros(3)}, tmp_path / "gptq_model-4bit-128g.safetensors")
    assert not open_checkpoint(tmp_path).sharded
    save_file({"b": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="several files and no index"):
        open_checkpoint(tmp_path)
    save_file({"c": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert set(open_checkpoint(tmp_path).where) == {"c"}


def test_two_checkpoints_in_one_folder_are_refused(pair: Path) -> None:
    """R16: model.safetensors beside an index that does not list it leaves open which one is meant."""
    save_file({"a": torch.zeros(3)}, pair / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not listed"):
        open_checkpoint(pair)


def test_folders_without_tensors_say_what_they_have(tmp_path: Path) -> None:
    """No folder, an empty one, and one of another file type each get their own sentence."""
    with pytest.raises(CheckpointError, match="no such folder"):
        open_checkpoint(tmp_path / "none")
    with pytest.raises(CheckpointError, match="needs at least one file, got none"):
        open_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"got pytorch_model\.bin"):
        open_checkpoint(tmp_path)
