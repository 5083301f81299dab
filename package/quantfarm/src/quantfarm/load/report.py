"""LoadReport: what was loaded, which backend serves which layers, and why; as a value, as text, in the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantfarm.formats.config import QuantConfig
from quantfarm.select.selection import Selection
from quantfarm.select.wording import lost_note, verdict

LOG = logging.getLogger("quantfarm")
SCHEMA = "quantfarm-load"


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """Layers that asked for the same and got the same: one selection, the names of its modules."""

    selection: Selection
    modules: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line: what was asked, the backend, the count, and why each better candidate is not it."""
        chosen = self.selection.backend.value if self.selection.backend else "nothing"
        why = [f"{c.backend.value}: {c.reasons[0] if c.reasons else verdict(c)}" for c in self.selection.ahead]
        return "; ".join([f"{self.selection.request}: {chosen} for {len(self.modules)} layers", *why])


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """The outcome of one load.

    Attributes:
        source: the folder.
        config: the effective quantization settings.
        dtype: dtype of activations and dense weights.
        kinds: distinct layer kinds with their selections.
        dense: modules with a matrix that stays dense (norms and embeddings are not counted).
        notes: everything a user should read once.
    """

    source: str
    config: QuantConfig
    dtype: str
    kinds: tuple[LayerKind, ...]
    dense: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def counts(self) -> Mapping[str, int]:
        """Backend value to the number of its layers, and ``dense``."""
        counts: dict[str, int] = {}
        for kind in self.kinds:
            name = kind.selection.backend.value if kind.selection.backend else "none"
            counts[name] = counts.get(name, 0) + len(kind.modules)
        return counts | {"dense": len(self.dense)}

    @property
    def lost(self) -> tuple[str, ...]:
        """The notes on faster backends that only the installation stands against."""
        pairs = ((c, kind.selection) for kind in self.kinds for c in kind.selection.ahead)
        return tuple(
            dict.fromkeys(lost_note(c, s) for c, s in pairs if c.lost_to_installation and (c.priority or 0) > 0)
        )

    def lines(self) -> list[str]:
        """Return the text, a line each: kinds, notes, and last which faster backend the installation lacks."""
        return [*map(str, self.kinds), *(f"note: {note}" for note in self.notes), *(f"note: {n}" for n in self.lost)]

    def __str__(self) -> str:
        """Return the report as text."""
        return "\n".join([f"{self.source}: {self.dtype}, {dict(self.counts)}", *self.lines()])

    def as_json(self) -> dict[str, Any]:
        """Return the same facts for programs."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "dtype": self.dtype,
            "settings": self.config.as_settings(),
            "counts": dict(self.counts),
            "kinds": [{"modules": list(k.modules), "selection": k.selection.as_json()} for k in self.kinds],
            "dense": list(self.dense),
            "notes": [*self.notes, *self.lost],
        }

    def log(self) -> None:
        """Write the lines to the logger ``quantfarm``: a lost backend as a warning, the rest as information."""
        for line in self.lines()[: len(self.kinds) + len(self.notes)]:
            LOG.info("%s", line)
        for note in self.lost:
            LOG.warning("%s", note)
