"""The installation half of ``check``: native library, packages, torch, triton, driver, failures of this process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from packaging.version import InvalidVersion, Version

from quantfarm import __version__
from quantfarm.declare.artifact import ArtifactState
from quantfarm.declare.device import CPU_LEVELS, best_code, parse_arch
from quantfarm.declare.names import DEVICE
from quantfarm.declare.reason import Reason
from quantfarm.declare.spec import ArtifactKind, KernelSpec
from quantfarm.select.check_device import declared_for, host_devices, short_level, targets_of
from quantfarm.select.host import Host
from quantfarm.select.request import Device, Request

TRITON_WITHOUT_GIL = "3.4.0"
"""The oldest triton that a free-threaded interpreter with its lock off can use."""

_NEEDS = {
    "absent": "quantfarm-{library} {version}",
    "skipped": "a back-end wheel with this kernel",
    "wrong_abi": "a library of this version of quantfarm and torch",
    "failed": "a library that loads",
    "device": "code for this device",
}


def install_reasons(spec: KernelSpec, request: Request, host: Host) -> Iterator[Reason]:
    """Yield artifact, package, torch, operator, triton and driver reasons, then an earlier failure."""
    if spec.kernel not in host.implemented:
        yield Reason("artifact_absent", f"kernel code in quantfarm {__version__}", "declared only")
    elif spec.artifact.kind is ArtifactKind.NATIVE:
        for library in dict.fromkeys(spec.artifact.library_on(device.family) for device in request.devices):
            yield from _artifact(spec, library, request, host)
    if spec.backend.value in host.failed:
        text = host.failed[spec.backend.value]
        yield Reason("runtime_failed", "a backend that has not failed in this process", "a failure", note=text)
    yield from _packages(spec, host)
    yield from _toolchain(spec, request, host)


def _artifact(spec: KernelSpec, library: str, request: Request, host: Host) -> Iterator[Reason]:
    state = host.artifacts.get(library) or ArtifactState(library=library, status="absent")
    if state.status != "loaded":
        code = f"artifact_{state.status}"
        yield Reason(
            code, _NEEDS[state.status].format(library=library, version=__version__), _got(state), note=state.text
        )
        return
    if "kernels" not in state.manifest:
        return
    sentence = state.skipped(spec.kernel)
    held = state.archs(spec.kernel)
    if sentence:
        yield Reason("artifact_skipped", _NEEDS["skipped"], f"a build without {spec.kernel}", note=sentence)
    elif not held:
        yield Reason("artifact_absent", spec.kernel, f"a wheel without it (quantfarm-{library} {state.version})")
    else:
        mine = [asked for asked in request.devices if spec.artifact.library_on(asked.family) == library]
        yield from _device_code(spec, mine, host, held)
    driver, floor = host.versions.get("driver", ""), str(state.manifest.get("driver", ""))
    if driver and floor and older(driver, floor):
        yield Reason("driver", f"driver >= {floor}", driver, note=f"the floor of quantfarm-{library}")


def _got(state: ArtifactState) -> str:
    if state.status == "absent" and state.text:
        return "an installation without native code"
    shown = {"absent": "none", "skipped": "a build without it", "failed": "a load error"}
    return shown.get(state.status, f"version {state.version}" if state.version else state.status)


def _device_code(spec: KernelSpec, devices: list[Device], host: Host, held: tuple[str, ...]) -> Iterator[Reason]:
    codes = tuple(parse_arch(name) for name in held)
    forced = next((level for level in CPU_LEVELS if short_level(level) == host.settings.cpu_isa), "")
    levels = [forced] if forced and host.runs_level(forced) else list(CPU_LEVELS)
    for asked in devices:
        targets = targets_of(spec, asked.family)
        for device in host_devices(asked, host):
            if targets is None or not declared_for(targets, device, host):
                continue
            if asked.family is DEVICE.CPU:
                serves = any(host.runs_level(level) for level in levels if level in held)
            else:
                serves = device.arch is not None and best_code(codes, device.arch) is not None
            if not serves:
                got = str(device.arch) if device.arch else short_level(host.cpu_level)
                note = f"QUANTFARM_CPU_ISA asks for {short_level(forced)}" if forced else ""
                need = "a device that its code serves"
                yield Reason("artifact_device", f"{need}: {', '.join(held)}", got, device=str(device), note=note)


def _packages(spec: KernelSpec, host: Host) -> Iterator[Reason]:
    for name, floor in spec.dependencies.items():
        found = host.versions.get(name, "")
        needed = f"{name} >= {floor}" if floor else name
        if not found:
            yield Reason("package_absent", needed, "none")
        elif older(found, floor):
            yield Reason("package_too_old", needed, found)


def _toolchain(spec: KernelSpec, request: Request, host: Host) -> Iterator[Reason]:
    tools = spec.toolchain
    torch = host.versions.get("torch", "")
    if tools.torch and (not torch or older(torch, tools.torch)):
        yield Reason("toolchain_torch", f"torch >= {tools.torch}", torch or "none", note=host.torch_error)
    elif host.torch_ops is not None:
        families = {device.family for device in request.devices}
        extra = [name for family in families for name in tools.family_ops.get(family, ())]
        missing = [name for name in (*tools.torch_ops, *extra) if name not in host.torch_ops]
        if missing:
            yield Reason("toolchain_operator", ", ".join(missing), f"torch {torch} without it")
    floor = (tools.triton_mixed if request.mixed_recipe else "") or tools.triton
    if floor and not host.gil and older(floor, TRITON_WITHOUT_GIL):
        floor = TRITON_WITHOUT_GIL
    triton = host.versions.get("triton", "")
    if floor and (not triton or older(triton, floor)):
        yield Reason("toolchain_triton", f"triton >= {floor}", triton or "none")
    driver = host.versions.get("driver", "")
    if tools.driver and driver and older(driver, tools.driver):
        yield Reason("driver", f"driver >= {tools.driver}", driver)


@lru_cache(maxsize=1024)
def older(found: str, floor: str) -> bool:
    """Say whether a version is below a floor; an empty floor is met by all, an unreadable version by none.

    A pre-release counts as its release: vendor builds of torch carry such versions.
    """
    if not floor:
        return False
    try:
        have = Version(found)
        return (Version(have.base_version) if have.is_prerelease else have) < Version(floor)
    except InvalidVersion:
        return True
