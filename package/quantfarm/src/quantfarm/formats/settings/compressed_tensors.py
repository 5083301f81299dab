"""The settings dialect of compressed-tensors, whose ``config_groups`` describe layers by target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantfarm.errors import UnknownFormat
from quantfarm.formats.table import known_lines


def translate(settings: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return the settings in this project's keys.

    Raises:
        UnknownFormat: nothing here reads the dialect.
    """
    raise UnknownFormat(
        f"cannot read {source}: settings of {settings.get('quant_method')}",
        lines=(f"format: got {settings.get('format')!r}", *known_lines()),
        remedy="use a checkpoint in one of these formats",
    )
