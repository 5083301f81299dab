"""Finding and Report: what a look at the installation gave, as values for text and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from quantfarm import __version__
from quantfarm.declare.reason import SENTENCES, Reason
from quantfarm.select.host import Host

SCHEMA = "quantfarm-doctor/1"

FINDING_ONLY = ("libc", "duplicate")
"""Codes that are findings alone: they never refuse a kernel by themselves."""

HEALTHY, FINDINGS, COULD_NOT_LOOK = 0, 1, 2
"""The exit codes."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One cause: a stable code, what was looked at, one sentence, one command."""

    code: str
    evidence: str
    sentence: str
    command: str

    def __post_init__(self) -> None:
        """Refuse a code outside the closed set."""
        if self.code not in SENTENCES and self.code not in FINDING_ONLY:
            raise ValueError(f"finding code {self.code!r} does not exist")


@dataclass(frozen=True, kw_only=True)
class RecordState:
    """One record on this host: usable, or the reasons against it for a plain request that it declares to serve.

    ``written`` False: this version declares the record and has no code for it, so nothing can be installed to run it.
    """

    name: str
    backend: str
    request: str
    reasons: tuple[Reason, ...]
    written: bool = True

    @property
    def usable(self) -> bool:
        """Whether the record serves its plain request here."""
        return not self.reasons


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything the doctor saw.

    Attributes:
        host: the facts of the machine.
        interpreter: the Python that runs, since a package may be installed in another one.
        cores: processors visible to this process.
        checksums: library family to the checksum of its file.
        records: each record with its state.
        facts: sentences that are no faults, such as the absence of a GPU.
        findings: the faults, first cause first.
        blind: what could not be looked at, with the reason.
    """

    host: Host
    interpreter: str
    cores: int
    checksums: dict[str, str]
    records: tuple[RecordState, ...]
    facts: tuple[str, ...]
    findings: tuple[Finding, ...]
    blind: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 healthy, 1 findings, 2 could not look."""
        if self.blind:
            return COULD_NOT_LOOK
        return FINDINGS if self.findings else HEALTHY

    def as_json(self) -> dict[str, Any]:
        """Return the report as values for programs; the farm stores it with every piece of evidence."""
        host = self.host
        return {
            "schema": SCHEMA,
            "quantfarm": __version__,
            "interpreter": self.interpreter,
            "python": host.versions.get("python", ""),
            "platform": host.platform,
            "machine": host.machine,
            "cpu": {
                "name": host.cpu_name,
                "features": sorted(host.cpu_features),
                "cores": self.cores,
                "level": host.cpu_level,
            },
            "torch": {
                "version": host.versions.get("torch", ""),
                "build": host.torch_build,
                "error": host.torch_error,
            },
            "packages": dict(host.versions),
            "devices": [
                {"family": d.family.value, "index": d.index, "arch": str(d.arch) if d.arch else "", "name": d.name}
                for d in host.devices
            ],
            "artifacts": [self._artifact(library) for library in host.artifacts],
            "records": [
                {
                    "record": record.name,
                    "backend": record.backend,
                    "request": record.request,
                    "usable": record.usable,
                    "implemented": record.written,
                    "reasons": [reason.as_json() for reason in record.reasons],
                }
                for record in self.records
            ],
            "settings": asdict(host.settings),
            "facts": list(self.facts),
            "findings": [asdict(finding) for finding in self.findings],
            "could_not_look": list(self.blind),
            "exit_code": self.exit_code,
        }

    def _artifact(self, library: str) -> dict[str, Any]:
        state = self.host.artifacts[library]
        return {
            "library": library,
            "status": state.status,
            "text": state.text,
            "version": state.version,
            "path": state.path,
            "sha256": self.checksums.get(library, ""),
            "checked": state.checked,
            "kernels": list(state.manifest.get("kernels", ())),
            "skipped": list(state.manifest.get("skipped", ())),
        }
