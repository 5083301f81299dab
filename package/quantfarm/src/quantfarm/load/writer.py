"""Writing a checkpoint folder: shards with an index above a size; made beside the target and moved at the end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from quantfarm.errors import CheckpointError
from quantfarm.load.checkpoint import INDEX, SINGLE


class ShardWriter:
    """Collects tensors and writes a file whenever the next one would go above the limit.

    Args:
        folder: where the files go.
        limit: bytes a file; a single tensor may be larger.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._pending: dict[str, torch.Tensor] = {}
        self._size = self._total = 0
        self._shards: list[tuple[Path, list[str]]] = []

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take one tensor; it is copied out of any larger storage."""
        size = tensor.numel() * tensor.element_size()
        if self._pending and self._size + size > self._limit:
            self._flush()
        self._pending[name] = tensor.contiguous()
        self._size += size
        self._total += size

    def close(self) -> None:
        """Write what is left, give the files their final names, and write the index if there are several."""
        self._flush()
        if len(self._shards) == 1:
            self._shards[0][0].rename(self._folder / SINGLE)
            return
        where: dict[str, str] = {}
        for number, (path, names) in enumerate(self._shards, 1):
            final = f"model-{number:05d}-of-{len(self._shards):05d}.safetensors"
            path.rename(self._folder / final)
            where |= dict.fromkeys(names, final)
        index = {"metadata": {"total_size": self._total}, "weight_map": dict(sorted(where.items()))}
        write_json(self._folder / INDEX, index)

    def _flush(self) -> None:
        if self._pending or not self._shards:
            path = self._folder / f"part-{len(self._shards)}.safetensors"
            save_file(self._pending, path, metadata={"format": "pt"})
            self._shards.append((path, list(self._pending)))
            self._pending, self._size = {}, 0


@contextlib.contextmanager
def folder_at_once(target: Path) -> Iterator[Path]:
    """Give a hidden folder beside ``target`` that becomes the target at the end, or goes away after an error.

    Raises:
        CheckpointError: the target exists and holds something.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(
            f"cannot write {target}: it exists and is not an empty folder", remedy="name another folder, or remove it"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if target.exists():
            target.rmdir()
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one JSON file with a final newline."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
