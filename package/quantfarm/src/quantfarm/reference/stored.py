"""What the oracle is told about stored tensors, and how it sees them: numpy arrays without a lost bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from quantfarm.declare.names import FORMAT, METHOD

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Tensor = torch.Tensor | npt.NDArray[Any]
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What the settings say about the bytes.

    Attributes:
        method, format: members or their strings.
        bits, group_size: code width; inputs per group, -1 for one group.
        sym: part of every scheme; the stored zero points are decoded as they are, whatever it says.
        zeros_rule: ``per_field`` or ``word_wise``, the inverse of the minus-one of GPTQ v1.
        k: inputs; needed when the last word is padded and there is no g_idx.
        n: outputs; needed where the tensors do not tell them.
        code_type: the named type inside the format, such as the ggml type ``q4_k``.
        details: settings of the method's own, such as ``weight_scale_semantics``.
    """

    method: METHOD | str
    format: FORMAT | str
    bits: int
    group_size: int
    sym: bool | None = None
    zeros_rule: str = "per_field"
    k: int | None = None
    n: int | None = None
    code_type: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


def as_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """Return a tensor as a numpy array without losing a bit.

    bfloat16, which numpy lacks, is widened to float32; the 8-bit floats become their bytes, uint8.
    """
    if isinstance(tensor, np.ndarray):
        return tensor
    host = tensor.detach().cpu()
    if host.is_floating_point() and host.element_size() == 1:
        stored_bytes: npt.NDArray[Any] = host.contiguous().view(torch.uint8).numpy()
        return stored_bytes
    widened: npt.NDArray[Any] = (host.to(torch.float32) if host.dtype is torch.bfloat16 else host).numpy()
    return widened


def unsigned(words: npt.NDArray[Any]) -> Integers:
    """Return stored int32 words as the unsigned numbers they stand for."""
    return words.astype(np.int64) % 2**32
