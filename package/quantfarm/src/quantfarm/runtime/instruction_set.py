"""Forces the code path of the native CPU library; which one is asked for is a setting of the host."""

from __future__ import annotations

import torch

from quantfarm.declare.device import CPU_ISAS
from quantfarm.errors import ArtifactError
from quantfarm.runtime.artifacts import load_library


def force(isa: str) -> None:
    """Make every later call of the CPU library use one code path; ``auto`` gives the choice back to the library.

    A library that is absent is no error here: selection says so for the backends that need it.

    Args:
        isa: a member of ``CPU_ISAS``.

    Raises:
        ArtifactError: the processor or the build lacks that path; the library's own sentence is kept.
    """
    if load_library("cpu").status != "loaded":
        return
    try:
        torch.ops.quantfarm_cpu.set_cpu_isa(CPU_ISAS.index(isa))
    except RuntimeError as error:
        sentence = str(error).split("\n", maxsplit=1)[0]
        raise ArtifactError(f"cannot use the code path {isa} of quantfarm-cpu\n  {sentence}") from error
