"""The causes of a missing kernel, each with its broken environment made for real: exactly its code, and its remedy."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from doctor_wheels import compile_library
from select_hosts import BASE, HOSTS

from quantfarm import __version__
from quantfarm.doctor import findings, report
from quantfarm.doctor.child import describe_library, load_in_child
from quantfarm.doctor.driver import driver_findings
from quantfarm.doctor.finding import Finding, Report
from quantfarm.doctor.paths import duplicate_findings
from quantfarm.doctor.records import record_states
from quantfarm.doctor.report import examine
from quantfarm.doctor.text import as_text
from quantfarm.select import machine
from quantfarm.select.host import Host

MakeWheel = Callable[..., Path]
INSTALL = f'pip install "quantfarm[cpu]=={__version__}"'
REINSTALL = f"pip install --force-reinstall --no-deps quantfarm-cpu=={__version__}"
ILLEGAL = "__attribute__((constructor)) static void start(void) { __builtin_trap(); }\n"
MISSING_LIBRARY = "int quantfarm_fine(void) { return 1; }\n"
FRONT = Path(report.__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep this machine out of it: no GPU of its own, no copies on its own path, pip as the installer."""
    monkeypatch.setattr(findings, "GPU_NODES", {})
    monkeypatch.setattr(report, "duplicate_findings", partial(duplicate_findings, path=[str(tmp_path)]))
    for module in ("quantfarm.doctor.findings", "quantfarm.doctor.paths", "quantfarm.select.remedy"):
        monkeypatch.setattr(f"{module}.installer", lambda: "pip install")


def look(host: Host = BASE) -> Report:
    """Return the report on a fake host with the library that lies on the path, loaded in a child."""
    return examine(replace(host, artifacts={"cpu": load_in_child("cpu")}))


def only(seen: Report) -> Finding:
    """Return the one finding, which text and JSON show with its command."""
    assert [finding.code for finding in seen.findings] == [seen.findings[0].code]
    assert seen.exit_code == 1
    plain = json.loads(json.dumps(seen.as_json()))
    assert plain["findings"][0]["command"] == seen.findings[0].command
    assert seen.findings[0].command in as_text(seen)
    return seen.findings[0]


def unpack_wheel(folder: Path, files: dict[str, str], name: str = "quantfarm_cpu") -> None:
    """Make a wheel of these files with its dist-info, and unpack it as an installer does."""
    info = f"{name}-{__version__}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {__version__}\n"
    path = folder / f"{name}-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in {**files, f"{info}/METADATA": head, f"{info}/RECORD": ""}.items():
            wheel.writestr(member, text)
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(folder)
    path.unlink()


def manifest(**changes: Any) -> str:
    """Return a manifest that fits this front but for the changes."""
    facts = {"version": __version__, "library": "libquantfarm_cpu.so", "sha256": "", "skipped": []}
    facts |= {"kernels": [{"kernel": "int4_panel", "ops": [], "archs": ["x86_64_avx2"]}]}
    return json.dumps(facts | changes)


def test_cause_1_a_wheel_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel whose manifest lists a library that it does not hold is broken, and replaced at the front's version."""
    unpack_wheel(tmp_path, {"quantfarm_cpu/__init__.py": "", "quantfarm_cpu/manifest.json": manifest()})
    monkeypatch.syspath_prepend(str(tmp_path))
    found = only(look())
    assert (found.code, found.command) == ("artifact_failed", REINSTALL)
    assert "missing: libquantfarm_cpu.so is listed in manifest.json but not there" in found.sentence


def test_cause_1_a_pure_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel without native code is a placeholder: an install would say it is there already, so it is reinstalled."""
    unpack_wheel(tmp_path, {"quantfarm_cpu/__init__.py": ""})
    monkeypatch.syspath_prepend(str(tmp_path))
    found = only(look())
    assert (found.code, found.command) == ("artifact_absent", REINSTALL)
    assert "got an installation without native code" in found.sentence


def test_cause_1_a_dist_info_without_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is recorded as installed and has no module is told apart from one that never was installed."""
    unpack_wheel(tmp_path, {})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "quantfarm_cpu", None)
    found = only(look())
    assert (found.code, found.command) == ("artifact_absent", REINSTALL)
    assert f"quantfarm-cpu {__version__} is recorded as installed, but there is no quantfarm_cpu" in found.evidence


