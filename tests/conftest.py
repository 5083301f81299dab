"""Settings of every test."""

from __future__ import annotations

from hypothesis import settings

# Workers share the cores, so the time of one example says nothing.
settings.register_profile("shared cores", deadline=None)
settings.load_profile("shared cores")
