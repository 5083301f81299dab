"""Portable backend: decode rows of ggml blocks in fp32, multiply in fp32, go on. The stored bytes are its layout."""

from __future__ import annotations

from quantfarm.runtime.portable import PortablePath

_PATH = PortablePath()
prepare, run, restore, calls = _PATH.prepare, _PATH.run, _PATH.restore, _PATH.calls
