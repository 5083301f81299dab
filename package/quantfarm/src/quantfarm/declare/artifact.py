"""ArtifactState: what became of a native library. A value, never a bare boolean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STATUSES = ("loaded", "absent", "skipped", "wrong_abi", "failed", "device")
"""loaded; not installed; left out of the build; built for another version; does not load; no code for the device."""


@dataclass(frozen=True, kw_only=True)
class ArtifactState:
    """The state of the back-end wheel of one library family on this machine.

    Attributes:
        library: family, such as ``cpu`` or ``cuda12``.
        status: one of ``STATUSES``. With ``checked`` False, ``loaded`` means only that files and versions fit.
        text: the loader's own sentence, kept verbatim; empty when all is well.
        version: the version of the back-end wheel, empty when absent.
        path: the library file, empty when absent.
        manifest: the manifest that the wheel carries, empty when absent.
        checked: whether the library was really loaded (here or in a child process) or only read.
    """

    library: str
    status: str
    text: str = ""
    version: str = ""
    path: str = ""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    checked: bool = False

    def __post_init__(self) -> None:
        """Refuse a status outside the closed set."""
        if self.status not in STATUSES:
            raise ValueError(f"artifact status {self.status!r} does not exist; known: {', '.join(STATUSES)}")

    def archs(self, kernel: str) -> tuple[str, ...]:
        """Return the targets that the manifest lists for a kernel; empty when the kernel is not inside."""
        for row in self.manifest.get("kernels", ()):
            if row["kernel"] == kernel:
                return tuple(row["archs"])
        return ()

    def skipped(self, kernel: str) -> str:
        """Return the manifest's sentence on why a kernel was left out entirely, or an empty string."""
        if self.archs(kernel):
            return ""
        return next((row["reason"] for row in self.manifest.get("skipped", ()) if row["kernel"] == kernel), "")
