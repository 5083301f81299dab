"""Exact targets: parse, print, compare, and the one rule that says which compiled code serves which device."""

from __future__ import annotations

import re
from dataclasses import dataclass

from quantfarm.declare.names import DEVICE, BadType, UnknownName

_CUDA = re.compile(r"sm_(\d+)(\d)([af]?)")
_ROCM = re.compile(r"gfx(\d{1,2})([0-9a-f])([0-9a-f])")

CPU_LEVELS = ("x86_64", "x86_64_avx2", "x86_64_avx512", "x86_64_avx512_bf16", "x86_64_avx512_vnni")
"""Instruction-set levels of x86-64 that CPU code is compiled for."""

CPU_ISAS = ("auto", "avx2", "avx512", "avx512_vnni")
"""The code paths of the CPU library that can be forced; a position is the number the library knows it by."""


@dataclass(frozen=True, kw_only=True, order=True)
class Arch:
    """One exact target of a family: ``sm_90a``, ``gfx1201``, ``x86_64_avx2``.

    Attributes:
        family: the vendor runtime.
        major, minor: the version; for a CPU level, its position in ``CPU_LEVELS`` and 0.
        suffix: ``a`` (exactly this capability), ``f`` (this family), the AMD stepping, or empty.
    """

    family: DEVICE
    major: int
    minor: int
    suffix: str = ""

    def __str__(self) -> str:
        """Return the spelling that compilers and users know."""
        if self.family is DEVICE.CUDA:
            return f"sm_{self.major}{self.minor}{self.suffix}"
        if self.family is DEVICE.ROCM:
            return f"gfx{self.major}{self.minor:x}{self.suffix}"
        if self.family is DEVICE.CPU:
            return CPU_LEVELS[self.major]
        return str(self.family)


def parse_arch(text: object) -> Arch:
    """Read a target: ``sm_90a``, ``9.0``, ``gfx1201``, ``x86_64_avx2``, ``xpu``, ``mps``.

    Raises:
        BadType: not a string.
        UnknownName: a string that is no target.
    """
    if not isinstance(text, str):
        raise BadType(f"arch: needs a string, got {type(text).__name__}")
    name = text.strip().lower()
    if name in CPU_LEVELS:
        return Arch(family=DEVICE.CPU, major=CPU_LEVELS.index(name), minor=0)
    if name in (DEVICE.XPU.value, DEVICE.MPS.value):
        return Arch(family=DEVICE(name), major=0, minor=0)
    dotted = re.fullmatch(r"(\d+)\.(\d)([af]?)", name)
    match = dotted or _CUDA.fullmatch(name)
    if match:
        return Arch(family=DEVICE.CUDA, major=int(match[1]), minor=int(match[2]), suffix=match[3])
    match = _ROCM.fullmatch(name)
    if match:
        return Arch(family=DEVICE.ROCM, major=int(match[1]), minor=int(match[2], 16), suffix=match[3])
    known = "sm_75 ... sm_121, 9.0, gfx950, gfx1201, xpu, mps, " + ", ".join(CPU_LEVELS)
    raise UnknownName(f"arch: unknown target {text!r}; known spellings: {known}")


def code_serves(code: Arch, device: Arch) -> bool:
    """Say whether compiled code for ``code`` runs on ``device``.

    The rule: CUDA code for X.y runs on X.z with z >= y; with the suffix ``a`` only on exactly that capability;
    with ``f`` inside its major version. AMD code objects run on exactly their target. A CPU level runs on every
    CPU that has it, which the host's feature set decides, so here only equal or lower positions serve.
    """
    if code.family is not device.family:
        return False
    if code.family is DEVICE.CUDA:
        if code.suffix == "a":
            return (code.major, code.minor) == (device.major, device.minor)
        return code.major == device.major and code.minor <= device.minor
    if code.family is DEVICE.CPU:
        return code.major <= device.major
    return (code.major, code.minor, code.suffix) == (device.major, device.minor, device.suffix)


def best_code(codes: tuple[Arch, ...], device: Arch) -> Arch | None:
    """Return the code that a device should load: exact ``a`` code first, then the highest that serves, else None."""
    serving = [c for c in codes if code_serves(c, device)]
    return max(serving, key=lambda c: (c.suffix == "a", c.major, c.minor), default=None)
