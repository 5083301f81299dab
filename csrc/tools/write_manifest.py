"""Write manifest.json from a finished native library: what it really holds, read from its dynamic symbols.

Only the standard library. Names that the build claims and the library lacks end the build.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import struct
import sys
from pathlib import Path

SCHEMA = 1
_DYNSYM = 11
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def defined_symbols(elf: bytes) -> set[str]:
    """Return the names that a 64-bit little-endian ELF library defines for others (its dynamic symbol table)."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    table_at = struct.unpack_from("<Q", elf, 0x28)[0]
    count = struct.unpack_from("<H", elf, 0x3C)[0]
    sections = [_SECTION.unpack_from(elf, table_at + i * _SECTION.size) for i in range(count)]
    names: set[str] = set()
    for section in sections:
        if section[1] != _DYNSYM:
            continue
        strings_at = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], _SYMBOL.size):
            name, info, _other, home, _value, _size = _SYMBOL.unpack_from(elf, at)
            # Home 0 is an import; binding 0 is local.
            if home and info >> 4:
                end = elf.index(b"\0", strings_at + name)
                names.add(elf[strings_at + name : end].decode())
    return names


def registered_operators(elf: bytes, kernel: str) -> list[str]:
    """Return the operators of a kernel: schema strings are stored in the library as they are registered."""
    found = re.findall(rb"\0?(" + re.escape(kernel).encode() + rb"_[a-z0-9_]+)\([^\0]*\) -> [^\0]*\0", elf)
    return sorted({name.decode() for name in found})


def kernel_rows(elf: bytes, family: str, claimed: list[str]) -> list[dict[str, object]]:
    """Return one row a kernel: its operators, its archs and the symbol that proves each arch.

    Raises:
        ValueError: a claimed (kernel, arch) has no symbol in the library.
    """
    symbols = defined_symbols(elf)
    rows: dict[str, dict[str, str]] = {}
    for claim in claimed:
        kernel, arch = claim.split(":")
        symbol = f"quantfarm_{family}_{kernel}_{arch.removeprefix('x86_64_')}"
        if symbol not in symbols:
            raise ValueError(f"{kernel} for {arch}: needs the symbol {symbol}, the library has none of that name")
        rows.setdefault(kernel, {})[arch] = symbol
    return [
        {"kernel": kernel, "ops": registered_operators(elf, kernel), "archs": list(archs), "symbols": archs}
        for kernel, archs in sorted(rows.items())
    ]


def manifest(options: argparse.Namespace) -> dict[str, object]:
    """Build the whole record."""
    elf = options.library.read_bytes()
    skipped = [dict(zip(("kernel", "arch", "reason"), s.split(":", 2), strict=True)) for s in options.skipped]
    return {
        "schema": SCHEMA,
        "package": options.package,
        "version": options.version,
        "family": options.family,
        "library": options.library.name,
        "sha256": hashlib.sha256(elf).hexdigest(),
        "bytes": len(elf),
        "torch_abi": options.torch_abi,
        "built_with": {
            "torch": options.torch_built,
            "compiler": options.compiler,
            "compiler_version": options.compiler_version,
        },
        "kernels": kernel_rows(elf, options.family, options.kernel),
        "skipped": skipped,
    }


def main() -> int:
    """Read the options, write the file; a false claim ends with one sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    for name in ("package", "version", "family", "torch-abi", "torch-built", "compiler", "compiler-version"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--kernel", action="append", default=[], help="kernel:arch that was compiled")
    parser.add_argument("--skipped", action="append", default=[], help="kernel:arch:reason that was left out")
    options = parser.parse_args()
    try:
        record = manifest(options)
    except ValueError as error:
        print(f"write_manifest: {error}", file=sys.stderr)
        return 1
    options.out.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
