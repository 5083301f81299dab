"""From facts to findings: one cause, one command, first cause first. Nothing here looks at the machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from platform import libc_ver

from quantfarm.declare.artifact import ArtifactState
from quantfarm.declare.names import BACKEND, DEVICE
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.spec import ArtifactKind
from quantfarm.doctor.finding import Finding, RecordState
from quantfarm.runtime.artifacts import module_name
from quantfarm.select.check_device import targets_of
from quantfarm.select.check_install import older
from quantfarm.select.host import Host
from quantfarm.select.remedy import OLDEST_TORCH, command, install_torch, installer
from quantfarm.select.request import FAMILY_ORDER

GPU_NODES = {DEVICE.CUDA: Path("/dev/nvidiactl"), DEVICE.ROCM: Path("/dev/kfd")}
"""Files that the kernel module of a vendor makes: a GPU is in the machine, whatever torch sees."""

_LIBC = re.compile(r"version [`'\"]((?:GLIBC|GLIBCXX|CXXABI)_[\w.]+)['\"] not found")
_HARDWARE = ("cpu_feature", "platform", "arch", "artifact_device")


def torch_findings(host: Host) -> Iterator[Finding]:
    """Yield what is wrong with torch itself: absent, broken, or too old for every record."""
    torch = host.versions.get("torch", "")
    if host.torch_error:
        sentence = f"torch is installed and can not be imported: {host.torch_error}"
        fix = f'{installer()} --force-reinstall "torch>={OLDEST_TORCH}"'
        yield Finding(code="toolchain_torch", evidence=host.torch_error, sentence=sentence, command=fix)
    elif not torch or older(torch, OLDEST_TORCH):
        sentence = f"torch is {'too old' if torch else 'absent'}: needs {OLDEST_TORCH} or later, got {torch or 'none'}"
        evidence = f"installed packages: torch {torch or 'absent'}"
        yield Finding(code="toolchain_torch", evidence=evidence, sentence=sentence, command=install_torch())


def gpu_findings(host: Host, nodes: dict[DEVICE, Path] | None = None) -> Iterator[Finding]:
    """Yield a GPU that is in the machine and that torch can not use: another build of torch, or no device visible."""
    for family, node in (GPU_NODES if nodes is None else nodes).items():
        if not node.exists() or host.of_family(family) or host.torch_build == "none":
            continue
        torch = host.versions.get("torch", "")
        if host.torch_build != family.value:
            yield Finding(
                code="torch_build",
                evidence=f"{node} exists; torch {torch} is a {host.torch_build} build",
                sentence=f"torch is a {host.torch_build} build: needs a {family.value} build, got {torch}",
                command=f'{installer()} --force-reinstall "torch>={OLDEST_TORCH}"',
            )
        else:
            yield Finding(
                code="family",
                evidence=f"{node} exists; torch {torch} sees no {family.value} device",
                sentence=f"no {family.value} device is visible to torch although its driver is loaded",
                command="python -m torch.utils.collect_env",
            )


def library_findings(host: Host, records: tuple[RecordState, ...]) -> Iterator[Finding]:
    """Yield one finding a library: why its records can not run, if anything about the installation is at fault.

    A library that is absent and could not help here (another platform, an older processor, a machine whose models
    run on a GPU) is no finding.
    """
    default = next((family for family in FAMILY_ORDER if host.of_family(family)), DEVICE.CPU)
    for library, state in host.artifacts.items():
        native = [s for s in KERNELS if s.artifact.kind is ArtifactKind.NATIVE and s.artifact.library == library]
        users = {spec.name for spec in native}
        refused = [record for record in records if record.name in users and not record.usable]
        useful = any(targets_of(spec, default) for spec in native)
        if not refused or (state.status == "absent" and not useful):
            continue
        loader = _loader_finding(state, refused, host)
        if loader is not None:
            yield loader
        elif state.status != "absent":
            yield from _hardware_finding(state, refused[0], records)


def _loader_finding(state: ArtifactState, refused: list[RecordState], host: Host) -> Finding | None:
    """Return the fault of the library itself, unless the machine could not use a good one either."""
    broken = state.status in ("wrong_abi", "failed")
    fixable = [r for r in refused if all(reason.is_installation for reason in r.reasons)]
    record = next(iter(fixable or (refused if broken else ())), None)
    if record is None:
        return None
    reason = next((r for r in record.reasons if r.code.startswith("artifact_")), None)
    if reason is None or reason.code == "artifact_device":
        return None
    evidence = state.path or (f"no module {module_name(state.library)}" if not state.text else state.text)
    fix = command(reason, BACKEND(record.backend), host)
    libc = _LIBC.search(state.text)
    if libc:
        found = " ".join(libc_ver()) or "another C library"
        sentence = f"the library needs {libc[1]}, got {found}: {state.text}"
        return Finding(code="libc", evidence=evidence, sentence=sentence, command=fix)
    detail = f": {reason.note}" if reason.note else ""
    sentence = f"{reason.sentence}: needs {reason.need}, got {reason.got}{detail}"
    return Finding(code=reason.code, evidence=evidence, sentence=sentence, command=fix)


def _hardware_finding(state: ArtifactState, record: RecordState, records: tuple[RecordState, ...]) -> Iterator[Finding]:
    reason = next((r for r in record.reasons if r.code in _HARDWARE), None)
    if reason is None:
        return
    works = next((r.backend for r in records if r.usable), "auto")
    yield Finding(
        code=reason.code,
        evidence=f"{record.backend} from {state.path or module_name(state.library)}",
        sentence=f"{reason.sentence}: needs {reason.need}, got {reason.got}",
        command=f"quantfarm explain --backend {works}",
    )


def facts_of(host: Host) -> Iterator[str]:
    """Yield sentences that are true and no faults, so that nobody takes them for one."""
    torch = host.versions.get("torch", "")
    yield f"torch {torch} is a {host.torch_build} build" if torch else "torch is absent: devices were not looked at"
    if torch and all(device.family is DEVICE.CPU for device in host.devices):
        yield "no GPU is visible; a machine without one needs no GPU build of anything"
    for library, state in host.artifacts.items():
        if state.status == "loaded" and not state.checked:
            yield f"the {library} library was read and not loaded, since torch was not there to load it"


def one_command_each(findings: Iterator[Finding]) -> tuple[Finding, ...]:
    """Return findings without those whose command an earlier one gives already: one cause, one command."""
    kept: dict[str, Finding] = {}
    for finding in findings:
        kept.setdefault(finding.command, finding)
    return tuple(kept.values())
