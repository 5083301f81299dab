"""Small .gguf files written literally, field by field, so that tests can also write what no writer would."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CODES = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i")}
_CODES |= {"f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d")}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A tensor to write: shape in the order of torch, type id, bytes; ``offset`` overrides the true one."""

    name: str
    shape: tuple[int, ...]
    number: int
    data: bytes
    offset: int | None = None


def text(value: str, order: str = "<") -> bytes:
    """Return a string as the format stores it."""
    return struct.pack(f"{order}Q", len(value.encode())) + value.encode()


def value(kind: str, content: Any, order: str = "<") -> bytes:
    """Return a metadata value with its type id; ``kind`` is a number type, ``str``, or ``[kind]`` for an array."""
    if kind == "str":
        return struct.pack(f"{order}I", 8) + text(content, order)
    if kind.startswith("["):
        inner = [value(kind[1:-1], item, order) for item in content]
        number = inner[0][:4] if inner else struct.pack(f"{order}I", 4)
        body = b"".join(item[4:] for item in inner)
        return struct.pack(f"{order}I", 9) + number + struct.pack(f"{order}Q", len(inner)) + body
    number, code = _CODES[kind]
    return struct.pack(f"{order}I{code}", number, content)


def encoded(
    metadata: Mapping[str, tuple[str, Any]], tensors: Iterable[Entry], *, version: int = 3, order: str = "<"
) -> bytes:
    """Return the bytes of a file; ``metadata`` maps a key to its type and value."""
    entries = list(tensors)
    alignment = int(metadata.get("general.alignment", ("u32", 32))[1])
    head = b"GGUF" + struct.pack(f"{order}IQQ", version, len(entries), len(metadata))
    for key, (kind, content) in metadata.items():
        head += text(key, order) + value(kind, content, order)
    data = b""
    for entry in entries:
        offset = len(data) if entry.offset is None else entry.offset
        sides = tuple(reversed(entry.shape))
        head += text(entry.name, order) + struct.pack(f"{order}I{len(sides)}Q", len(sides), *sides)
        head += struct.pack(f"{order}IQ", entry.number, offset)
        data += padded(entry.data, alignment)
    return padded(head, alignment) + data


def padded(content: bytes, alignment: int) -> bytes:
    """Return the bytes filled up to the alignment with zeros."""
    return content + bytes(-len(content) % alignment)


SMALL: dict[str, tuple[str, Any]] = {
    "general.architecture": ("str", "llama"),
    "llama.context_length": ("u32", 64),
    "some.numbers": ("[i16]", [1, -2, 3]),
    "some.words": ("[str]", ["a", "", "longer"]),
    "some.nested": ("[[u8]]", [[1, 2], [3]]),
    "some.fraction": ("f64", 0.5),
    "some.truth": ("bool", True),
}
"""Metadata of the small file: every shape of value."""


def three() -> list[Entry]:
    """Return a plain matrix, a Q8_0 and a Q4_0 one, whose bytes are all different."""
    return [
        Entry(name="plain", shape=(2, 4), number=0, data=struct.pack("<8f", *range(8))),
        Entry(name="eight", shape=(3, 32), number=8, data=bytes(i % 251 for i in range(3 * 34))),
        Entry(name="four", shape=(16, 64), number=2, data=bytes(i % 241 for i in range(16 * 36))),
    ]


def write(path: Path, content: bytes) -> Path:
    """Write a file and return its path."""
    path.write_bytes(content)
    return path
