"""A quantized source as plain weights in fp32, for rounding them again."""

from __future__ import annotations

from pathlib import Path

import torch

from quantfarm.load.dense_source import DenseSource, open_source
from quantfarm.load.packed_source import is_quantized, open_packed


def open_decoded(path: Path) -> DenseSource:
    """Open a quantized source as plain weights, decoded to fp32, or a plain one as it is.

    Raises:
        As ``open_source`` and ``open_packed``, and what the reader of the format raises.
    """
    if not is_quantized(path):
        return open_source(path)
    packed = open_packed(path)
    decoded = {f"{module}.weight": module for module in packed.packed}
    biases = {f"{module}.bias": names["bias"] for module, names in packed.packed.items() if "bias" in names}

    def tensor(name: str) -> torch.Tensor:
        if name in decoded:
            return packed.read(decoded[name]).decoded().contiguous()
        return packed.read_plain(name)

    def shape(name: str) -> tuple[int, ...]:
        if name not in decoded:
            return packed.checkpoint.shape(name)
        module = decoded[name]
        known = packed.sizes(module)
        if known is None:
            weight = packed.read(module)
            known = weight.k, weight.n
        return known[1], known[0]

    return DenseSource(
        label=packed.label,
        config=packed.model_config,
        linear=tuple(packed.packed),
        names=(*decoded, *biases, *packed.plain),
        tensor=tensor,
        shape=shape,
        copy_rest=packed.copy_rest,
    )
