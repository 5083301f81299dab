"""Small wheels for the tests of the farm: a hand-made ELF library with chosen names, packed with a right RECORD."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm import declarations
from farm.presence import declared_markers

TAG = "py3-none-linux_x86_64"
_STRINGS, _DYNAMIC, _DYNSYM, _PROGBITS = 3, 6, 11, 1
_X86_64, _AARCH64 = 62, 183
_HEAD, _SECTION, _SYMBOL = 64, 64, 24


def library(names: Sequence[str], needs: Sequence[str] = ("libc.so.6",), machine: int = _X86_64) -> bytes:
    """Return an ELF shared library that defines the names and asks for the libraries; it holds no code."""
    strings, places = b"\0", {}
    for text in (*names, *needs):
        places[text] = len(strings)
        strings += text.encode() + b"\0"
    symbols = bytes(_SYMBOL) + b"".join(struct.pack("<IBBHQQ", places[n], 0x12, 0, 1, 0x1000, 8) for n in names)
    dynamic = b"".join(struct.pack("<QQ", 1, places[n]) for n in needs) + struct.pack("<QQ", 5, 0) + bytes(16)
    labels = b"\0.text\0.dynsym\0.dynstr\0.dynamic\0.shstrtab\0"
    bodies = [
        (".text", _PROGBITS, b"\xc3" * 16, 0),
        (".dynsym", _DYNSYM, symbols, 3),
        (".dynstr", _STRINGS, strings, 0),
        (".dynamic", _DYNAMIC, dynamic, 3),
        (".shstrtab", _STRINGS, labels, 0),
    ]
    data, rows = b"", [bytes(_SECTION)]
    for name, kind, body, link in bodies:
        entry = {_DYNSYM: _SYMBOL, _DYNAMIC: 16}.get(kind, 0)
        at = labels.index(name.encode())
        rows.append(struct.pack("<IIQQQQIIQQ", at, kind, 2, 0, _HEAD + len(data), len(body), link, 1, 8, entry))
        data += body + bytes(-len(body) % 8)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    table = _HEAD + len(data)
    head += struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, table, 0, _HEAD, 0, 0, _SECTION, len(rows), len(rows) - 1
    )
    return head + data + b"".join(rows)


@dataclass
class Doctored:
    """The parts of a back-end wheel, each of which a test may spoil before it is packed."""

    names: list[str]
    manifest: dict[str, Any]
    needs: tuple[str, ...] = ("libc.so.6", "libtorch.so")
    machine: int = _X86_64
    tag: str = TAG
    extra: dict[str, bytes] = field(default_factory=dict)
    without_library: bool = False
    digest: str = ""

    def write(self, folder: Path) -> Path:
        """Pack the wheel into a folder and return its path."""
        elf = library(self.names, self.needs, self.machine)
        files = {"quantfarm_cpu/__init__.py": b"", **self.extra}
        if not self.without_library:
            files["quantfarm_cpu/libquantfarm_cpu.so"] = elf
        manifest = {"sha256": self.digest or hashlib.sha256(elf).hexdigest(), "bytes": len(elf), **self.manifest}
        files["quantfarm_cpu/manifest.json"] = json.dumps(manifest).encode()
        return pack(folder / f"quantfarm_cpu-{manifest['version']}-{self.tag}.whl", files)


def good() -> Doctored:
    """Return a wheel that holds exactly what is declared."""
    declared = declarations.read()
    markers = declared_markers(declared, "cpu", "cpu")
    kernels: dict[str, dict[str, Any]] = {}
    for record in declared["records"]:
        for arch in (arch for name, arch in markers if name == record["name"]):
            row = kernels.setdefault(record["kernel"], {"archs": [], "ops": list(record["artifact"]["ops"])})
            row["archs"] = list(dict.fromkeys([*row["archs"], arch]))
    return Doctored(
        names=sorted(set(markers.values())),
        manifest={
            "version": declared["version"],
            "library": "libquantfarm_cpu.so",
            "kernels": [{"kernel": name, **row} for name, row in kernels.items()],
            "skipped": [],
        },
    )


def pack(path: Path, files: Mapping[str, bytes]) -> Path:
    """Write a wheel with WHEEL, METADATA and a right RECORD."""
    name, version, *tag = path.stem.split("-")
    info = f"{name}-{version}.dist-info"
    inside = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nTag: {'-'.join(tag)}\n".encode(),
    }
    table = io.StringIO()
    writer = csv.writer(table)
    for member, data in inside.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        writer.writerow([member, f"sha256={digest}", len(data)])
    writer.writerow([f"{info}/RECORD", "", ""])
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in {**inside, f"{info}/RECORD": table.getvalue().encode()}.items():
            archive.writestr(member, data)
    return path
