"""Facts of an ELF library, read by pyelftools: machine, names it defines, libraries and glibc versions it needs."""

from __future__ import annotations

import io
from dataclasses import dataclass

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


@dataclass(frozen=True, kw_only=True)
class Library:
    """What one library says about itself.

    Attributes:
        machine: as in wheel tags, such as ``x86_64``.
        defines: names it offers to others; imported ones are not among them.
        needs: the libraries it asks the loader for.
        glibc: the highest glibc version a symbol needs, such as ``(2, 34)``; (0, 0) for none.
        stdcxx: the highest libstdc++ symbol version, as text.
        run_path: a search path baked into the file; a shipped library has none.
    """

    machine: str
    defines: frozenset[str]
    needs: tuple[str, ...]
    glibc: tuple[int, ...]
    stdcxx: str
    run_path: str


def read(data: bytes) -> Library:
    """Read a library from its bytes.

    Raises:
        ValueError: no readable ELF file.
    """
    try:
        elf = ELFFile(io.BytesIO(data))
        defines = frozenset(
            symbol.name
            for section in elf.iter_sections()
            if isinstance(section, SymbolTableSection) and section.name == ".dynsym"
            for symbol in section.iter_symbols()
            if symbol.name and symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"
        )
        needs, run_path = _dynamic(elf)
        versions = _versions(elf)
    except (ELFError, AssertionError, KeyError, IndexError) as error:
        raise ValueError(f"no readable ELF file: {type(error).__name__}: {error}") from error
    glibc = [tuple(map(int, v.removeprefix("GLIBC_").split("."))) for v in versions if v.startswith("GLIBC_2")]
    cxx = [tuple(map(int, v.removeprefix("GLIBCXX_").split("."))) for v in versions if v.startswith("GLIBCXX_3")]
    return Library(
        machine=MACHINES.get(elf["e_machine"], str(elf["e_machine"])),
        defines=defines,
        needs=needs,
        glibc=max(glibc, default=(0, 0)),
        stdcxx=".".join(map(str, max(cxx, default=()))),
        run_path=run_path,
    )


def _dynamic(elf: ELFFile) -> tuple[tuple[str, ...], str]:
    needs, run_path = [], ""
    for section in elf.iter_sections():
        if not isinstance(section, DynamicSection):
            continue
        for tag in section.iter_tags():
            if tag.entry.d_tag == "DT_NEEDED":
                needs.append(str(tag.needed))
            elif tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                run_path = str(getattr(tag, "runpath", "") or getattr(tag, "rpath", ""))
    return tuple(sorted(needs)), run_path


def _versions(elf: ELFFile) -> list[str]:
    return [
        str(auxiliary.name)
        for section in elf.iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for _, auxiliaries in section.iter_versions()
        for auxiliary in auxiliaries
    ]
