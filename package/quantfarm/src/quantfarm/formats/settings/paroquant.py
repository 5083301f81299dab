"""ParoQuant: its settings and its layers as their headers describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantfarm.declare.scheme import Scheme
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.dialects import integer, wrong
from quantfarm.formats.facts import LayerFacts, TensorFact

_PER_WORD = 8
_ROUNDS = 8
"""Rounds of rotations where the settings state none (formats, section 15)."""


def settings(raw: Mapping[str, Any], stated: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return ``krot`` as a detail, and symmetric zero points where nothing else is stated.

    Raises:
        ConfigError: krot is no positive integer; an odd group, which no pairs fill; an order of activations.
    """
    rounds = integer("krot", raw.get("krot", _ROUNDS), source)
    if rounds < 1:
        raise wrong("krot", "a positive integer", rounds, source)
    size = stated.get("group_size", -1)
    if size != -1 and size % 2:
        raise wrong("group_size", "an even number, since inputs are turned in pairs", size, source)
    if stated.get("desc_act"):
        raise wrong("desc_act", "false for paroquant", True, source)
    return {"details": {"krot": rounds}}


def facts(tensors: Mapping[str, TensorFact], config: QuantConfig) -> LayerFacts:
    """Return K, N and the scheme of a layer from the shape of qweight, int32 [K, N/8]."""
    k, words = tensors["qweight"].shape
    return LayerFacts(
        k=k, n=words * _PER_WORD, scheme=Scheme(bits=config.bits, group_size=config.group_size, sym=config.sym)
    )
