"""Rows of ggml blocks: which type, how many bytes, and where padding falls off (formats, section 10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from quantfarm.reference import ggml_blocks as plain
from quantfarm.reference import ggml_codebooks as codebooks
from quantfarm.reference import ggml_super_blocks as super_blocks
from quantfarm.reference.stored import Arrays, Floats, Integers, Stored

TYPES: Mapping[str, tuple[tuple[int, int, Callable[[Integers], Floats]], ...]] = {
    "f32": ((1, 4, plain.f32),),
    "f16": ((1, 2, plain.f16),),
    "bf16": ((1, 2, plain.bf16),),
    "q4_0": ((32, 18, plain.q4_0),),
    "q4_1": ((32, 20, plain.q4_1),),
    "q5_0": ((32, 22, plain.q5_0),),
    "q5_1": ((32, 24, plain.q5_1),),
    "q8_0": ((32, 34, plain.q8_0),),
    "q1_0": ((32, 6, plain.q1_0), (128, 18, plain.q1_0)),
    "q1_0_g32": ((32, 6, plain.q1_0),),
    "q1_0_g128": ((128, 18, plain.q1_0),),
    "q2_0": ((64, 18, plain.q2_0), (128, 34, plain.q2_0)),
    "q2_0_g64": ((64, 18, plain.q2_0),),
    "q2_0_g128": ((128, 34, plain.q2_0),),
    "tq1_0": ((256, 54, plain.tq1_0),),
    "tq2_0": ((256, 66, plain.tq2_0),),
    "mxfp4": ((32, 17, plain.mxfp4),),
    "nvfp4": ((64, 36, plain.nvfp4),),
    "q2_k": ((256, 84, super_blocks.q2_k),),
    "q3_k": ((256, 110, super_blocks.q3_k),),
    "q4_k": ((256, 144, super_blocks.q4_k),),
    "q5_k": ((256, 176, super_blocks.q5_k),),
    "q6_k": ((256, 210, super_blocks.q6_k),),
    "iq4_nl": ((32, 18, codebooks.iq4_nl),),
    "iq4_xs": ((256, 136, codebooks.iq4_xs),),
    "iq2_xxs": ((256, 66, codebooks.iq2_xxs),),
    "iq2_xs": ((256, 74, codebooks.iq2_xs),),
    "iq2_s": ((256, 82, codebooks.iq2_s),),
    "iq3_xxs": ((256, 98, codebooks.iq3_xxs),),
    "iq3_s": ((256, 110, codebooks.iq3_s),),
    "iq1_s": ((256, 50, codebooks.iq1_s),),
    "iq1_m": ((256, 56, codebooks.iq1_m),),
}
"""Type to the blocks it may have: elements, bytes, and the closed form of a block."""


def gguf(arrays: Arrays, says: Stored) -> Floats:
    """Decode rows of blocks [N, bytes] of the type that ``code_type`` names.

    Raises:
        ValueError: an unknown type, or a row size that fits none or more than one of its blocks.
    """
    rows = arrays["qweight"].view(np.uint8).astype(np.int64)
    kind = says.code_type.lower()
    if kind not in TYPES:
        raise ValueError(f"no closed form for the ggml type {says.code_type!r}")
    size, values = _block(kind, rows.shape[1], says.k)
    decoded = values(rows.reshape(-1, size)).reshape(len(rows), -1)
    return decoded[:, : says.k or decoded.shape[1]]


def _block(kind: str, row_bytes: int, k: int | None) -> tuple[int, Callable[[Integers], Floats]]:
    """Choose the block by the bytes of a row; one that K fills wins over one that it would have to be padded to."""
    found = TYPES[kind]
    if len(found) > 1 or k is not None:
        found = tuple(entry for entry in found if k is not None and -(-k // entry[0]) * entry[1] == row_bytes)
    if len(found) > 1:
        found = tuple(entry for entry in found if k is not None and k % entry[0] == 0)
    if len(found) != 1:
        raise ValueError(f"no closed form for {kind} in rows of {row_bytes} bytes with K {k}")
    return found[0][1:]
