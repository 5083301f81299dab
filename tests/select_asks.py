"""The short spelling of requests that the golden table uses: ``gptq/gptq W4 g128 asym bf16 K4096 on:cuda:1``."""

from __future__ import annotations

from typing import Any

from quantfarm.declare.names import normalize_format, normalize_method
from quantfarm.declare.scheme import Scheme, WeightKind
from quantfarm.select.host import Host
from quantfarm.select.pairs import kind_of
from quantfarm.select.request import Request, normalize_devices

_DTYPES = ("fp16", "bf16", "fp32")
_FLAGS = {
    "packing": "packing",
    "sharded": "sharded",
    "trainable": "trainable",
    "zeros-differ": "zeros_differ",
    "mixed": "mixed_recipe",
    "multi": "multi_select",
}
_TEXTS = {"words": "pack_dtype", "adapter": "adapter", "layout": "private_layout", "type": "code_type"}
_PLACES = {"W": "bits", "g": "group_size", "K": "in_features", "N": "out_features", "M": "rows"}


def ask(text: str, host: Host, backend: str = "auto", dynamic: dict[str, Any] | None = None) -> Request:
    """Read one request; K = N = 4096, symmetric, no order, int32 words unless stated, codes as the records say."""
    fields: dict[str, Any] = {"in_features": 4096, "out_features": 4096, "backend": backend, "dynamic": dynamic}
    scheme: dict[str, Any] = {"bits": 4, "group_size": 128, "sym": True}
    pair, *words = text.split()
    fields["method"], fields["format"] = pair.split("/")
    on = None
    for word in words:
        name, _, value = word.partition(":")
        if word in _DTYPES:
            fields["activation_dtype"] = word
        elif word in _FLAGS:
            fields[_FLAGS[word]] = True
        elif name in _TEXTS:
            fields[_TEXTS[name]] = value
        elif name == "on":
            on = value.split("+")
        elif word in ("asym", "act-order"):
            scheme |= {"sym": False} if word == "asym" else {"act_order": True}
        elif word in ("no-shape", "no-marlin"):
            shape = {"in_features": None, "out_features": None}
            fields |= shape if word == "no-shape" else {"allow_marlin": False}
        elif name == "kind":
            scheme["weight_kind"] = WeightKind(value)
        else:
            (scheme if word[0] in "Wg" else fields)[_PLACES[word[0]]] = int(word[1:])
    method, fmt = normalize_method(fields["method"]), normalize_format(fields["format"])
    scheme.setdefault("weight_kind", kind_of(method, fmt, scheme["bits"]))
    return Request(scheme=Scheme(**scheme), devices=normalize_devices(on, host), **fields)
