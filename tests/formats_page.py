"""docs/formats.md as text, made from the format table, the records and the list of oracles below.

Run as a program it rewrites the page; ``tests/test_formats_page.py`` compares.
"""

from __future__ import annotations

from pathlib import Path

from quantfarm.declare.names import DEVICE, FORMAT, METHOD
from quantfarm.declare.registry import implemented_records
from quantfarm.declare.spec import ArtifactKind
from quantfarm.formats.table import FORMATS, FormatRow
from quantfarm.reference.decoding import CLOSED_FORMS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "formats.md"
_PEER = "files written by GPT-QModel 7.7.0, decoded by a second program (`tests/data`)"
_LITERAL = "a literal second implementation in the tests; no other decoder at hand"
ORACLES: dict[tuple[METHOD, FORMAT, str], str] = {
    (METHOD.GPTQ, FORMAT.GPTQ, ""): _PEER,
    (METHOD.GPTQ, FORMAT.GPTQ_V2, ""): _PEER,
    (METHOD.GPTQ, FORMAT.GPTQ_P, ""): _PEER,
    (METHOD.AWQ, FORMAT.GEMM, ""): _PEER,
    (METHOD.GGUF, FORMAT.GGUF, ""): "`gguf.quants` on random bytes of every type, bit for bit",
    (METHOD.BITSANDBYTES, FORMAT.BITSANDBYTES, ""): "bitsandbytes' own decoders; files written by it (`tests/data`)",
    (METHOD.FP8, FORMAT.FP8, ""): "torch's float8 dtypes, every code",
    (METHOD.GPTQ, FORMAT.MARLIN, ""): "the tensors of GPTQ v1 and of AWQ GEMM under the legacy label",
    (METHOD.AWQ, FORMAT.MARLIN, ""): "the tensors of GPTQ v1 and of AWQ GEMM under the legacy label",
    (METHOD.FP8, FORMAT.MXFP4, ""): "`gguf.quants` for the codes; compressed-tensors 0.20.1 by hand",
    (METHOD.FP8, FORMAT.NVFP4, ""): "torch's float8 for the scales; compressed-tensors 0.20.1 by hand",
    (METHOD.GPTQ, FORMAT.GPTQ_V2, "compressed-tensors"): "compressed-tensors 0.20.1 by hand; a plain loop in the tests",
}
"""What nobody here wrote and every decoded value was compared with; all others have ``_LITERAL``."""

_INTRO = """# Formats

Made from the format table, the records and the tests by `python tests/formats_page.py`; do not edit.

*Decodes exactly*: reader and float64 reference, which share no code, agree on every value (`tests/reference`).
*Writes*: the stored tensors come back bit for bit. *From floats*: `quantfarm convert` rounds plain weights into it.

| method | format | bits | reads | decodes exactly | writes | from floats | portable backend | compared with |
|---|---|---|---|---|---|---|---|---|
"""
_LAST = """
Not read: `nf12` (its public layout is unknown; the record stays refused with `undeclared`), `bitblas` (an arrangement
that only its library can make and read), and files in Marlin's own layout (`is_marlin_format`, tensors `B` and `s`).
"""


def render() -> str:
    """Return the page."""
    return _INTRO + "".join(f"| {' | '.join(_cells(row))} |\n" for row in FORMATS) + _LAST


def _cells(row: FormatRow) -> list[str]:
    method = row.methods[0]
    name = f"{row.format.value} ({row.dialect})" if row.dialect else row.format.value
    decodes = "no" if (method, row.format) not in CLOSED_FORMS else "yes, by a plain loop" if row.dialect else "yes"
    oracle = ORACLES.get((method, row.format, row.dialect), _LITERAL)
    rounds = "yes" if row.packer else "no"
    bits = ", ".join(map(str, row.bits))
    return [
        ", ".join(m.value for m in row.methods),
        name,
        bits,
        "yes",
        decodes,
        "yes" if row.writer else "no",
        rounds,
        _portable(row),
        oracle,
    ]


def _portable(row: FormatRow) -> str:
    """Return the backends that compute the format with torch alone on this project's reference lane."""
    found = [
        spec.backend.value
        for spec in implemented_records()
        if spec.method in row.methods
        and not spec.role
        and row.format in spec.formats
        and spec.artifact.kind is ArtifactKind.NONE
        and {DEVICE.ALL, DEVICE.CPU} & set(spec.devices)
    ]
    return ", ".join(f"`{name}`" for name in dict.fromkeys(found)) or "none"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
