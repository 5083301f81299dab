"""doctor(): looks at the installation once and reports facts, libraries, records and findings."""

from __future__ import annotations

import os
import sys
from itertools import chain

from quantfarm.declare.artifact import ArtifactState
from quantfarm.doctor.child import ChildNotStarted, load_in_child
from quantfarm.doctor.driver import driver_findings
from quantfarm.doctor.finding import Report
from quantfarm.doctor.findings import facts_of, gpu_findings, library_findings, one_command_each, torch_findings
from quantfarm.doctor.paths import duplicate_findings
from quantfarm.doctor.records import record_states
from quantfarm.runtime.artifacts import checksum_of, describe_library, module_name
from quantfarm.select.host import Host, probe


def doctor() -> Report:
    """Look at this machine and installation.

    Every native library is loaded in a process of its own. Works without torch, and says so.

    Raises:
        ConfigError: an environment variable holds an unknown value.
    """
    blind: list[str] = []

    def look(library: str) -> ArtifactState:
        try:
            return load_in_child(library)
        except ChildNotStarted as error:
            blind.append(f"the {library} library: {error}")
            return describe_library(library)

    return examine(probe(load_artifact=look), blind=tuple(blind))


def examine(host: Host, *, blind: tuple[str, ...] = ()) -> Report:
    """Return the report on facts already collected."""
    records = record_states(host)
    modules = ["quantfarm", *(module_name(library) for library in host.artifacts)]
    findings = chain(
        library_findings(host, records),
        torch_findings(host),
        driver_findings(host, records),
        gpu_findings(host),
        duplicate_findings(modules),
    )
    return Report(
        host=host,
        interpreter=sys.executable,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        checksums={library: checksum_of(state) for library, state in host.artifacts.items()},
        records=records,
        facts=tuple(facts_of(host)),
        findings=one_command_each(findings),
        blind=blind,
    )
