"""QQQ: its settings and its layers as their headers describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantfarm.declare.scheme import Scheme
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.dialects import wrong
from quantfarm.formats.facts import LayerFacts, TensorFact

_GROUPS = (-1, 128)


def settings(raw: Mapping[str, Any], stated: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Check what the method fixes: symmetric codes, groups of 128 or none, no order of activations.

    Raises:
        ConfigError: another group size, asymmetric codes, or an order of activations.
    """
    del raw
    size = stated.get("group_size", -1)
    if size not in _GROUPS:
        raise wrong("group_size", "-1 or 128 for qqq", size, source)
    if stated.get("sym") is False:
        raise wrong("sym", "true for qqq", False, source)
    if stated.get("desc_act"):
        raise wrong("desc_act", "false for qqq", True, source)
    return {}


def facts(tensors: Mapping[str, TensorFact], config: QuantConfig) -> LayerFacts:
    """Return K, N and the scheme of a layer from the shape of B, int32 [K/16, N*2]."""
    rows, columns = tensors["B"].shape
    scheme = Scheme(bits=config.bits, group_size=config.group_size, sym=True)
    return LayerFacts(k=rows * 16, n=columns // 2, scheme=scheme)
