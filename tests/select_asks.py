"""The short spelling of requests that the golden table uses: ``gptq/gptq W4 g128 asym bf16 K4096 on:cuda:1``."""

from __future__ import annotations

from typing import Any

from quantfarm.declare.scheme import Scheme
from quantfarm.select.host import Host
from quantfarm.select.request import Request, normalize_devices

_DTYPES = ("fp16", "bf16", "fp32")
_FLAGS = {"packing": "packing", "sharded": "sharded", "trainable": "trainable"}
_TEXTS = {"words": "pack_dtype", "adapter": "adapter", "layout": "private_layout"}


def ask(text: str, host: Host, backend: str = "auto") -> Request:
    """Read one request; K = N = 4096, symmetric, no order, int32 words unless stated."""
    fields: dict[str, Any] = {"in_features": 4096, "out_features": 4096, "backend": backend}
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
        else:
            number = int(word[1:])
            place = {"W": scheme, "g": scheme, "K": fields, "N": fields}[word[0]]
            place[{"W": "bits", "g": "group_size", "K": "in_features", "N": "out_features"}[word[0]]] = number
    return Request(scheme=Scheme(**scheme), devices=normalize_devices(on, host), **fields)
