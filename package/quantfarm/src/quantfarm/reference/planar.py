"""Closed form of GPTQ_P, planar codes of 2 to 8 bits (formats, section 3)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quantfarm.reference.closed_forms import affine, group_of_inputs
from quantfarm.reference.stored import Arrays, Floats, Integers, Stored, unsigned

_PLANES: Mapping[int, tuple[tuple[int, int], ...]] = {
    2: ((2, 0),),
    3: ((2, 0), (1, 2)),
    4: ((4, 0),),
    5: ((4, 0), (1, 4)),
    6: ((4, 0), (2, 4)),
    7: ((4, 0), (2, 4), (1, 6)),
    8: ((8, 0),),
}
"""Code width to the planes of a block, (width, bit offset), in the order of their words."""


def gptq_planar(arrays: Arrays, says: Stored) -> Floats:
    """Decode GPTQ_P; its zero points are true ones."""
    q = _fields(unsigned(arrays["qweight"]), says.bits)
    z = _fields(unsigned(arrays["qzeros"]).T, says.bits).T
    k = q.shape[0]
    return affine(q, z, group_of_inputs(arrays, says, k), arrays["scales"])


def _fields(words: Integers, bits: int) -> Integers:
    """Decode 32 fields [32*blocks, C] from each block of ``bits`` words [bits*blocks, C]."""
    found = np.zeros((words.shape[0] // bits * 32, words.shape[1]), dtype=np.int64)
    first_word = 0
    for width, offset in _PLANES[bits]:
        per_word = 32 // width
        for code in range(32):
            word = words[first_word + code // per_word :: bits]
            found[code::32] += (word >> (width * (code % per_word))) % 2**width << offset
        first_word += width
    return found