def test_cause_1_nothing_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any trace of the package the command installs the extra."""
    monkeypatch.setitem(sys.modules, "quantfarm_cpu", None)
    monkeypatch.setattr("quantfarm.runtime.artifacts._version_of", lambda _: "")
    assert only(look()).command == INSTALL


def test_cause_2_a_build_that_left_the_kernel_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch that left the kernel out is named as the manifest names it."""
    skipped = [{"kernel": "int4_panel", "arch": "all", "reason": "left out by QUANTFARM_BUILD_CPU=0"}]
    files = {"quantfarm_cpu/manifest.json": manifest(kernels=[], skipped=skipped)}
    unpack_wheel(tmp_path, {"quantfarm_cpu/__init__.py": "", **files})
    monkeypatch.syspath_prepend(str(tmp_path))
    found = only(look())
    assert (found.code, found.command) == ("artifact_skipped", REINSTALL)
    assert "QUANTFARM_BUILD_CPU=0" in found.sentence


STUB_TORCH = """
from types import SimpleNamespace
__version__ = "2.13.0+cpu"
version = SimpleNamespace(cuda=None, hip=None, xpu=None)
cuda = SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
backends = SimpleNamespace(
    cpu=SimpleNamespace(get_cpu_capability=lambda: "AVX2"), mps=SimpleNamespace(is_available=lambda: False)
)
ops = SimpleNamespace(aten=SimpleNamespace(), load_library=lambda path: None)
"""


def test_r64_cause_3_a_cpu_only_torch_beside_a_gpu(tmp_path: Path) -> None:
    """A stub of a CPU-only torch in its own process beside a card: the code torch_build, and the command for torch."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(STUB_TORCH, encoding="utf-8")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.13.0+cpu'\ncuda = None\n", encoding="utf-8")
    node = tmp_path / "nvidiactl"
    node.touch()
    script = f"""
