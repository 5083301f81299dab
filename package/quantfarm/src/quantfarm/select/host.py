"""Host: what the running machine has, as one frozen value that a test can write by hand.

The only file that reads the environment. Torch and the artifact loader are imported inside ``probe`` alone.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from quantfarm.declare.artifact import ArtifactState
from quantfarm.declare.device import CPU_ISAS, CPU_LEVELS, Arch, parse_arch
from quantfarm.declare.names import DEVICE
from quantfarm.declare.reason import Reason
from quantfarm.declare.registry import KERNELS, implemented, implemented_records
from quantfarm.errors import ConfigError
from quantfarm.select import machine as raw

ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "QUANTFARM_STRICT": "a faster backend that is missing because of the installation becomes an error",
        "QUANTFARM_CPU_ISA": "the instruction-set level that native CPU code uses",
    }
)
"""Every environment variable the project reads, and what it does. Unset and empty mean the same."""

_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")

_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
LEVEL_FEATURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "x86_64": (),
        "x86_64_avx2": _AVX2,
        "x86_64_avx512": _AVX512,
        "x86_64_avx512_bf16": (*_AVX512, "avx512_bf16"),
        "x86_64_avx512_vnni": (*_AVX512, "avx512_vnni"),
    }
)
"""The processor features each level of compiled CPU code uses."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The switches of the environment, read once."""

    strict: bool = False
    cpu_isa: str = "auto"


@dataclass(frozen=True, kw_only=True)
class HostDevice:
    """One visible device. ``limits`` maps a limit's name to its value, in bytes for memory; ``arch`` None: unknown."""

    family: DEVICE
    index: int = 0
    arch: Arch | None = None
    name: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return ``cuda:1``; the processor is always ``cpu``."""
        return self.family.value if self.family is DEVICE.CPU else f"{self.family.value}:{self.index}"


@dataclass(frozen=True, kw_only=True)
class Host:
    """Every fact that a check may ask about the running machine.

    Attributes:
        platform, machine: ``sys.platform`` and the machine type, such as ``linux`` and ``x86_64``.
        devices: every visible device, the processor included.
        cpu_features: instruction sets, spelled as in ``KernelSpec.cpu_features``.
        cpu_name: the processor's own name.
        versions: python, torch, triton, driver and packages; an absent key means not installed.
        torch_build: ``cpu``, ``cuda``, ``rocm``, ``xpu`` or ``none`` when torch is absent.
        gil: whether the interpreter lock is on.
        artifacts: library family to its state.
        settings: switches of the environment.
        torch_ops: operators that the records ask for and torch has; None when nobody could look.
        failed: backend value to the text of its first failure in this process.
        torch_error: why an installed torch could not be imported; empty otherwise.
        implemented: kernel folders whose code is in the installed front; every other record is declared only.
    """

    platform: str = "linux"
    machine: str = "x86_64"
    devices: tuple[HostDevice, ...] = ()
    cpu_features: frozenset[str] = frozenset()
    cpu_name: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    torch_build: str = "cpu"
    gil: bool = True
    artifacts: Mapping[str, ArtifactState] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    torch_ops: frozenset[str] | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    torch_error: str = ""
    implemented: frozenset[str] = field(default_factory=implemented)

    def of_family(self, family: DEVICE) -> tuple[HostDevice, ...]:
        """Return the visible devices of one family, in order."""
        return tuple(device for device in self.devices if device.family is family)

    def runs_level(self, level: str) -> bool:
        """Say whether this processor runs code of one level of ``CPU_LEVELS``."""
        return self.machine.lower() in raw.X86 and self.cpu_features.issuperset(LEVEL_FEATURES[level])

    @cached_property
    def cpu_level(self) -> str:
        """The highest level this processor runs, or its machine type where it runs none."""
        return next((level for level in reversed(CPU_LEVELS) if self.runs_level(level)), self.machine)

    @cached_property
    def answers(self) -> dict[Any, tuple[object, tuple[Reason, ...]]]:
        """What was found out about records on this host, kept by ``check``; a host never changes, so it stays true."""
        return {}

    @cached_property
    def key(self) -> str:
        """One text that differs when any fact differs; the cache's key."""
        return json.dumps(vars_of(self), sort_keys=True, default=_plain)


