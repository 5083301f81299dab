"""A checkpoint folder of safetensors files: which tensors there are, in which file, and whether all of it is there.

Everything is checked when the folder is opened, before any parameter of a model is touched: a cut download must not
become a model with holes in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from quantfarm.errors import CheckpointError
from quantfarm.formats.safetensors_header import INDEX, SINGLE

_INCOMPLETE = "the download may be incomplete: fetch the folder again"
_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The tensors of one folder.

    Attributes:
        folder: where it lies.
        files: the files that hold tensors, in order.
        where: name of each tensor to its file.
    """

    folder: Path
    files: tuple[Path, ...]
    where: Mapping[str, Path]
    _handles: dict[Path, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def sharded(self) -> bool:
        """Whether the tensors lie in several files."""
        return len(self.files) > 1

    def tensor(self, name: str) -> torch.Tensor:
        """Read one tensor into memory of its own; raises KeyError for a name that is not there.

        safetensors may map the file: such a tensor is not aligned, and it changes or dies with the file.
        """
        path = self.where[name]
        if path not in self._handles:
            self._handles[path] = safe_open(path, framework="pt")
        tensor: torch.Tensor = self._handles[path].get_tensor(name)
        return tensor.clone()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""
        return tuple(self._slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """Return a tensor's dtype in the spelling of safetensors, such as ``BF16`` or ``F8_E4M3``."""
        return str(self._slice(name).get_dtype())

    def _slice(self, name: str) -> Any:
        path = self.where[name]
        if path not in self._handles:
            self._handles[path] = safe_open(path, framework="pt")
        return self._handles[path].get_slice(name)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a folder and check it.

    Raises:
        CheckpointError: files of the index are missing, are folders or are cut; the index names tensors that its files
            lack; a tensor lies in two files; or there are no tensors at all. Names every file and tensor.
    """
    if not folder.is_dir():
        raise CheckpointError(f"cannot open {folder}: no such folder", remedy="name a local folder or a hub id")
    if (folder / INDEX).exists():
        return _from_index(folder)
    path = _single(folder)
    names = _names(folder, (path,))[path]
    return Checkpoint(folder=folder, files=(path,), where=dict.fromkeys(names, path))


def _single(folder: Path) -> Path:
    """Return the only file with tensors: model.safetensors, or the one of another name."""
    if (folder / SINGLE).exists():
        return folder / SINGLE
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        raise CheckpointError(
            f"cannot open {folder}: several files and no index",
            lines=[f"{SINGLE} or {INDEX}: needs one of them, got {', '.join(p.name for p in found)}"],
            remedy=_INCOMPLETE,
        )
    other = sorted(p.name for pattern in ("*.bin", "*.pt", "*.gguf") for p in folder.glob(pattern))
    raise CheckpointError(
        f"cannot open {folder}: no tensors in it",
        lines=[f"*.safetensors: needs at least one file, got {', '.join(other) or 'none'}"],
        remedy="save the model as safetensors" if other else _INCOMPLETE,
    )


def _from_index(folder: Path) -> Checkpoint:
    listed = _weight_map(folder / INDEX)
    files = tuple(folder / name for name in sorted(set(listed.values())))
    if (folder / SINGLE).exists() and folder / SINGLE not in files:
        raise CheckpointError(
            f"cannot open {folder}: two checkpoints in one folder",
            lines=[f"{SINGLE} is not listed in {INDEX}"],
            remedy="remove the one that is out of date",
        )
    found = _names(folder, files)
    holders: dict[str, list[str]] = {}
    for path, names in found.items():
        for name in names:
            holders.setdefault(name, []).append(path.name)
    lines = [
        f"{n}: {INDEX} says {f}, the file has no such tensor" for n, f in listed.items() if f not in holders.get(n, ())
    ]
    lines += [f"{n}: stored in {' and '.join(fs)}" for n, fs in holders.items() if len(fs) > 1]
    if lines:
        raise CheckpointError(
            f"cannot open {folder}: index and files do not belong together",
            lines=shortened(lines),
            remedy=f"fetch {INDEX} and its files from one place again",
        )
    return Checkpoint(folder=folder, files=files, where={name: folder / fs[0] for name, fs in holders.items()})


def _weight_map(path: Path) -> dict[str, str]:
    """Return tensor name to file name; a name that the JSON object has twice is an error, not the last one."""
    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in items]
        twice.extend(name for name in dict.fromkeys(names) if names.count(name) > 1) if len(set(names)) < len(
            names
        ) else None
        return dict(items)

    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=pairs)
        listed = content["weight_map"]
        files = {str(file) for file in listed.values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        line = f"{path.name}: needs an object weight_map, got {type(error).__name__}: {error}"
        raise CheckpointError(
            f"cannot open {path.parent}: unreadable index", lines=[line], remedy=_INCOMPLETE
        ) from error
    lines = [f"{name}: listed twice" for name in twice]
    lines += [f"{file}: needs a file name, got a path" for file in sorted(files) if Path(file).name != file]
    if lines or not files:
        raise CheckpointError(
            f"cannot open {path.parent}: bad index {path.name}",
            lines=shortened(lines or ["no tensor is listed"]),
            remedy=_INCOMPLETE,
        )
    return {str(name): str(file) for name, file in listed.items()}


def _names(folder: Path, files: tuple[Path, ...]) -> dict[Path, list[str]]:
    """Return the tensor names of each file after checking that every one is a whole file."""
    names: dict[Path, list[str]] = {}
    lines = []
    for path in files:
        if not path.exists():
            lines.append(f"{path.name}: missing")
        elif not path.is_file():
            lines.append(f"{path.name}: needs a file, got a folder")
        else:
            try:
                with safe_open(path, framework="pt") as handle:
                    names[path] = list(handle.keys())
            except (SafetensorError, OSError) as error:
                lines.append(f"{path.name}: cut or damaged, {path.stat().st_size} bytes ({error})")
    if lines:
        raise CheckpointError(
            f"cannot open {folder}: files are missing or damaged", lines=shortened(lines), remedy=_INCOMPLETE
        )
    return names


def shortened(lines: Iterable[str]) -> list[str]:
    """Return the first lines and how many more there are."""
    every = list(lines)
    return every if len(every) <= _SHOWN else [*every[:_SHOWN], f"and {len(every) - _SHOWN} more"]
