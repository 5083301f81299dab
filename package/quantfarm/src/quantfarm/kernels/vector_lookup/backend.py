"""Portable backend of vector codes: look a panel of vectors up, multiply in fp32, go on. Nothing is kept."""

from __future__ import annotations

from quantfarm.runtime.portable import PortablePath

_PATH = PortablePath()
prepare, run, restore, calls = _PATH.prepare, _PATH.run, _PATH.restore, _PATH.calls
