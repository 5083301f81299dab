"""Raw looks at the machine, each behind one function: processor, packages, torch. No policy, no environment."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from platform import processor, python_version
from types import MappingProxyType
from typing import Any

X86 = ("x86_64", "amd64", "x64")
"""Machine types of 64-bit x86, in lower case."""

_KEEP = re.compile(r"(avx|fma$|f16c|amx|sse4|bmi2|asimd|sve|bf16|i8mm)")
_CPUINFO = Path("/proc/cpuinfo")
_PACKAGES = ("accelerate", "huggingface-hub", "numpy", "quantfarm", "safetensors", "torch", "transformers", "triton")
_CAPABILITY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "AVX2": ("avx2", "fma", "f16c"),
        "AVX512": ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
    }
)
_BROKEN = (ImportError, OSError, RuntimeError)
NVIDIA_VERSION = Path("/proc/driver/nvidia/version")
"""Where NVIDIA's kernel module says its version; a container shows it too, with or without devices."""

_LIBRARY_FOLDERS = tuple(map(Path, ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/aarch64-linux-gnu")))
_LIMITS = ("shared_memory_per_block_optin", "total_memory", "multi_processor_count", "warp_size")


@dataclass(frozen=True, kw_only=True)
class RawDevice:
    """A device as torch shows it; ``arch`` is a text that ``parse_arch`` reads, or empty."""

    family: str
    index: int
    arch: str
    name: str
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TorchFacts:
    """What torch says about itself and the devices it sees."""

    build: str = "none"
    versions: dict[str, str] = field(default_factory=dict)
    devices: tuple[RawDevice, ...] = ()
    operators: frozenset[str] | None = None
    cpu_capability: str = ""
    imported: bool = False
    error: str = ""


@lru_cache(maxsize=4)
def cpu_facts(capability: str = "", source: Path = _CPUINFO) -> tuple[frozenset[str], str]:
    """Return the processor's features and name.

    Args:
        capability: torch's own word for the processor, used where the system tells nothing.
        source: the system's description of the processors.
    """
    flags, name = "", ""
    if source.is_file():
        text = source.read_text(encoding="utf-8", errors="replace")
        flags = _field(text, "flags") or _field(text, "Features")
        name = _field(text, "model name")
    features = frozenset(flag for flag in flags.split() if _KEEP.match(flag))
    return features or frozenset(_CAPABILITY.get(capability, ())), name or processor()


def _field(text: str, key: str) -> str:
    match = re.search(rf"^{key}\s*:\s*(.*)$", text, flags=re.MULTILINE)
    return match[1].strip() if match else ""


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Return installed versions from package metadata, importing nothing; an absent package has no key."""
    found = {"python": python_version()}
    for name in sorted({*_PACKAGES, *names}):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def driver_version(source: Path = NVIDIA_VERSION) -> str:
    """Return the version of NVIDIA's kernel module, or an empty text where it is not loaded."""
    text = source.read_text(encoding="utf-8", errors="replace") if source.is_file() else ""
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", text)
    return match[1] if match else ""


def driver_library_version(folders: Iterable[Path] = _LIBRARY_FOLDERS) -> str:
    """Return the version of the driver's library for programs, from the name of its file; empty where there is none."""
    for folder in folders:
        link = folder / "libcuda.so.1"
        match = re.search(r"libcuda\.so\.(\d+\.[\d.]+)$", link.resolve().name) if link.exists() else None
        if match:
            return match[1]
    return ""


def torch_facts_unloaded() -> TorchFacts:
    """Read torch's version file without importing torch; a torch that can not be found counts as absent."""
    spec = importlib.util.find_spec("torch")
    origin = spec.origin if spec else None
    version_file = Path(origin).with_name("version.py") if origin else None
    if version_file is None or not version_file.is_file():
        return TorchFacts(versions={"torch": ""})
    text = version_file.read_text(encoding="utf-8")
    version = re.search(r"^__version__\s*=\s*'([^']+)'", text, flags=re.MULTILINE)
    build = "cpu"
    for name, key in (("cuda", "cuda"), ("rocm", "hip"), ("xpu", "xpu")):
        if re.search(rf"^{key}(\s*:[^=]*)?\s*=\s*'[^']+'", text, flags=re.MULTILINE):
            build = name
    return TorchFacts(build=build, versions={"torch": version[1]} if version else {})


def torch_facts(wanted_operators: frozenset[str]) -> TorchFacts:
    """Import torch and ask it for its build, its devices and the operators that the records need.

    Args:
        wanted_operators: names such as ``aten::mm``.
    """
    try:
        torch = importlib.import_module("torch")
    except _BROKEN as error:
        unloaded = torch_facts_unloaded()
        text = str(error) if unloaded.build != "none" else ""
        return TorchFacts(versions={"torch": ""}, error=text)
    has_hip = bool(getattr(torch.version, "hip", None))
    has_cuda = bool(getattr(torch.version, "cuda", None))
    has_xpu = bool(getattr(torch.version, "xpu", None))
    build = "rocm" if has_hip else "cuda" if has_cuda else "xpu" if has_xpu else "cpu"
    present = frozenset(name for name in wanted_operators if has_operator(torch, name))
    return TorchFacts(
        build=build,
        versions={"torch": str(torch.__version__)} | ({"rocm": str(torch.version.hip)} if has_hip else {}),
        devices=(*_cuda_like(torch, "rocm" if has_hip else "cuda"), *_xpu(torch), *_mps(torch)),
        operators=present,
        cpu_capability=str(torch.backends.cpu.get_cpu_capability()),
        imported=True,
    )


def has_operator(torch: Any, name: str) -> bool:
    """Say whether torch knows an operator ``namespace::name``, or a name of its own such as ``torch.nn.Linear``."""
    space, mark, operator = name.partition("::")
    if mark:
        return hasattr(getattr(torch.ops, space), operator)
    found = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found is not None


def _limits(properties: Any) -> dict[str, int]:
    return {name: int(getattr(properties, name)) for name in _LIMITS if hasattr(properties, name)}


def _cuda_like(torch: Any, family: str) -> tuple[RawDevice, ...]:
    if not torch.cuda.is_available():
        return ()
    found = []
    for index in range(torch.cuda.device_count()):
        shown = torch.cuda.get_device_properties(index)
        arch = f"{shown.major}.{shown.minor}" if family == "cuda" else shown.gcnArchName.partition(":")[0]
        found.append(RawDevice(family=family, index=index, arch=arch, name=shown.name, limits=_limits(shown)))
    return tuple(found)


def _xpu(torch: Any) -> tuple[RawDevice, ...]:
    if not (hasattr(torch, "xpu") and torch.xpu.is_available()):
        return ()
    names = [torch.xpu.get_device_name(index) for index in range(torch.xpu.device_count())]
    return tuple(RawDevice(family="xpu", index=i, arch="xpu", name=name) for i, name in enumerate(names))


def _mps(torch: Any) -> tuple[RawDevice, ...]:
    if not torch.backends.mps.is_available():
        return ()
    return (RawDevice(family="mps", index=0, arch="mps", name=processor()),)
