"""Portable backend: turn x in fp32, then decode a tile of the weight, multiply, go on (``panels.multiply``)."""

from __future__ import annotations

from quantfarm.runtime.portable import PortablePath

_PATH = PortablePath()
prepare, run, restore, calls = _PATH.prepare, _PATH.run, _PATH.restore, _PATH.calls
