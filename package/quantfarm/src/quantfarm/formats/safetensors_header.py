"""Headers of safetensors files, read with the standard library: names, dtypes, shapes and places, no values."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from quantfarm.errors import CheckpointError

_LENGTH = struct.Struct("<Q")
_LONGEST = 100_000_000

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_header(path: Path, *, whole: bool = False) -> dict[str, Any]:
    """Return the header of a safetensors file: tensor name to dtype, shape and place.

    Args:
        path: the file.
        whole: also demand that the file is as long as its tensors need.

    Raises:
        CheckpointError: the file is cut off or is no safetensors file.
    """
    with path.open("rb") as stream:
        start = stream.read(_LENGTH.size)
        length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else 0
        text = stream.read(length) if 0 < length <= _LONGEST else b""
    try:
        header = json.loads(text)
        tensors = {name: facts for name, facts in header.items() if name != "__metadata__"}
        end = max((int(facts["data_offsets"][1]) for facts in tensors.values()), default=0)
    except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        detail = f"header: needs {length} bytes of JSON, got {len(text)}: {error}"
        raise CheckpointError(
            f"cannot read {path}: no safetensors file", lines=[detail], remedy="fetch it again"
        ) from None
    needed, found = _LENGTH.size + length + end, path.stat().st_size
    if whole and found != needed:
        raise CheckpointError(
            f"cannot read {path}: cut or damaged",
            lines=[f"size: needs {needed} bytes, got {found}"],
            remedy="the download may be incomplete: fetch it again",
        )
    return tensors


def read_headers(folder: Path) -> tuple[dict[str, Any], int]:
    """Return the tensors of the files that a loader would read, and the number of those files.

    Raises:
        CheckpointError: there is no such file.
    """
    files, _ = checkpoint_files(folder)
    tensors: dict[str, Any] = {}
    for path in files:
        tensors |= read_header(path)
    return tensors, len(files)


def checkpoint_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files that a loader would read, and those that merely lie beside them.

    Raises:
        CheckpointError: there are neither files nor an index.
    """
    found = sorted(file for file in folder.glob("*.safetensors") if file.is_file())
    if not found and not (folder / INDEX).is_file():
        raise CheckpointError(f"cannot find tensors in {folder}: no *.safetensors file", remedy="name another folder")
    if (folder / INDEX).is_file():
        names = _listed(folder / INDEX)
        # A single file beside an index is a second checkpoint, not an addition.
        inside = [file for file in found if file.name in names or file.name == SINGLE or not names]
    else:
        inside = [folder / SINGLE] if folder / SINGLE in found else found
    return inside, [file for file in found if file not in inside]


def _listed(index: Path) -> set[str]:
    """Return the names of the files in an index; none where it is damaged, which whoever opens the files reports."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except ValueError:
        return set()
    listed = content.get("weight_map") if isinstance(content, dict) else None
    return {str(file) for file in listed.values()} if isinstance(listed, dict) else set()
