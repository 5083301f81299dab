"""The container of .gguf files, versions 2 and 3 in both byte orders: metadata, tensor table, places of the bytes.

The layout is that of ggml's own description of the format: magic, version, two counts, metadata, tensor table, padding
to the alignment, data. Nothing is trusted: every count is compared with the bytes that are left before anything is
made of it, and every tensor's place with the size of the file before its name is given out. A type that this project
does not know spoils the one tensor only (``GgufTensor.type`` is None there).

Only the standard library is used, so that a file can be looked at without torch.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantfarm.declare.ggml import TYPES, GgmlType
from quantfarm.errors import CheckpointError
from quantfarm.formats.gguf_header import Header, RawTensor, read_header

_SPLIT = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf")
_AGAIN = "the download may be incomplete: fetch it again"
_SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """One tensor of a file.

    Attributes:
        name: as the file has it, such as ``blk.0.attn_q.weight``.
        shape: sides in the order of torch, so that the last one runs along the blocks; the file has them reversed.
        number: the type id of the file.
        type: the block type, or None for an id that is not known or that does not fit the bytes.
        path: the file that holds it; one of several where the model is split.
        offset: first byte in that file.
        size: bytes of data; for an unknown type those up to the next tensor.
    """

    name: str
    shape: tuple[int, ...]
    number: int
    type: GgmlType | None
    path: Path
    offset: int
    size: int

    @property
    def values(self) -> int:
        """How many numbers it holds."""
        return _product(self.shape)

    @property
    def type_name(self) -> str:
        """The name of the type, or its id where it has none here."""
        return self.type.name if self.type else f"type {self.number}"


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """An opened file, or all parts of a split one.

    Attributes:
        path: the file that was asked for.
        parts: every file, in order.
        version: 2 or 3.
        big_endian: whether numbers, also those inside blocks, have their high byte first.
        metadata: by key; arrays are tuples.
        tensors: by name, in file order.
    """

    path: Path
    parts: tuple[Path, ...]
    version: int
    big_endian: bool
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    _maps: dict[Path, mmap.mmap] = field(default_factory=dict, repr=False, compare=False)

    @property
    def total_size(self) -> int:
        """Bytes of all parts."""
        return sum(part.stat().st_size for part in self.parts)

    @property
    def architecture(self) -> str:
        """What ``general.architecture`` says; empty where it says nothing."""
        return str(self.metadata.get("general.architecture", ""))

    def raw(self, name: str) -> memoryview:
        """Return a tensor's bytes, mapped, not copied.

        Raises:
            KeyError: no such tensor.
            CheckpointError: its type is unknown, or the file is big-endian.
        """
        tensor = self.tensors[name]
        if tensor.type is None:
            raise CheckpointError(f"cannot read {name} of {tensor.path.name}", lines=[unknown_type(tensor)])
        if self.big_endian:
            raise CheckpointError(
                f"cannot read {name} of {tensor.path.name}: the file is big-endian",
                lines=["byte order: needs little-endian blocks, got big-endian ones"],
                remedy="convert the file to little-endian",
            )
        if tensor.path not in self._maps:
            self._maps[tensor.path] = _mapped(tensor.path)
        return memoryview(self._maps[tensor.path])[tensor.offset : tensor.offset + tensor.size]


def open_gguf(path: Path) -> GgufFile:
    """Open a file, with its siblings where the model is split over several, and check all of it but the values.

    Raises:
        CheckpointError: empty, no GGUF file, cut, damaged, or a part is missing; says which, with both numbers.
    """
    first = _open_one(path)
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return first
    files = [_open_one(part) for part in _siblings(path, count)]
    lines = [
        f"{f.path.name}: split.no needs {i} of {count}, got {f.metadata.get('split.no')} of "
        f"{f.metadata.get('split.count')}"
        for i, f in enumerate(files)
        if (f.metadata.get("split.no"), f.metadata.get("split.count")) != (i, count)
    ]
    tensors: dict[str, GgufTensor] = {}
    for file in files:
        lines += [
            f"{name}: in {tensors[name].path.name} and {file.path.name}"
            for name in file.tensors.keys() & tensors.keys()
        ]
        tensors.update(file.tensors)
    wanted = first.metadata.get("split.tensors.count", len(tensors))
    if wanted != len(tensors):
        lines.append(f"split.tensors.count: needs {wanted} tensors, got {len(tensors)}")
    _refuse(path, "its parts do not belong together", lines, "fetch all parts from one place again")
    return GgufFile(
        path=path,
        parts=tuple(file.path for file in files),
        version=first.version,
        big_endian=first.big_endian,
        metadata=files[0].metadata,
        tensors=tensors,
    )


def matrices(file: GgufFile) -> dict[str, GgufTensor]:
    """Return the packed matrices that are multiplied with, by module name: embeddings are looked up in instead."""
    return {
        name.removesuffix(".weight"): tensor
        for name, tensor in file.tensors.items()
        if tensor.type is not None and tensor.type.block > 1 and len(tensor.shape) == 2 and "_embd" not in name
    }


def unknown_type(tensor: GgufTensor) -> str:
    """Return the line of an error for a tensor that nothing here decodes."""
    known = ", ".join(f"{t.number} {t.name}" for t in TYPES)
    candidates = [str(t) for t in TYPES if t.number == tensor.number]
    if candidates:
        return (
            f"{tensor.name}: type {tensor.number} is {' or '.join(candidates)}, and neither fits the {tensor.size} "
            f"bytes up to the next tensor for {tensor.values} values"
        )
    return f"{tensor.name}: unknown type {tensor.number}, {tensor.size} bytes up to the next tensor; known: {known}"


def _siblings(path: Path, count: int) -> list[Path]:
    match = _SPLIT.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise CheckpointError(
            f"cannot open {path}: part of a model of {count} files under another name",
            lines=[f"name: needs NAME-00001-of-{count:05d}.gguf, got {path.name}"],
            remedy="give the parts the names that they were published under",
        )
    parts = [path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    lines = [f"missing part {i} of {count}: {part.name}" for i, part in enumerate(parts, 1) if not part.is_file()]
    _refuse(path, "parts of the model are missing", lines, "fetch the missing parts into the same folder")
    return parts


def _open_one(path: Path) -> GgufFile:
    if not path.is_file():
        found = "a folder" if path.exists() else "nothing"
        raise CheckpointError(f"cannot open {path}: no such file", lines=[f"path: needs a .gguf file, got {found}"])
    total = path.stat().st_size
    if total == 0:
        raise CheckpointError(f"cannot open {path}: the file is empty", lines=["size: needs a header, got 0 bytes"])
    with _mapped(path) as content:
        header = read_header(content, path)
    return GgufFile(
        path=path,
        parts=(path,),
        version=header.version,
        big_endian=header.big_endian,
        metadata=header.metadata,
        tensors={tensor.name: tensor for tensor in _placed(header, path, total)},
    )


def _placed(header: Header, path: Path, total: int) -> list[GgufTensor]:
    """Return the tensors with their types and places; refuse places that overlap, are not aligned or not there."""
    in_place = sorted(header.tensors, key=lambda raw: raw.offset)
    # Where the next tensor begins, or the file ends, bounds each one.
    ends = [header.data + raw.offset for raw in in_place[1:]] + [total] * bool(in_place)
    placed = [
        _tensor(raw, header, path, end, last=i == len(in_place) - 1)
        for i, (raw, end) in enumerate(zip(in_place, ends, strict=True))
    ]
    _refuse(path, "damaged tensor table", list(_misplaced(header, placed, ends)), _AGAIN)
    needed = max((t.offset + t.size for t in placed), default=header.data)
    padded = -(-needed // header.alignment) * header.alignment
    if total < needed or needed < total < padded:
        # Writers fill up the last block of alignment or end at the data; anything between is a cut.
        wanted = padded if needed < total else needed
        cut = [t.name for t in placed if t.offset + t.size > total]
        lines = [f"size: needs {wanted} bytes, got {total}"]
        if cut:
            lines.append(f"{len(cut)} of {len(placed)} tensors are cut or missing, the first is {cut[0]}")
        raise CheckpointError(f"cannot open {path}: the file is truncated", lines=lines, remedy=_AGAIN)
    order = {tensor.name: tensor for tensor in placed}
    return [order[raw.name] for raw in header.tensors]


def _tensor(raw: RawTensor, header: Header, path: Path, end: int, *, last: bool) -> GgufTensor:
    start = header.data + raw.offset
    kind = _type_of(raw, end - start, header.alignment, last=last)
    shape = tuple(reversed(raw.sides))
    size = max(end - start, 0) if kind is None else _bytes(kind, shape)
    return GgufTensor(name=raw.name, shape=shape, number=raw.number, type=kind, path=path, offset=start, size=size)


def _type_of(raw: RawTensor, room: int, alignment: int, *, last: bool) -> GgmlType | None:
    """Return the type of an id. Where two types share it, the bytes up to the next tensor decide, never the id."""
    candidates = [kind for kind in TYPES if kind.number == raw.number]
    if len(candidates) <= 1:
        return candidates[0] if candidates else None
    sizes = {k: _bytes(k, tuple(reversed(raw.sides))) for k in candidates if raw.sides and raw.sides[0] % k.block == 0}
    fitting = [kind for kind, size in sizes.items() if -(-size // alignment) * alignment == room or size == room]
    if sizes and last and room < min(sizes.values()):
        return next(iter(sizes))  # too short for either: the file is cut, which is told with the numbers of one of them
    return fitting[0] if len(fitting) == 1 else None


def _misplaced(header: Header, placed: list[GgufTensor], ends: list[int]) -> Iterator[str]:
    for i, (tensor, end) in enumerate(zip(placed, ends, strict=True)):
        kind, k = tensor.type, tensor.shape[-1] if tensor.shape else 1
        if kind is not None and k % kind.block:
            yield f"{tensor.name}: the first side (K) of {kind.name} needs a multiple of {kind.block}, got {k}"
        if (tensor.offset - header.data) % header.alignment:
            offset = tensor.offset - header.data
            yield f"{tensor.name}: offset needs a multiple of {header.alignment}, got {offset}"
        if i + 1 < len(placed) and tensor.offset + tensor.size > end:
            yield (
                f"{tensor.name}: {tensor.size} bytes from {tensor.offset} on reach into {placed[i + 1].name}, "
                f"which begins at {end}"
            )


def _bytes(kind: GgmlType, shape: tuple[int, ...]) -> int:
    rows, k = _product(shape[:-1]), shape[-1] if shape else 1
    return rows * kind.bytes_of(k)


def _product(sides: tuple[int, ...]) -> int:
    product = 1
    for side in sides:
        product *= side
    return product


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _refuse(path: Path, what: str, lines: list[str], remedy: str) -> None:
    if lines:
        shown = lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more"]
        raise CheckpointError(f"cannot open {path}: {what}", lines=shown, remedy=remedy)