def vars_of(host: Host) -> dict[str, object]:
    """Return the declared fields of a host, without values cached on it."""
    return {name: getattr(host, name) for name in Host.__dataclass_fields__}


def _plain(value: object) -> object:
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    if isinstance(value, Arch):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    return vars(value)


def probe(
    *,
    load_artifact: Callable[[str], ArtifactState] | None = None,
    use_torch: bool = True,
    failed: Mapping[str, str] | None = None,
) -> Host:
    """Look at the running machine once.

    Args:
        load_artifact: turns a library family into its state. Left out, libraries are really loaded where torch is
            there, and only read where it is not.
        use_torch: False imports no torch and no native code: versions come from package metadata.
        failed: backends that failed earlier in this process, with their text.

    Raises:
        ConfigError: an environment variable holds an unknown value.
    """
    settings = read_settings(os.environ)
    packages = {name for spec in KERNELS for name in spec.dependencies}
    wanted = frozenset(name for spec in KERNELS for name in spec.toolchain.all_ops)
    torch_facts = raw.torch_facts(wanted) if use_torch else raw.torch_facts_unloaded()
    features, cpu_name = raw.cpu_facts(torch_facts.cpu_capability)
    if load_artifact is None:
        load_artifact = _artifact_reader(loaded=torch_facts.imported)
    libraries = {name for spec in implemented_records() for name in spec.artifact.libraries}
    versions = raw.package_versions(packages) | {"driver": raw.driver_version()} | torch_facts.versions
    host = Host(
        platform=sys.platform,
        machine=platform.machine(),
        cpu_features=features,
        cpu_name=cpu_name,
        versions={name: text for name, text in versions.items() if text},
        torch_build=torch_facts.build,
        gil=bool(getattr(sys, "_is_gil_enabled", lambda: True)()),
        artifacts={library: load_artifact(library) for library in sorted(libraries)},
        settings=settings,
        torch_ops=torch_facts.operators,
        failed=dict(failed or {}),
        torch_error=torch_facts.error,
    )
    level = host.cpu_level
    cpu = HostDevice(family=DEVICE.CPU, arch=parse_arch(level) if level in CPU_LEVELS else None, name=cpu_name)
    accelerators = tuple(
        HostDevice(family=DEVICE(d.family), index=d.index, arch=_arch(d.arch), name=d.name, limits=d.limits)
        for d in torch_facts.devices
    )
    return Host(**{**vars_of(host), "devices": (*accelerators, cpu)})  # type: ignore[arg-type]


def _arch(text: str) -> Arch | None:
    return parse_arch(text) if text else None


def _artifact_reader(*, loaded: bool) -> Callable[[str], ArtifactState]:
    from quantfarm.runtime.artifacts import describe_library, load_library

    return load_library if loaded else describe_library


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read the switches; an unknown value is an error that names the variable and the known values.

    Raises:
        ConfigError: a value outside the known ones.
    """
    strict = _value(environment, "QUANTFARM_STRICT", (*_YES, *_NO), default="0")
    isa = _value(environment, "QUANTFARM_CPU_ISA", CPU_ISAS, default="auto")
    return Settings(strict=strict in _YES, cpu_isa=isa)


def _value(environment: Mapping[str, str], name: str, known: tuple[str, ...], *, default: str) -> str:
    raw = environment.get(name, "").strip()
    text = raw.lower() or default
    if text not in known:
        raise ConfigError(
            "cannot read the environment: unknown value",
            lines=[f"{name}: needs {', '.join(known)}, got {raw!r}"],
            remedy=f"unset {name}, or give it one of these values",
        )
    return text
