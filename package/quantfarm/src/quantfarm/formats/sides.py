"""Do the headers of a packed layer fit its settings? By numbers of values, which no layout of a format changes."""

from __future__ import annotations

from collections.abc import Mapping

from quantfarm.declare.names import FORMAT
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.facts import LayerFacts, TensorFact

_UNPADDED = (FORMAT.GPTQ, FORMAT.GPTQ_V2, FORMAT.GPTQ_P, FORMAT.GEMM)
"""Formats whose scales and zero points have no padding, so that their numbers follow from K, N and the group."""
_WORD = 32


def misfits(tensors: Mapping[str, TensorFact], config: QuantConfig, layer: LayerFacts) -> list[str]:
    """Return a line for each tensor whose number of values is not the one that K, N and the settings give."""
    expected = {"bias": layer.n}
    if config.format in _UNPADDED:
        groups = 1 if config.group_size == -1 else -(-layer.k // config.group_size)
        expected |= {"scales": groups * layer.n, "qzeros": groups * layer.n * config.bits // _WORD, "g_idx": layer.k}
        expected["qweight"] = -(-layer.k * config.bits // _WORD) * layer.n
    sides = f"K={layer.k}, N={layer.n}, {layer.scheme}"
    return [
        f"{suffix} needs {count} values ({sides}), got {list(tensors[suffix].shape)}"
        for suffix, count in expected.items()
        if suffix in tensors and _values(tensors[suffix]) != count
    ]


def _values(fact: TensorFact) -> int:
    product = 1
    for side in fact.shape:
        product *= side
    return product
