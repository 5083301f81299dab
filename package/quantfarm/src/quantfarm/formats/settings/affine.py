"""GPTQ and AWQ layers as their headers describe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme
from quantfarm.errors import UnknownFormat
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.facts import LayerFacts, TensorFact

_WORD = 32


def refuse_native(names: Iterable[str], where: str) -> None:
    """Raise UnknownFormat for a module in the layout of the old Marlin kernel, which has B instead of qweight."""
    found = set(names)
    if "B" in found and "qweight" not in found:
        raise UnknownFormat(
            f"cannot read {where}: weights in the own layout of the old marlin kernel",
            lines=(f"tensors: needs qweight, qzeros, scales, got {', '.join(sorted(found))}",),
            remedy="use the checkpoint in its original gptq format",
        )


def facts(tensors: Mapping[str, TensorFact], config: QuantConfig) -> LayerFacts:
    """Return K, N and the scheme of a layer from the shape of qweight, by the layout of its format.

    Raises:
        UnknownFormat: the tensors are those of an old kernel's own layout.
    """
    refuse_native(tensors, config.source or "the file")
    rows, columns = tensors["qweight"].shape
    per_word = _WORD // config.bits
    if config.format is FORMAT.GEMV:
        k, n = columns * per_word, rows
    elif config.format in (FORMAT.GEMV_FAST, FORMAT.LLM_AWQ):
        k, n = columns, rows * 4
    elif config.method is METHOD.AWQ:
        k, n = rows, columns * per_word
    else:
        index = tensors.get("g_idx")
        k, n = (index.shape[0] if index else rows * _WORD // config.bits), columns
    scheme = Scheme(bits=config.bits, group_size=config.group_size, sym=config.sym, act_order=config.desc_act)
    return LayerFacts(k=k, n=n, scheme=scheme)
