"""Which modules of a checkpoint are packed, by the names of its tensors alone."""

from __future__ import annotations

from collections.abc import Iterable

from quantfarm.formats import table
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.facts import modules_of


def packed_modules(names: Iterable[str], config: QuantConfig) -> dict[str, dict[str, str]]:
    """Return module name to suffix to tensor name, for every module that the checkpoint holds packed."""
    row = table.find(config.method, config.format, config.dialect)
    rows = [row, *(r for r in table.rows_of(config.method) if r.dialect == config.dialect)]
    markers = dict.fromkeys(marker for r in rows for marker in r.markers)
    return modules_of(names, markers, dict.fromkeys(suffix for r in rows for suffix in r.suffixes))
