"""Every failure kind as one class: its exit code and its message are built here, from values.

Messages follow one shape: what was asked, one line per candidate or cause with needed and found values, and
last one thing to do. Name errors are raised inside ``declare`` and live there; they are re-exported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quantfarm.declare.names import BadType, UnknownName

__all__ = [
    "ArtifactError",
    "BadType",
    "CheckpointError",
    "ConfigError",
    "InexactConversion",
    "KernelRefused",
    "MissingPackage",
    "QuantfarmError",
    "RuntimeFailed",
    "TensorMismatch",
    "UnknownFormat",
    "UnknownName",
    "WriteFailed",
]


class QuantfarmError(Exception):
    """Base of all errors that the project raises on purpose."""

    exit_code = 1


class KernelRefused(QuantfarmError, NotImplementedError, ValueError):
    """A request that no backend, or not the named one, can serve. ``trace`` holds every candidate's reasons."""

    exit_code = 3

    def __init__(self, message: str, *, trace: Any = None) -> None:
        """Keep the finished message and the selection's trace."""
        super().__init__(message)
        self.trace = trace


class ConfigError(QuantfarmError, ValueError):
    """Settings that are missing, unknown or contradict each other; names file, key, needed and found value."""

    exit_code = 4

    def __init__(self, what: str, *, lines: Sequence[str] = (), remedy: str = "") -> None:
        """Build the three-part message."""
        super().__init__(compose(what, lines, remedy))


class UnknownFormat(ConfigError):
    """A method or format that no reader knows; lists the known ones."""


class CheckpointError(QuantfarmError, ValueError):
    """A checkpoint that can not be opened: missing files, shards, tensors, or modules without tensors."""

    exit_code = 5

    def __init__(self, what: str, *, lines: Sequence[str] = (), remedy: str = "") -> None:
        """Build the three-part message."""
        super().__init__(compose(what, lines, remedy))


class TensorMismatch(CheckpointError):
    """Tensors whose shapes or dtypes do not match the settings; names module, tensor, needed and found."""


class ArtifactError(QuantfarmError, RuntimeError):
    """A native library that was asked for and is not usable; keeps the loader's own text."""

    exit_code = 6


class RuntimeFailed(QuantfarmError, RuntimeError):
    """A backend that raised while computing. The first exception is kept and the backend stays marked as failed."""

    exit_code = 7


class InexactConversion(QuantfarmError, ValueError):
    """A conversion that would change values or be read differently by others, refused unless it is forced."""

    exit_code = 8


class WriteFailed(QuantfarmError, OSError):
    """A file that could not be written, such as on a full disk; what was written before stays for another attempt."""

    exit_code = 10

    def __init__(self, what: str, *, lines: Sequence[str] = (), remedy: str = "") -> None:
        """Build the three-part message."""
        super().__init__(compose(what, lines, remedy))


class MissingPackage(QuantfarmError, ImportError):
    """An optional package that this call needs; names the extra that brings it."""

    exit_code = 9

    def __init__(self, package: str, *, needed_for: str, extra: str) -> None:
        """Build the message from the package, what needs it, and the extra that installs it."""
        super().__init__(f'{needed_for} needs the package {package}, got none\npip install "quantfarm[{extra}]"')


def compose(what: str, lines: Sequence[str], remedy: str) -> str:
    """Join the first line, the indented cause lines and the remedy line, leaving out empty parts."""
    return "\n".join([what, *(f"  {line}" for line in lines), *([remedy] if remedy else [])])
