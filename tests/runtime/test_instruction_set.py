"""Forcing the code path of the CPU library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from quantfarm.declare.device import CPU_ISAS
from quantfarm.errors import ArtifactError
from quantfarm.runtime.artifacts import load_library
from quantfarm.runtime.instruction_set import force

needs_library = pytest.mark.skipif(load_library("cpu").status != "loaded", reason="quantfarm-cpu is not installed")


@pytest.fixture(autouse=True)
def _automatic_again() -> Iterator[None]:
    yield
    force("auto")


@needs_library
@pytest.mark.parametrize("isa", CPU_ISAS[1:])
def test_a_forced_path_is_the_one_in_use(isa: str) -> None:
    """The library uses the named path afterwards, or says what the processor lacks."""
    try:
        force(isa)
    except ArtifactError as error:
        assert "this processor lacks it" in str(error)  # noqa: PT017 - both outcomes are right, by processor
        return
    assert CPU_ISAS[torch.ops.quantfarm_cpu.cpu_isa()] == isa


@needs_library
def test_an_impossible_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path the library does not know ends in its own sentence, not in a wrong choice."""
    monkeypatch.setattr("quantfarm.runtime.instruction_set.CPU_ISAS", (*CPU_ISAS, "avx1024"))
    with pytest.raises(ArtifactError, match="needs 0 auto"):
        force("avx1024")


def test_without_the_library_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """An absent library is selection's matter, so forcing is quiet."""
    absent = load_library("none")
    monkeypatch.setattr("quantfarm.runtime.instruction_set.load_library", lambda library: absent)
    force("avx2")
