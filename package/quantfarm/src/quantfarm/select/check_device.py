"""The device half of ``check``: family, exact target, limits, several devices, operating system."""

from __future__ import annotations

from collections.abc import Iterator

from quantfarm.declare.device import CPU_LEVELS, Arch, code_serves
from quantfarm.declare.names import DEVICE
from quantfarm.declare.reason import Reason
from quantfarm.declare.spec import KernelSpec, Targets, declared
from quantfarm.select.host import LEVEL_FEATURES, Host, HostDevice
from quantfarm.select.request import Device, Request

_BUILDS = {DEVICE.CUDA: "cuda", DEVICE.ROCM: "rocm", DEVICE.XPU: "xpu"}
_LEVEL_PREFIX = f"{CPU_LEVELS[0]}_"


def device_reasons(spec: KernelSpec, request: Request, host: Host) -> Iterator[Reason]:
    """Yield family, target, limit, mixture and platform reasons; a family that does not fit is said once."""
    per_family: dict[DEVICE, list[Device]] = {}
    for device in request.devices:
        per_family.setdefault(device.family, []).append(device)
    gates: list[Reason] = []
    foreign = [family.value for family in per_family if targets_of(spec, family) is None]
    if foreign:
        yield Reason("family", one_family(spec), " and ".join(foreign))
    for family, asked in per_family.items():
        if family.value in foreign:
            continue
        missing = _availability(family, host)
        if missing:
            yield missing
            continue
        gates += _gates(spec, asked, host)
    yield from gates
    yield from _several(spec, request, host)
    platforms = declared(spec.platforms)
    if platforms and host.platform not in platforms:
        yield Reason("platform", ", ".join(platforms), host.platform)


def one_family(spec: KernelSpec) -> str:
    """Return the families a record declares, as printed after ``needs``."""
    return " or ".join(family.value for family in spec.devices)


def targets_of(spec: KernelSpec, family: DEVICE) -> Targets | None:
    """Return the record's targets of a family, those of ALL included, or None when it does not run there."""
    return spec.devices.get(family) or spec.devices.get(DEVICE.ALL)


def host_devices(asked: Device, host: Host) -> tuple[HostDevice, ...]:
    """Return the visible devices that a requested device stands for: one ordinal, or the whole family."""
    visible = host.of_family(asked.family)
    if asked.index is None or asked.family is DEVICE.CPU:
        return visible
    return tuple(device for device in visible if device.index == asked.index)


def _availability(family: DEVICE, host: Host) -> Reason | None:
    if family is DEVICE.CPU:
        return None
    build = _BUILDS.get(family)
    if build is not None and host.torch_build not in (build, "none"):
        return Reason("torch_build", f"a torch build for {family.value}", f"a {host.torch_build} build")
    if not host.of_family(family):
        return Reason("family", f"a visible {family.value} device", "none")
    return None


def _gates(spec: KernelSpec, asked: list[Device], host: Host) -> Iterator[Reason]:
    targets = targets_of(spec, asked[0].family)
    if targets is None:
        return
    for device in asked:
        if not host_devices(device, host) and device.index is not None:
            seen = ", ".join(str(d) for d in host.of_family(device.family)) or "none"
            yield Reason("device_absent", str(device), f"visible: {seen}", device=str(device))
    if asked[0].family is DEVICE.CPU:
        yield from _cpu_gates(spec, targets, host)
        return
    targeted = {str(found): found for device in asked for found in host_devices(device, host)}
    for found in targeted.values():
        yield from _arch_gates(targets, found)
        yield from _limit_gates(spec, found)


def declared_for(targets: Targets, device: HostDevice, host: Host) -> bool:
    """Say whether the record's own targets cover a device, whatever the installed library holds."""
    if device.family is DEVICE.CPU:
        return not targets.archs or any(host.runs_level(str(arch)) for arch in targets.archs)
    return not any(_arch_gates(targets, device))


def _arch_gates(targets: Targets, device: HostDevice) -> Iterator[Reason]:
    arch, where = device.arch, str(device)
    got = str(arch) if arch else "an unknown target"
    bounds = [bound for bound in (targets.minimum, targets.maximum) if bound is not None]
    gated = bool(bounds) or bool(targets.archs)
    if arch is None:
        if gated:
            yield Reason("arch", _wanted(targets), got, device=where)
    elif targets.minimum is not None and _version(arch) < _version(targets.minimum):
        yield Reason("arch_too_old", f"at least {targets.minimum}", got, device=where)
    elif targets.maximum is not None and _version(arch) > _version(targets.maximum):
        yield Reason("arch_too_new", f"at most {targets.maximum}", got, device=where)
    elif targets.archs and not any(code_serves(code, arch) for code in targets.archs):
        yield Reason("arch", _wanted(targets), got, device=where)


def _version(arch: Arch) -> tuple[int, int, str]:
    return (arch.major, arch.minor, arch.suffix if arch.family is DEVICE.ROCM else "")


def _wanted(targets: Targets) -> str:
    bounds = [f"at least {targets.minimum}"] if targets.minimum else []
    bounds += [f"at most {targets.maximum}"] if targets.maximum else []
    return ", ".join(bounds) or ", ".join(str(arch) for arch in targets.archs)


def _limit_gates(spec: KernelSpec, device: HostDevice) -> Iterator[Reason]:
    for name, least in spec.device_limits.items():
        value = device.limits.get(name)
        if value is None or value < least:
            got = "unknown" if value is None else str(value)
            yield Reason("device_limit", f"{name} of at least {least}", got, device=str(device))


def _cpu_gates(spec: KernelSpec, targets: Targets, host: Host) -> Iterator[Reason]:
    levels = [str(arch) for arch in targets.archs]
    if levels and not any(host.runs_level("x86_64") and level in CPU_LEVELS for level in levels):
        yield Reason("arch", " or ".join(levels), host.machine, device="cpu")
    needed = set(spec.cpu_features)
    if levels and not any(host.runs_level(level) for level in levels):
        needed |= set(LEVEL_FEATURES[levels[0]])
    missing = sorted(needed - host.cpu_features)
    if missing:
        yield Reason("cpu_feature", ", ".join(missing), short_level(host.cpu_level), device="cpu")
    wanted = host.settings.cpu_isa
    if levels and wanted != "auto":
        level = _LEVEL_PREFIX + wanted
        if level not in levels:
            held = " or ".join(short_level(name) for name in levels)
            yield Reason("cpu_feature", f"{held} code", wanted, device="cpu", note="asked by QUANTFARM_CPU_ISA")
        elif not host.runs_level(level):
            got = short_level(host.cpu_level)
            yield Reason("cpu_feature", wanted, got, device="cpu", note="asked by QUANTFARM_CPU_ISA")


def short_level(level: str) -> str:
    """Return a level as users know it: ``avx512`` for ``x86_64_avx512``."""
    return level.removeprefix(_LEVEL_PREFIX)


def _several(spec: KernelSpec, request: Request, host: Host) -> Iterator[Reason]:
    accelerators = [device for device in request.devices if device.family is not DEVICE.CPU]
    families = list(dict.fromkeys(device.family.value for device in accelerators))
    if len(families) > 1:
        yield Reason("device_mixed", "one family of accelerators", " and ".join(families))
        return
    if not families or accelerators[0].family not in spec.devices:
        return
    named = [d for device in accelerators if device.index is not None for d in host_devices(device, host)]
    archs = {str(device): str(device.arch) for device in named}
    if len(set(archs.values())) > 1:
        got = ", ".join(f"{where} {arch}" for where, arch in archs.items())
        yield Reason("device_mixed", "devices of one target", got)
