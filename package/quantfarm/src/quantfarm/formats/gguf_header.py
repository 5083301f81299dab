"""The header of one .gguf file: everything before the data, read once, with every count checked before it is used."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from quantfarm.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_ALIGNMENT = 32
_SIDES = 4
_DEPTH = 4
_AGAIN = "the download may be incomplete: fetch it again"

_NUMBERS: Mapping[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Metadata value types that are plain numbers, as codes of ``struct``."""
_STRING, _ARRAY = 8, 9
_SMALLEST_STRING, _SMALLEST_ARRAY, _SMALLEST_PAIR, _SMALLEST_TENSOR = 8, 12, 13, 24


@dataclass(frozen=True, kw_only=True)
class RawTensor:
    """An entry of the tensor table: sides as stored (K first), type id, offset from the start of the data."""

    name: str
    sides: tuple[int, ...]
    number: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class Header:
    """What precedes the data; ``data`` is where that begins."""

    version: int
    big_endian: bool
    metadata: Mapping[str, Any]
    tensors: tuple[RawTensor, ...]
    alignment: int
    data: int


def read_header(content: mmap.mmap | bytes, path: Path) -> Header:
    """Read the header of a mapped file.

    Raises:
        CheckpointError: not GGUF, another version, cut inside the header, or values that can not be; says where.
    """
    start = bytes(content[: len(MAGIC)])
    if start != MAGIC[: len(start)] or not start:
        shown = start.hex(" ")
        raise CheckpointError(f"cannot open {path}: not a GGUF file", lines=[f"magic: needs {MAGIC!r}, got {shown}"])
    stream = _Stream(content, path)
    stream.position = len(MAGIC)
    version = stream.number("I", "version")
    if version not in VERSIONS and int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
        stream.order, stream.position = ">", len(MAGIC)
        version = stream.number("I", "version")
    if version not in VERSIONS:
        raise CheckpointError(
            f"cannot open {path}: GGUF of another version",
            lines=[f"version: needs {' or '.join(map(str, VERSIONS))}, got {version}"],
            remedy="convert the file with a present llama.cpp",
        )
    tensors = stream.count("Q", "number of tensors", _SMALLEST_TENSOR)
    pairs = stream.count("Q", "number of metadata entries", _SMALLEST_PAIR)
    metadata = _metadata(stream, pairs)
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
        stream.refuse("general.alignment", "a positive multiple of 8", alignment)
    table = _table(stream, tensors)
    return Header(
        version=version,
        big_endian=stream.order == ">",
        metadata=metadata,
        tensors=table,
        alignment=alignment,
        data=-(-stream.position // alignment) * alignment,
    )


def _metadata(stream: _Stream, pairs: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for i in range(pairs):
        key = stream.text(f"key of metadata entry {i}")
        if key in metadata:
            stream.refuse(f"metadata entry {i}", "a key of its own", f"{key} for the second time")
        metadata[key] = stream.value(stream.number("I", f"type of {key}"), key)
    return metadata


def _table(stream: _Stream, tensors: int) -> tuple[RawTensor, ...]:
    table: dict[str, RawTensor] = {}
    for i in range(tensors):
        name = stream.text(f"name of tensor {i}")
        if name in table:
            stream.refuse(f"tensor {i}", "a name of its own", f"{name} for the second time")
        sides = stream.number("I", f"number of sides of {name}")
        if sides > _SIDES:
            stream.refuse(f"{name}: number of sides", f"at most {_SIDES}", sides)
        shape = tuple(stream.number("Q", f"a side of {name}") for _ in range(sides))
        if not all(shape) or any(side >= 1 << 40 for side in shape):
            stream.refuse(f"{name}: sides", "positive numbers below 2^40", list(shape))
        number, offset = stream.number("I", f"type of {name}"), stream.number("Q", f"offset of {name}")
        table[name] = RawTensor(name=name, sides=shape, number=number, offset=offset)
    return tuple(table.values())


class _Stream:
    """A position in the bytes of a file; every step is checked against the end."""

    def __init__(self, content: mmap.mmap | bytes, path: Path) -> None:
        self._content, self._path = content, path
        self.position, self.order = 0, "<"

    def refuse(self, what: str, needs: object, got: object) -> NoReturn:
        """Raise for a value that can not be."""
        line = f"{what}: needs {needs}, got {got} (before byte {self.position})"
        raise CheckpointError(f"cannot open {self._path}: damaged header", lines=[line], remedy=_AGAIN)

    def number(self, code: str, what: str) -> Any:
        """Read one number by its code of ``struct``."""
        return self.numbers(code, 1, what)[0]

    def numbers(self, code: str, count: int, what: str) -> tuple[Any, ...]:
        """Read several numbers of one kind."""
        layout = f"{self.order}{count}{code}"
        at = self._advance(struct.calcsize(layout), what)
        return struct.unpack_from(layout, self._content, at)

    def count(self, code: str, what: str, smallest: int) -> int:
        """Read how many things follow; refuse more than the bytes that are left can hold."""
        count: int = self.number(code, what)
        total, needed = len(self._content), self.position + count * smallest
        if needed > total:
            raise CheckpointError(
                f"cannot open {self._path}: the file is truncated, or its header damaged",
                lines=[f"{what}: {count} need at least {needed} bytes, got {total}"],
                remedy=_AGAIN,
            )
        return count

    def text(self, what: str) -> str:
        """Read a string: its length in bytes, then UTF-8."""
        length = self.count("Q", f"length of the {what}", 1)
        at = self._advance(length, what)
        try:
            return self._content[at : at + length].decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(what, "UTF-8", self._content[at : at + min(length, 16)].hex(" "))

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        """Read one metadata value of a type id."""
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind], key)
        if kind == _STRING:
            return self.loose_text(key)
        if kind != _ARRAY or depth >= _DEPTH:
            self.refuse(f"{key}: value type", f"0 to {max(_NUMBERS)}, arrays no deeper than {_DEPTH}", kind)
        inner = self.number("I", f"type inside {key}")
        if inner in _NUMBERS:
            code = _NUMBERS[inner]
            return self.numbers(code, self.count("Q", f"length of {key}", struct.calcsize(f"<{code}")), key)
        smallest = _SMALLEST_STRING if inner == _STRING else _SMALLEST_ARRAY
        count = self.count("Q", f"length of {key}", smallest)
        if inner == _STRING:
            return self._texts(count, key)
        return tuple(self.value(inner, key, depth + 1) for _ in range(count))

    def loose_text(self, what: str) -> str:
        """Read a string whose bytes need not be UTF-8: tokens of a vocabulary may be parts of characters."""
        return self._texts(1, what)[0]

    def _texts(self, count: int, what: str) -> tuple[str, ...]:
        """Read strings in one loop; a vocabulary has a hundred thousand."""
        layout, content, total, at = struct.Struct(f"{self.order}Q"), self._content, len(self._content), self.position
        found = []
        for _ in range(count):
            if at + layout.size > total:
                self._advance(at + layout.size - self.position, what)
            end = at + layout.size + layout.unpack_from(content, at)[0]
            if end > total:
                self._advance(end - self.position, what)
            found.append(content[at + layout.size : end].decode("utf-8", errors="surrogateescape"))
            at = end
        self.position = at
        return tuple(found)

    def _advance(self, size: int, what: str) -> int:
        """Return the position and step over ``size`` bytes; raise where the file ends before."""
        at, total = self.position, len(self._content)
        if at + size > total:
            raise CheckpointError(
                f"cannot open {self._path}: the file is truncated inside its header",
                lines=[f"{what}: needs at least {at + size} bytes, got {total}"],
                remedy=_AGAIN,
            )
        self.position = at + size
        return at
