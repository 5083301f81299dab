"""The one command that removes a reason, where a command can. Only commands that exist for this project."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

from quantfarm import __version__
from quantfarm.declare.names import BACKEND
from quantfarm.declare.reason import Reason
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.spec import KernelSpec
from quantfarm.select.check_install import older
from quantfarm.select.host import Host

OLDEST_TORCH = "2.10"
"""The torch whose stable ABI native libraries are built against."""


@lru_cache(maxsize=1)
def installer() -> str:
    """Return the install command of this environment: ``uv pip install`` where uv made it, else ``pip install``."""
    config = Path(sys.prefix) / "pyvenv.cfg"
    made_by_uv = config.is_file() and any(line.startswith("uv") for line in config.read_text("utf-8").splitlines())
    return "uv pip install" if made_by_uv else "pip install"


def install_library(library: str) -> str:
    """Return the command that installs a back-end wheel at the front's own version."""
    return f'{installer()} "quantfarm[{library}]=={__version__}"'


def reinstall_library(library: str) -> str:
    """Return the command that replaces one back-end wheel and changes nothing else."""
    flags = "--reinstall-package quantfarm-" + library if installer().startswith("uv") else "--force-reinstall"
    return f"{installer()} {flags} --no-deps quantfarm-{library}=={__version__}"


def install_torch(floor: str = OLDEST_TORCH) -> str:
    """Return the command that installs a torch that is new enough."""
    return f'{installer()} "torch>={floor}"'


def record_of(backend: BACKEND) -> KernelSpec | None:
    """Return the first record of a member, or None."""
    return next((spec for spec in KERNELS if spec.backend is backend), None)


def command(reason: Reason, backend: BACKEND, host: Host) -> str:
    """Return the command that removes a reason of a backend's record, or an empty text where none can.

    A record whose kernel is not in this version has no command: nothing that can be installed would make it run.
    """
    spec = record_of(backend)
    if spec is not None and spec.kernel not in host.implemented:
        return ""
    library = spec.artifact.library if spec else ""
    needed = reason.need.replace(" >= ", ">=")
    if reason.code == "artifact_absent":
        state = host.artifacts.get(library)
        recorded = state is not None and state.status == "absent" and bool(state.version)
        return (reinstall_library if recorded else install_library)(library) if library else ""
    if reason.code == "artifact_wrong_abi" and older(host.versions.get("torch", "0"), OLDEST_TORCH):
        return install_torch()
    if reason.code in ("artifact_skipped", "artifact_wrong_abi", "artifact_failed"):
        return reinstall_library(library) if library else ""
    if reason.code == "toolchain_torch":
        return install_torch(spec.toolchain.torch if spec else OLDEST_TORCH)
    if reason.code == "toolchain_operator":
        return f"{installer()} --upgrade torch"
    if reason.code in ("toolchain_triton", "package_absent", "package_too_old"):
        return f'{installer()} "{needed}"'
    return ""