import json, sys
from pathlib import Path
sys.path[:0] = [{str(tmp_path)!r}, {str(FRONT)!r}]
sys.modules["quantfarm_cpu"] = None
from quantfarm.declare.names import DEVICE
from quantfarm.doctor import findings, report
findings.GPU_NODES.clear()
findings.GPU_NODES[DEVICE.CUDA] = Path({str(node)!r})
report.duplicate_findings = lambda modules: ()
print(json.dumps(report.doctor().as_json()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plain = json.loads(done.stdout)
    (found,) = [finding for finding in plain["findings"] if finding["code"] == "torch_build"]
    assert plain["torch"] == {"version": "2.13.0+cpu", "build": "cpu", "error": ""}
    assert "needs a cuda build, got 2.13.0+cpu" in found["sentence"]
    assert found["command"].endswith('--force-reinstall "torch>=2.10"')
    assert plain["exit_code"] == 1


def test_cause_4_an_illegal_instruction(make_wheel: MakeWheel) -> None:
    """A library that runs an instruction the processor refuses ends its child, and this process lives on."""
    make_wheel(source=ILLEGAL)
    found = only(look())
    assert (found.code, found.command) == ("artifact_failed", REINSTALL)
    assert "SIGILL" in found.sentence or "SIGTRAP" in found.sentence


def test_cause_4_another_abi(make_wheel: MakeWheel) -> None:
    """A library for a later ABI than the installed torch has is told apart, with both versions."""
    make_wheel(source=MISSING_LIBRARY, torch_abi="99.0")
    found = only(look(replace(BASE, versions={**BASE.versions, "torch": "2.10.0"})))
    assert (found.code, found.command) == ("artifact_wrong_abi", REINSTALL)
    assert "is older than 99.0, the library's ABI" in found.sentence


def test_cause_4_a_library_that_is_not_there(make_wheel: MakeWheel, tmp_path: Path) -> None:
    """A library that needs another one that is gone keeps the loader's sentence with the name of the missing file."""
    helper = tmp_path / "libgone.so"
    compile_library("int gone(void) { return 1; }\n", helper)
    folder = make_wheel(source=MISSING_LIBRARY)
    library = folder / "libquantfarm_cpu.so"
    code = tmp_path / "uses.c"
    code.write_text("int gone(void);\nint call(void) { return gone(); }\n", encoding="utf-8")
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(code), f"-L{tmp_path}", "-lgone"]
    subprocess.run(command, check=True, capture_output=True)
    helper.unlink()
    facts = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    facts["sha256"] = findings_checksum(library)
    (folder / "manifest.json").write_text(json.dumps(facts), encoding="utf-8")
    found = only(look())
    assert found.code == "artifact_failed"
    assert "libgone.so: cannot open shared object file" in found.sentence


def findings_checksum(path: Path) -> str:
    """Return the checksum that a manifest states."""
    from quantfarm.runtime.artifacts import sha256

    return sha256(path)


def test_cause_5_a_missing_arch(make_wheel: MakeWheel) -> None:
    """A wheel that loads and has no code for this processor is named with what it holds, and the backend that works."""
    archs = [{"kernel": "int4_panel", "ops": [], "archs": ["x86_64_avx512_vnni"]}]
    make_wheel(source=MISSING_LIBRARY, kernels=archs)
    state = replace(describe_library("cpu"), checked=True)
    found = only(examine(replace(HOSTS["ONLY-VNNI"], artifacts={"cpu": state})))
    assert (found.code, found.command) == ("artifact_device", "quantfarm explain --backend gptq_torch_aten")
    assert "x86_64_avx512_vnni" in found.sentence


VERSION_FILE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed Nov 30 06:39:21 UTC 2022\n"


def test_cause_6_a_driver_below_the_floor(make_wheel: MakeWheel, tmp_path: Path) -> None:
    """A driver older than the wheel's manifest asks for is one finding that says which driver to install."""
    source = tmp_path / "version"
    source.write_text(VERSION_FILE, encoding="utf-8")
    driver = machine.driver_version(source)
    make_wheel(source=MISSING_LIBRARY, driver="550")
    state = replace(describe_library("cpu"), checked=True)
    host = replace(BASE, artifacts={"cpu": state}, versions={**BASE.versions, "driver": driver})
    (found,) = driver_findings(host, record_states(host), control=source, library=driver)
    assert (found.code, found.command) == ("driver", "update the NVIDIA driver to 550 or later")
    assert "needs driver >= 550, got 525.60.13" in found.sentence


def test_cause_6_two_halves_that_differ(tmp_path: Path) -> None:
    """A kernel module and a library of different versions, as after an update without a restart, need a restart."""
    (tmp_path / "libcuda.so.550.54.15").touch()
    (tmp_path / "libcuda.so.1").symlink_to("libcuda.so.550.54.15")
    library = machine.driver_library_version([tmp_path / "nothing", tmp_path])
    host = replace(HOSTS["H200"], versions={**BASE.versions, "driver": "525.60.13"})
    (found,) = driver_findings(host, (), control=tmp_path, library=library)
    assert (found.code, found.command) == ("driver", "sudo reboot")
    assert "the kernel module is 525.60.13, the library is 550.54.15" in found.sentence


def test_cause_6_a_container_without_its_cards(tmp_path: Path) -> None:
    """A driver whose device files are not there is a container that was not given them."""
    host = replace(BASE, versions={**BASE.versions, "driver": "550.54.15"})
    (found,) = driver_findings(host, (), control=tmp_path / "nothing", library="")
    assert (found.code, found.command) == ("driver", "docker run --gpus all")
    assert list(driver_findings(BASE, (), control=tmp_path / "nothing")) == []
    assert machine.driver_version(tmp_path / "nothing") == machine.driver_library_version([]) == ""


def test_declared_kernels_are_no_findings() -> None:
    """A card whose kernels are not written is no fault of the installation; text and JSON say which they are."""
    seen = examine(HOSTS["H200"])
    assert (seen.findings, seen.exit_code) == ((), 0)
    absent = {record.name for record in seen.records if not record.written}
    assert {"machete-gptq", "marlin-gptq", "vllm-gptq"} <= absent
    assert f"declared only, without code in this version ({len(absent)})" in as_text(seen)
    assert {r["record"] for r in seen.as_json()["records"] if not r["implemented"]} == absent
