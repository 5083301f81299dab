"""quantfarm: quantized linear layers on every device that can run them, with the reason for every choice.

The public names are loaded on first use, so that ``import quantfarm`` touches no device and imports no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "BACKEND": "quantfarm.declare.names",
    "METHOD": "quantfarm.declare.names",
    "FORMAT": "quantfarm.declare.names",
    "DEVICE": "quantfarm.declare.names",
    "PROFILE": "quantfarm.declare.names",
    "explain": "quantfarm.select.explain",
    "convert": "quantfarm.load.convert",
    "hf_normalize_device_device_map": "quantfarm.select.compat",
    "hf_pack_layer": "quantfarm.load.repack",
    "hf_repack_layer": "quantfarm.load.repack",
    "hf_select_quant_linear": "quantfarm.select.compat",
    "hf_select_quant_linear_v2": "quantfarm.select.compat",
    "select_quant_linear": "quantfarm.select.compat",
}
_PACKAGES = ("doctor", "load", "select")

__all__ = [  # noqa: PLE0604 - the names come from the two tables above, so that none is typed twice
    *sorted([*_HOMES, *_PACKAGES]),
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home on first use."""
    if name in _PACKAGES:
        return importlib.import_module(f"quantfarm.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'quantfarm' has no attribute {name!r}; public names: {', '.join(__all__)}")
    home = importlib.import_module(_HOMES[name])
    return getattr(home, name)


def __dir__() -> list[str]:
    """List the public names."""
    return list(__all__)
