"""The block types of ggml: names, ids, and how many values lie in how many bytes (formats, section 10).

Ids are upstream's, and three of them are traps. Id 40 is NVFP4, but files of one other writer mean its Q1_0 with
blocks of 32 by it. Id 41 is Q1_0 with blocks of 128. Id 42 is Q2_0, with blocks of 64 upstream and of 128 in a fork.
So a name or an id gives the candidates, and the bytes of a row decide between them (``fitting``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GgmlType:
    """One way to lay values into blocks.

    Attributes:
        name: ggml's name in lower case, such as ``q4_k``; two records share one where only the block differs.
        number: the id in .gguf files.
        block: values in a block.
        size: bytes of a block.
        bits: nominal width of a code.
        group: values that share one scale, a divisor of ``block``.
        sym: True where no minimum is stored, so that values lie around zero.
        halves: where in a block its fp16 scales start; none where the scales are no whole fp16 fields.
    """

    name: str
    number: int
    block: int
    size: int
    bits: int
    group: int
    sym: bool
    halves: tuple[int, ...]

    def bytes_of(self, k: int) -> int:
        """Return the bytes of a row of k values, the last block padded."""
        return -(-k // self.block) * self.size

    def __str__(self) -> str:
        """Return the name with the sizes that tell it from its namesake."""
        return f"{self.name} ({self.size} bytes per {self.block} values)"


def _row(line: str) -> GgmlType:
    name, number, block, size, bits, group, zero, halves = line.split()
    return GgmlType(
        name=name,
        number=int(number),
        block=int(block),
        size=int(size),
        bits=int(bits),
        group=int(group),
        sym=zero == "sym",
        halves=() if halves == "-" else tuple(int(at) for at in halves.split(",")),
    )


TYPES: tuple[GgmlType, ...] = tuple(
    _row(line)
    for line in (
        # name    id  block bytes bits group zero halves
        "f32       0    1     4    32    1  sym  -",
        "f16       1    1     2    16    1  sym  -",
        "q4_0      2   32    18     4   32  sym  0",
        "q4_1      3   32    20     4   32  min  0,2",
        "q5_0      6   32    22     5   32  sym  0",
        "q5_1      7   32    24     5   32  min  0,2",
        "q8_0      8   32    34     8   32  sym  0",
        "q2_k     10  256    84     2   16  min  80,82",
        "q3_k     11  256   110     3   16  sym  108",
        "q4_k     12  256   144     4   32  min  0,2",
        "q5_k     13  256   176     5   32  min  0,2",
        "q6_k     14  256   210     6   16  sym  208",
        "iq2_xxs  16  256    66     2   32  sym  0",
        "iq2_xs   17  256    74     2   16  sym  0",
        "iq3_xxs  18  256    98     3   32  sym  0",
        "iq1_s    19  256    50     1   32  sym  0",
        "iq4_nl   20   32    18     4   32  sym  0",
        "iq3_s    21  256   110     3   32  sym  0",
        "iq2_s    22  256    82     2   16  sym  0",
        "iq4_xs   23  256   136     4   32  sym  0",
        "iq1_m    29  256    56     1   16  sym  -",
        "bf16     30    1     2    16    1  sym  -",
        "tq1_0    34  256    54     2  256  sym  52",
        "tq2_0    35  256    66     2  256  sym  64",
        "mxfp4    39   32    17     4   32  sym  -",
        "nvfp4    40   64    36     4   16  sym  -",
        "q1_0     41  128    18     1  128  sym  0",
        "q1_0     40   32     6     1   32  sym  0",
        "q2_0     42   64    18     2   64  sym  0",
        "q2_0     42  128    34     2  128  sym  0",
    )
)
"""Every type that this project decodes; of two with one id, upstream's comes first."""

NAMES: tuple[str, ...] = tuple(dict.fromkeys(entry.name for entry in TYPES))
"""The names of the types, each once."""

PLAIN: tuple[str, ...] = tuple(dict.fromkeys(entry.name for entry in TYPES if entry.block == 1))
CODED: tuple[str, ...] = tuple(dict.fromkeys(entry.name for entry in TYPES if entry.block > 1))
"""The names of the types that are plain floats, and of those that have codes and scales in blocks."""

_MIXES = {f"{name}_{mix}": name for name in ("q4_k", "q5_k") for mix in ("s", "m")}
_MIXES |= {"q3_k_s": "q3_k", "q3_k_m": "q3_k", "q3_k_l": "q3_k", "q2_k_s": "q2_k"}
_BY_BLOCK = {f"{entry.name}_g{entry.block}": entry for entry in TYPES if entry.name in ("q1_0", "q2_0")}


def named(name: str) -> tuple[GgmlType, ...]:
    """Return the types that a name means, in any case; none for a name that is not known.

    A mix such as ``q4_k_m`` is the type that most of its tensors have. ``q1_0`` and ``q2_0`` mean two types each, of
    which the bytes say the right one; ``q1_0_g128`` and the like name one of them.
    """
    wanted = name.strip().lower()
    if wanted in _BY_BLOCK:
        return (_BY_BLOCK[wanted],)
    wanted = _MIXES.get(wanted, wanted)
    return tuple(entry for entry in TYPES if entry.name == wanted)


def numbered(number: int) -> tuple[GgmlType, ...]:
    """Return the types that an id of a .gguf file may mean, upstream's first; none for an id that is not known."""
    return tuple(entry for entry in TYPES if entry.number == number)


def fitting(types: Sequence[GgmlType], k: int, row_bytes: int) -> tuple[GgmlType, ...]:
    """Return those of the types whose rows of k values have this many bytes.

    With padding two block sizes can give the same bytes (96 values of ``q1_0``: 18 bytes); then a block that divides
    k wins, and where none or both do, both are returned and the bytes can not say which it is.
    """
    fits = tuple(entry for entry in types if entry.bytes_of(k) == row_bytes)
    whole = tuple(entry for entry in fits if k % entry.block == 0)
    return whole or fits


def block_name(entry: GgmlType) -> str:
    """Return the name that means this type alone: with its block where another type shares the plain name."""
    return next((name for name, other in _BY_BLOCK.items() if other is entry), entry.name)
