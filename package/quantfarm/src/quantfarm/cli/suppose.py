"""A host supposed for ``explain --arch``: what would run on a machine that is not this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from quantfarm.declare.device import CPU_LEVELS, parse_arch
from quantfarm.declare.names import DEVICE
from quantfarm.select.host import LEVEL_FEATURES, Host, HostDevice
from quantfarm.select.remedy import OLDEST_TORCH

SHARED_MEMORY: Mapping[str, int] = MappingProxyType(
    {
        "sm_75": 65536,
        "sm_80": 166912,
        "sm_86": 101376,
        "sm_87": 166912,
        "sm_89": 101376,
        "sm_90": 232448,
        "sm_100": 232448,
        "sm_103": 232448,
        "sm_110": 232448,
        "sm_120": 101376,
        "sm_121": 101376,
    }
)
"""Opt-in shared memory of one block in bytes, from the tables of compute capabilities in CUDA's programming guide."""


def suppose(host: Host, arch: str) -> tuple[Host, str]:
    """Return the host as if it had one device of a target, and a sentence on everything that was supposed.

    A torch build for the target is supposed too, and torch itself where it is absent; all else stays.

    Raises:
        UnknownName: no such target.
    """
    target = parse_arch(arch)
    said = [f"a device {target}"]
    if not host.versions.get("torch"):
        host = replace(host, versions={**host.versions, "torch": OLDEST_TORCH}, torch_build="cpu")
        said.append(f"torch {OLDEST_TORCH}, which is not installed here")
    if target.family is DEVICE.CPU:
        level = CPU_LEVELS[target.major]
        cpu = HostDevice(family=DEVICE.CPU, arch=target, name="supposed")
        features = frozenset(LEVEL_FEATURES[level])
        return replace(host, machine="x86_64", cpu_features=features, devices=(cpu,)), "; ".join(said)
    plain = f"sm_{target.major}{target.minor}"
    known = target.family is DEVICE.CUDA and plain in SHARED_MEMORY
    limits = {"shared_memory_per_block_optin": SHARED_MEMORY[plain]} if known else {}
    device = HostDevice(family=target.family, arch=target, name="supposed", limits=limits)
    build = host.torch_build if target.family is DEVICE.MPS else target.family.value
    if build != host.torch_build:
        said.append(f"a {build} build of torch")
    return replace(host, devices=(device, *host.of_family(DEVICE.CPU)), torch_build=build), "; ".join(said)
