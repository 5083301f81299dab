"""The host: what a probe finds without torch, the environment, and levels of the processor."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from select_hosts import BASE, HOSTS

from quantfarm.declare.artifact import ArtifactState
from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import DEVICE
from quantfarm.errors import ConfigError
from quantfarm.select import machine
from quantfarm.select.host import Settings, probe, read_settings


def absent(library: str) -> ArtifactState:
    """Return the state of a library that is not installed."""
    return ArtifactState(library=library, status="absent")


def test_probe_without_torch_reads_metadata_only() -> None:
    """Without torch the probe finds platform, processor, versions and the torch build from files."""
    host = probe(use_torch=False, load_artifact=absent, failed={"x": "text"})
    assert host.platform == sys.platform
    assert [d.family for d in host.devices] == [DEVICE.CPU]
    assert set(host.artifacts) == {"cpu"}
    assert host.torch_ops is None
    assert host.failed == {"x": "text"}
    assert ("torch" in host.versions) == (host.torch_build != "none")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Settings()),
        ({"QUANTFARM_STRICT": " ", "QUANTFARM_CPU_ISA": ""}, Settings()),
        ({"QUANTFARM_STRICT": "On", "QUANTFARM_CPU_ISA": "AVX2"}, Settings(strict=True, cpu_isa="avx2")),
        ({"QUANTFARM_STRICT": "0"}, Settings()),
    ],
)
def test_environment_is_read(environment: dict[str, str], expected: Settings) -> None:
    """Unset and empty mean the default; known values are read in any case."""
    assert read_settings(environment) == expected


@pytest.mark.parametrize(("name", "known"), [("QUANTFARM_STRICT", "1, true"), ("QUANTFARM_CPU_ISA", "auto, avx2")])
def test_an_unknown_value_is_an_error(name: str, known: str) -> None:
    """The error names the variable, the known values and the value found."""
    with pytest.raises(ConfigError) as caught:
        read_settings({name: "fastest"})
    assert all(part in str(caught.value) for part in (name, known, "'fastest'"))


def test_the_probe_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch in the environment reaches the host."""
    monkeypatch.setenv("QUANTFARM_STRICT", "1")
    assert probe(use_torch=False, load_artifact=absent).settings.strict


def test_levels_follow_the_features() -> None:
    """A level needs all its features and a 64-bit x86 machine."""
    assert BASE.runs_level("x86_64_avx512_vnni")
    assert HOSTS["CPU-AVX2"].cpu_level == "x86_64_avx2"
    assert HOSTS["CPU-OLD"].cpu_level == "x86_64"
    assert not HOSTS["ARM"].runs_level("x86_64")
    assert HOSTS["ARM"].cpu_level == "aarch64"


def test_the_key_holds_every_fact() -> None:
    """Equal hosts have equal keys, and one changed fact changes the key."""
    assert replace(BASE).key == BASE.key
    keys = {host.key for host in HOSTS.values()}
    assert len(keys) == len(HOSTS)


def test_processor_features_come_from_the_system(tmp_path: Path) -> None:
    """Flags and name are read from the system's text; torch's own word is the fallback."""
    source = tmp_path / "cpuinfo"
    source.write_text("model name\t: A 9000\nflags\t\t: fpu sse4_2 avx2 fma avx512_bf16\n", encoding="utf-8")
    assert machine.cpu_facts("", source) == (frozenset({"sse4_2", "avx2", "fma", "avx512_bf16"}), "A 9000")
    features, _ = machine.cpu_facts("AVX2", tmp_path / "nothing")
    assert features == {"avx2", "fma", "f16c"}


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None", "cpu"),
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None", "cuda"),
        ("cuda = None\nhip = '7.0'", "rocm"),
    ],
)
def test_the_torch_build_is_read_from_its_version_file(
    text: str, build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version and build are found without importing torch."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.13.0'\n{text}\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    facts = machine.torch_facts_unloaded()
    assert (facts.build, facts.versions) == (build, {"torch": "2.13.0"})
    facts = machine.torch_facts(frozenset())
    assert (facts.imported, facts.error) == (False, "imported" if build != "none" else "")


def fake_torch(hip: str | None) -> SimpleNamespace:
    """Return what the probe asks of torch, with two GPUs."""
    shown = SimpleNamespace(
        major=9, minor=0, gcnArchName="gfx1201:xnack-", name="card", shared_memory_per_block_optin=232448
    )
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, get_device_properties=lambda _: shown)
    backends = SimpleNamespace(
        cpu=SimpleNamespace(get_cpu_capability=lambda: "AVX2"), mps=SimpleNamespace(is_available=lambda: False)
    )
    ops = SimpleNamespace(aten=SimpleNamespace(mm=1))
    version = SimpleNamespace(hip=hip, cuda=None if hip else "12.8", xpu=None)
    return SimpleNamespace(cuda=cuda, backends=backends, ops=ops, version=version, __version__="2.13.0")


@pytest.mark.parametrize(("hip", "family", "arch"), [(None, "cuda", "sm_90"), ("7.1", "rocm", "gfx1201")])
def test_devices_come_with_target_and_limits(
    hip: str | None, family: str, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every ordinal has its exact target and limits, and a HIP build gives rocm devices."""
    monkeypatch.setitem(sys.modules, "torch", fake_torch(hip))
    facts = machine.torch_facts(frozenset({"aten::mm", "aten::nothing"}))
    assert facts.operators == {"aten::mm"}
    host = probe(load_artifact=absent)
    assert [str(d) for d in host.devices] == [f"{family}:0", f"{family}:1", "cpu"]
    assert host.devices[1].arch == parse_arch(arch)
    assert host.devices[1].limits == {"shared_memory_per_block_optin": 232448}
    assert host.torch_build == family
