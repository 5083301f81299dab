"""Writing a checkpoint folder shard by shard: complete or not there, and able to go on after an interruption."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from quantfarm.errors import CheckpointError, QuantfarmError, WriteFailed
from quantfarm.formats.safetensors_header import INDEX, SINGLE

_PROGRESS = "progress.json"


class PartialFolder:
    """A hidden folder beside the target that collects units of tensors in files and remembers which are on disk.

    A file gets its name only once it is complete, and the list of what it holds is written after it. Whatever
    interrupts the work, the next attempt with the same request finds whole files and goes on behind them.

    Args:
        folder: the hidden folder; it exists.
        limit: bytes a file; a single unit may be larger.
        request: what is to be made from what. Files of another request are thrown away.
    """

    def __init__(self, folder: Path, limit: int, request: Mapping[str, Any]) -> None:
        self.folder, self._limit = folder, limit
        self._request = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        self._pending: dict[str, torch.Tensor] = {}
        self._waiting: dict[str, Any] = {}
        self._size = 0
        self._files: list[dict[str, Any]] = self._found()

    def done(self) -> dict[str, Any]:
        """Return the units on disk, each with the facts it was added with."""
        return {unit: facts for entry in self._files for unit, facts in entry["units"].items()}

    def add(self, unit: str, tensors: Mapping[str, torch.Tensor], facts: Any = None) -> None:
        """Take the tensors of one unit, copied out of any larger storage, with what is to be known of it later."""
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        if self._pending and self._size + size > self._limit:
            self.flush()
        self._pending |= {name: tensor.contiguous() for name, tensor in tensors.items()}
        self._waiting[unit] = facts
        self._size += size

    def close(self) -> None:
        """Write what is left, give the files their final names, and write the index if there are several."""
        self.flush()
        if len(self._files) == 1:
            (self.folder / self._files[0]["file"]).rename(self.folder / SINGLE)
        else:
            self._number()
        (self.folder / _PROGRESS).unlink()

    def _number(self) -> None:
        where: dict[str, str] = {}
        for number, entry in enumerate(self._files, 1):
            final = f"model-{number:05d}-of-{len(self._files):05d}.safetensors"
            (self.folder / entry["file"]).rename(self.folder / final)
            where |= dict.fromkeys(entry["tensors"], final)
        total = sum(entry["bytes"] for entry in self._files)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        write_json(self.folder / INDEX, index)

    def flush(self) -> None:
        """Write the pending units as one file; nothing where there are none and a file exists."""
        if not self._waiting and self._files:
            return
        name = f"part-{len(self._files)}.safetensors"
        try:
            save_file(self._pending, self.folder / f"{name}.tmp", metadata={"format": "pt"})
        except (OSError, SafetensorError) as error:
            free = shutil.disk_usage(self.folder).free
            raise WriteFailed(
                f"cannot write {self.folder / name}",
                lines=[f"size: needs {self._size} bytes, got {free} free ({error})"],
                remedy="make room, then ask for the same again: it goes on behind the last whole file",
            ) from error
        (self.folder / f"{name}.tmp").replace(self.folder / name)
        self._files.append({"file": name, "units": self._waiting, "tensors": list(self._pending), "bytes": self._size})
        write_json(self.folder / f"{_PROGRESS}.tmp", {"request": self._request, "files": self._files})
        (self.folder / f"{_PROGRESS}.tmp").replace(self.folder / _PROGRESS)
        self._pending, self._waiting, self._size = {}, {}, 0

    def _found(self) -> list[dict[str, Any]]:
        """Return the whole files of an earlier attempt at the same request, and remove everything else."""
        files: list[dict[str, Any]] = []
        try:
            told = json.loads((self.folder / _PROGRESS).read_text(encoding="utf-8"))
            listed = told["files"] if told["request"] == self._request else []
        except (OSError, ValueError, KeyError, TypeError):
            listed = []
        for entry in listed:
            if not _holds(self.folder / entry["file"], entry["tensors"]):
                break
            files.append(entry)
        kept = {entry["file"] for entry in files}
        for path in self.folder.iterdir():
            if path.name not in kept:
                path.unlink() if path.is_file() else shutil.rmtree(path)
        return files


def _holds(path: Path, names: list[str]) -> bool:
    try:
        with safe_open(path, framework="pt") as handle:
            return set(handle.keys()) == set(names)
    except (SafetensorError, OSError):
        return False


@contextlib.contextmanager
def folder_at_once(target: Path) -> Iterator[Path]:
    """Give a hidden folder beside ``target`` that becomes the target at the end.

    An error of the project takes it away again, since the same request would fail again. Anything else, such as an
    interrupt or a full disk, leaves it for the next attempt.

    Raises:
        CheckpointError: the target exists and holds something, or another process is writing it.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(
            f"cannot write {target}: it exists and is not an empty folder", remedy="name another folder, or remove it"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.parent / f".{target.name}.partial"
    lock = target.parent / f".{target.name}.lock"
    try:
        with FileLock(lock, timeout=0):
            partial.mkdir(exist_ok=True)
            try:
                yield from _becoming(partial, target)
            finally:
                lock.unlink(missing_ok=True)
    except Timeout:
        raise CheckpointError(
            f"cannot write {target}: another process is writing it", remedy="wait for it, or name another folder"
        ) from None


def _becoming(partial: Path, target: Path) -> Iterator[Path]:
    worth_keeping = True
    try:
        yield partial
    except WriteFailed:
        raise
    except QuantfarmError:
        worth_keeping = False
        raise
    else:
        if target.exists():
            target.rmdir()
        partial.replace(target)
    finally:
        if not worth_keeping or not (partial / _PROGRESS).exists():
            shutil.rmtree(partial, ignore_errors=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one JSON file with a final newline."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
