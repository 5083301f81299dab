"""Decode of stored tensors to float64 by the closed forms of the format description, field by field.

Everything happens in 64-bit integers that hold the unsigned value of a word, then in float64: a scale of any stored
dtype and an integer difference have an exact product there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from quantfarm.declare.names import FORMAT, METHOD, normalize_format, normalize_method

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Tensor = torch.Tensor | npt.NDArray[Any]

_AWQ_NIBBLE_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)
_MINUS_ONE_WORD = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What the settings say about the bytes.

    Attributes:
        method, format: members or their strings.
        bits, group_size: code width; inputs per group, -1 for one group.
        sym: part of every scheme; the stored zero points are decoded as they are, whatever it says.
        zeros_rule: ``per_field`` or ``word_wise``, the inverse of the minus-one of GPTQ v1.
        k: inputs; needed when the last word is padded and there is no g_idx.
    """

    method: METHOD | str
    format: FORMAT | str
    bits: int
    group_size: int
    sym: bool | None = None
    zeros_rule: str = "per_field"
    k: int | None = None


def decode(tensors: Mapping[str, Tensor], **stored: Any) -> Floats:
    """Return W as float64 [N, K]: ``(q - z) * s`` for every weight.

    Args:
        tensors: by suffix (qweight, qzeros, scales, g_idx), as torch tensors or numpy arrays, straight from the file.
        **stored: the fields of ``Stored``.

    Raises:
        ValueError: no closed form here for the format or the code width.
    """
    says = Stored(**stored)
    arrays = {name: as_numpy(tensor) for name, tensor in tensors.items()}
    pair = (normalize_method(says.method), normalize_format(says.format))
    if pair in ((METHOD.GPTQ, FORMAT.GPTQ), (METHOD.GPTQ, FORMAT.GPTQ_V2)):
        q, z, group = _gptq(arrays, says, minus_one=pair[1] is FORMAT.GPTQ)
    elif pair == (METHOD.AWQ, FORMAT.GEMM) and says.bits == 4:
        q, z, group = _awq(arrays, says)
    else:
        raise ValueError(f"no closed form for {pair[0]}, {pair[1]}, {says.bits} bits")
    scales = arrays["scales"].astype(np.float64)
    decoded: Floats = ((q - z[group]).astype(np.float64) * scales[group]).T
    return decoded


def as_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """Return a tensor as a numpy array without losing a bit; bfloat16, which numpy lacks, is widened to float32."""
    if isinstance(tensor, np.ndarray):
        return tensor
    host = tensor.detach().cpu()
    widened: npt.NDArray[Any] = (host.to(torch.float32) if host.dtype is torch.bfloat16 else host).numpy()
    return widened


def _gptq(
    arrays: Mapping[str, npt.NDArray[Any]], says: Stored, *, minus_one: bool
) -> tuple[Integers, Integers, Integers]:
    """Return codes [K, N], zero points [G, N] and the group of every input [K]."""
    fields = _fields_of_three_bits if says.bits == 3 else _fields_within_words(says.bits)
    words, zero_words = _unsigned(arrays["qweight"]), _unsigned(arrays["qzeros"])
    groups, n = arrays["scales"].shape
    index = arrays.get("g_idx")
    k = says.k or (len(index) if index is not None else words.shape[0] * 32 // says.bits)
    if index is None:
        group = np.arange(k, dtype=np.int64) // (k if says.group_size == -1 else says.group_size)
    else:
        group = index.astype(np.int64)
        group = np.where(group < 0, group + groups, group)
    q = fields(words)[:k]
    if minus_one and says.zeros_rule == "word_wise" and says.bits != 3:
        zero_words = (zero_words + _MINUS_ONE_WORD[says.bits]) % 2**32
        return q, fields(zero_words.T)[:n].T, group
    z = fields(zero_words.T)[:n].T
    return q, (z + 1) % 2**says.bits if minus_one else z, group


def _awq(arrays: Mapping[str, npt.NDArray[Any]], says: Stored) -> tuple[Integers, Integers, Integers]:
    q = _awq_fields(_unsigned(arrays["qweight"]))
    z = _awq_fields(_unsigned(arrays["qzeros"]))
    k = q.shape[0]
    return q, z, np.arange(k, dtype=np.int64) // (k if says.group_size == -1 else says.group_size)


def _unsigned(words: npt.NDArray[Any]) -> Integers:
    """Return stored int32 words as the unsigned numbers they stand for."""
    return words.astype(np.int64) % 2**32


def _fields_within_words(bits: int) -> Callable[[Integers], Integers]:
    """Return the decoder of words whose row r holds field r*(32/bits) + j at bits j*bits."""

    def fields(words: Integers) -> Integers:
        per_word = 32 // bits
        found = np.zeros((words.shape[0] * per_word, words.shape[1]), dtype=np.int64)
        for j in range(per_word):
            found[j::per_word] = (words // 2 ** (j * bits)) % 2**bits
        return found

    return fields


def _fields_of_three_bits(words: Integers) -> Integers:
    """Decode 32 fields from each three rows A, B, C; fields 10 and 21 straddle two words."""
    blocks = -(-words.shape[0] // 3)
    padded = np.zeros((blocks * 3, words.shape[1]), dtype=np.int64)
    padded[: words.shape[0]] = words
    a, b, c = padded[0::3], padded[1::3], padded[2::3]
    found = np.zeros((blocks * 32, words.shape[1]), dtype=np.int64)
    for i in range(10):
        found[i::32] = (a >> (3 * i)) % 8
        found[11 + i :: 32] = (b >> (3 * i + 1)) % 8
        found[22 + i :: 32] = (c >> (3 * i + 2)) % 8
    found[10::32] = a // 2**30 + 4 * (b % 2)
    found[21::32] = b // 2**31 + 2 * (c % 4)
    return found


def _awq_fields(words: Integers) -> Integers:
    """Decode eight outputs from each word: output 8c + j lies in the nibble that the table gives for j."""
    found = np.zeros((words.shape[0], words.shape[1] * 8), dtype=np.int64)
    for j, nibble in enumerate(_AWQ_NIBBLE_OF_OUTPUT):
        found[:, j::8] = (words // 16**nibble) % 16
    return found
