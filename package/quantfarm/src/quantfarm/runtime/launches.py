"""Counting launches, the proof of which kernel ran, and remembering a backend that broke while computing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import torch

from quantfarm.errors import RuntimeFailed

_Result = TypeVar("_Result")

_FAILURES: dict[str, BaseException] = {}
"""First exception of each backend that failed in this process; the whole state of ``runtime_failed``."""


class LaunchCounter:
    """How often a kernel computed in this process."""

    def __init__(self) -> None:
        self.value = 0

    def add(self) -> None:
        """Count one launch."""
        self.value += 1


def failures() -> Mapping[str, str]:
    """Return backend value to the text of its first exception, for ``Host.failed``."""
    return MappingProxyType({name: f"{type(error).__name__}: {error}" for name, error in _FAILURES.items()})


def forget_failures() -> None:
    """Clear the marks; for tests and for a caller that has repaired the installation."""
    _FAILURES.clear()


def guarded(backend: str, module: str, compute: Callable[[], _Result]) -> _Result:
    """Run ``compute`` under the failure policy: the first exception is kept, the call raises, nothing is retried.

    Later calls of the same backend raise at once with the first exception as cause. Running out of device memory
    says nothing about the backend and passes through unmarked.

    Raises:
        RuntimeFailed: the backend raised, now or earlier.
    """
    first = _FAILURES.get(backend)
    if first is None:
        try:
            return compute()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, MemoryError) as error:
            _FAILURES[backend] = error
            raise RuntimeFailed(_sentence(backend, module, error)) from error
    raise RuntimeFailed(_sentence(backend, module, first)) from first


def _sentence(backend: str, module: str, error: BaseException) -> str:
    return (
        f"cannot compute {module}: backend {backend} failed while computing and stays marked as failed\n"
        f"  first cause    {type(error).__name__}: {error}\n"
        f"load the model with another backend, or start a new process after the cause is gone"
    )
