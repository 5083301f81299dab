"""Every way the farm ends badly: one class a kind, each with its exit code; messages say needs and got."""

from __future__ import annotations

from collections.abc import Sequence


class FarmError(Exception):
    """Base of the farm's errors. Line 1: what cannot be done; then the causes; last one thing to do."""

    exit_code = 1

    def __init__(self, what: str, *, lines: Sequence[str] = (), remedy: str = "") -> None:
        """Join the three parts; empty ones are left out."""
        super().__init__("\n".join([what, *(f"  {line}" for line in lines), *([remedy] if remedy else [])]))


class PlanInvalid(FarmError):
    """matrix.yaml, the declarations or a cell id do not fit together."""

    exit_code = 10


class BuildFailed(FarmError):
    """A wheel could not be built, or a built one is larger than its budget."""

    exit_code = 11


class PresenceFailed(FarmError):
    """A finished wheel lacks something declared, or holds something that nothing declares."""

    exit_code = 12


class RunnerLost(FarmError):
    """The machine, not the product, ended the run: no environment, no space, no network."""

    exit_code = 13


class CellsFailed(FarmError):
    """At least one cell that ran has failed."""

    exit_code = 14


class EvidenceInvalid(FarmError):
    """An evidence line that is no valid record; names file and line."""

    exit_code = 15


class PageStale(FarmError):
    """A generated file differs from what the declarations and the evidence give."""

    exit_code = 16


class WheelDiffers(FarmError):
    """A wheel file is not the one that was built: its sha256 or its contents differ."""

    exit_code = 17
