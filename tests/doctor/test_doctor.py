"""Broken environments, made for real where that is cheap: each gives exactly its code, and one command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from doctor_wheels import compile_library
from select_hosts import BASE, HOSTS

from quantfarm.declare.artifact import ArtifactState
from quantfarm.declare.names import DEVICE
from quantfarm.doctor import child, findings, report
from quantfarm.doctor.child import ChildNotStarted, load_in_child
from quantfarm.doctor.finding import Finding, Report
from quantfarm.doctor.findings import gpu_findings
from quantfarm.doctor.paths import duplicate_findings
from quantfarm.doctor.report import examine
from quantfarm.doctor.text import as_text
from quantfarm.select.host import Host

MakeWheel = Callable[..., Path]
REINSTALL = "pip install --force-reinstall --no-deps quantfarm-cpu==0.1.0"
INSTALL = 'pip install "quantfarm[cpu]==0.1.0"'
ABORT = "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n"
UNDEFINED = "extern int quantfarm_missing(void);\nint call(void) { return quantfarm_missing(); }\n"
USES_LIBC = "#include <stdlib.h>\nvoid *call(size_t n) { return malloc(n); }\n"
FINE = "int quantfarm_fine(void) { return 1; }\n"


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


def read(host: Host = BASE) -> Report:
    """Return the report on a fake host as if the library on the path had loaded."""
    return examine(replace(host, artifacts={"cpu": replace(child.describe_library("cpu"), checked=True)}))


def only(seen: Report) -> Finding:
    """Return the one finding."""
    assert [finding.code for finding in seen.findings] == [seen.findings[0].code]
    assert seen.exit_code == 1
    text = as_text(seen)
    assert seen.findings[0].command in text
    assert seen.findings[0].sentence in text
    return seen.findings[0]


def test_no_wheel_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a back-end wheel the cause is artifact_absent and the command installs the extra."""
    monkeypatch.setitem(sys.modules, "quantfarm_cpu", None)
    monkeypatch.setattr("quantfarm.runtime.artifacts._version_of", lambda _: "")
    finding = only(look())
    assert (finding.code, finding.command) == ("artifact_absent", INSTALL)
    assert "needs quantfarm-cpu 0.1.0, got none" in finding.sentence


def test_a_placeholder_wheel(make_wheel: MakeWheel) -> None:
    """A module without manifest is absent too, and the evidence says what was found."""
    (make_wheel() / "manifest.json").unlink()
    finding = only(look())
    assert finding.code == "artifact_absent"
    assert "placeholder" in finding.evidence


def test_a_kernel_left_out(make_wheel: MakeWheel) -> None:
    """A build told to skip the kernel gives the manifest's sentence and the published wheel."""
    row = {"kernel": "int4_panel", "arch": "all", "reason": "left out by the build option QUANTFARM_AVX2=OFF"}
    make_wheel(kernels=[{"kernel": "other", "archs": ["x86_64_avx2"]}], skipped=[row], content=b"bytes")
    finding = only(read())
    assert (finding.code, finding.command) == ("artifact_skipped", REINSTALL)
    assert "QUANTFARM_AVX2=OFF" in finding.sentence


def test_another_version(make_wheel: MakeWheel) -> None:
    """A wheel of another version is told apart from one that is missing."""
    make_wheel(version="0.0.9")
    finding = only(look())
    assert (finding.code, finding.command) == ("artifact_wrong_abi", REINSTALL)
    assert "needs 0.1.0, got 0.0.9" in finding.sentence


def test_an_old_torch_has_one_cause_and_one_command(make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch older than the library's ABI is one finding whose command updates torch."""
    make_wheel(content=b"bytes")
    monkeypatch.setattr("quantfarm.runtime.artifacts._installed_torch", lambda: "2.9.1")
    finding = only(look(replace(BASE, versions={"torch": "2.9.1"})))
    assert (finding.code, finding.command) == ("artifact_wrong_abi", 'pip install "torch>=2.10"')


def test_a_file_that_is_no_library(make_wheel: MakeWheel) -> None:
    """Bytes that are no library keep the loader's own words."""
    make_wheel(content=b"not a library")
    finding = only(look())
    assert (finding.code, finding.command) == ("artifact_failed", REINSTALL)
    assert "invalid ELF header" in finding.sentence or "file too short" in finding.sentence


def test_a_changed_byte(make_wheel: MakeWheel) -> None:
    """A library that is not the one of its manifest is corrupt, and is not loaded."""
    (make_wheel(content=b"bytes") / "libquantfarm_cpu.so").write_bytes(b"byteS")
    finding = only(look())
    assert finding.code == "artifact_failed"
    assert "corrupt: needs sha256" in finding.sentence


def test_a_library_that_aborts(make_wheel: MakeWheel) -> None:
    """A library that ends its process is a finding that names the signal, and this process lives on."""
    make_wheel(source=ABORT)
    finding = only(look())
    assert finding.code == "artifact_failed"
    assert "SIGABRT" in finding.sentence


def test_an_undefined_symbol(make_wheel: MakeWheel) -> None:
    """A symbol that nobody defines means another build: both torch versions and the loader's words are shown."""
    make_wheel(source=UNDEFINED, built_with={"torch": "2.6.0"})
    finding = only(look())
    assert finding.code == "artifact_wrong_abi"
    assert "built with torch 2.6.0, found torch" in finding.sentence
    assert "quantfarm_missing" in finding.sentence


def test_another_c_library(make_wheel: MakeWheel, tmp_path: Path) -> None:
    """A version of the C library that this machine lacks is the finding libc, with needed and found version."""
    compile_library(USES_LIBC, tmp_path / "old.so")
    make_wheel(content=(tmp_path / "old.so").read_bytes().replace(b"GLIBC_2.", b"GLIBC_9."))
    seen = look()
    if "GLIBC" not in seen.host.artifacts["cpu"].text:
        pytest.skip("this C library has no symbol versions")
    finding = only(seen)
    assert (finding.code, finding.command) == ("libc", REINSTALL)
    assert "needs GLIBC_9." in finding.sentence


def test_an_older_processor(make_wheel: MakeWheel) -> None:
    """A wheel whose kernels this processor can not run is named, with the backend that works."""
    make_wheel(content=b"bytes")
    finding = only(read(HOSTS["CPU-AVX512"]))
    assert (finding.code, finding.command) == ("cpu_feature", "quantfarm explain --backend gptq_torch_aten")


def test_another_platform(make_wheel: MakeWheel) -> None:
    """A wheel of another operating system is named as such."""
    make_wheel(content=b"bytes")
    finding = only(read(HOSTS["WINDOWS"]))
    assert (finding.code, "needs linux, got win32" in finding.sentence) == ("platform", True)


def test_r64_two_copies(make_wheel: MakeWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies on the path are named in the order in which they win, with the uninstall line."""
    folder = make_wheel(content=b"bytes")
    other = tmp_path / "site"
    (other / "quantfarm_cpu").mkdir(parents=True)
    path = [str(tmp_path), str(other), str(tmp_path)]
    monkeypatch.setattr(report, "duplicate_findings", partial(duplicate_findings, path=path))
    finding = only(read())
    assert (finding.code, finding.command) == ("duplicate", "pip uninstall quantfarm-cpu")
    assert f"{folder} wins over {other / 'quantfarm_cpu'}" in finding.sentence
    (tmp_path / "pyproject.toml").touch()
    (shadow,) = duplicate_findings(["quantfarm_cpu"], path)
    assert "a source tree shadows the installed package" in shadow.sentence


@pytest.mark.parametrize(
    ("host", "code"),
    [
        (HOSTS["OLD-TORCH"], "toolchain_torch"),
        (HOSTS["NO-TORCH"], "toolchain_torch"),
        (replace(HOSTS["NO-TORCH"], torch_error="libcudart.so.12: cannot open"), "toolchain_torch"),
    ],
)
def test_torch_itself(host: Host, code: str) -> None:
    """An absent, broken or old torch is the one cause, and the command installs it."""
    finding = only(examine(host))
    assert finding.code == code
    assert finding.command.endswith('"torch>=2.10"')
    assert host.torch_error in finding.sentence


def test_a_gpu_that_torch_can_not_use(tmp_path: Path) -> None:
    """A GPU in the machine is a finding when torch has no build for it, and another when torch sees no device."""
    nodes = {DEVICE.CUDA: tmp_path}
    assert [f.code for f in gpu_findings(BASE, nodes)] == ["torch_build"]
    assert [f.code for f in gpu_findings(replace(BASE, torch_build="cuda"), nodes)] == ["family"]
    assert list(gpu_findings(HOSTS["H200"], nodes)) == []
    assert list(gpu_findings(BASE, {DEVICE.CUDA: tmp_path / "nothing"})) == []


def test_a_machine_without_gpu_is_healthy(make_wheel: MakeWheel) -> None:
    """A CPU host with a fitting wheel and the packages has no finding, exit code 0; no GPU is a stated fact."""
    make_wheel(source=FINE)
    seen = look(replace(BASE, versions={**BASE.versions, "bitsandbytes": "0.50.2"}))
    assert (seen.findings, seen.exit_code) == ((), 0)
    assert any("no GPU is visible" in fact for fact in seen.facts)
    assert all(record.usable for record in seen.records if record.written)


@pytest.mark.parametrize("name", ["WINDOWS", "CPU-AVX512", "ARM", "H200-NO-WHEEL"])
def test_a_wheel_that_would_not_help_is_not_missed(name: str) -> None:
    """Where an absent library could not run anyway, its absence is no finding."""
    state = ArtifactState(library="cpu", status="absent")
    assert examine(replace(HOSTS[name], artifacts={"cpu": state})).exit_code == 0


def test_a_child_that_hangs_or_can_not_start(make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that takes too long is a failed library; one that can not start makes the doctor blind: exit code 2."""
    make_wheel(content=b"bytes")
    assert "longer than 0.01 s" in load_in_child("cpu", timeout=0.01).text
    monkeypatch.setattr(sys, "executable", "/nothing/python")
    with pytest.raises(ChildNotStarted):
        load_in_child("cpu")
    seen = report.doctor()
    assert (seen.exit_code, len(seen.blind)) == (2, 1)
    assert "could not look at the cpu library" in as_text(seen)


def test_json_has_the_agreed_keys() -> None:
    """The JSON that the farm stores has its keys, and can be written out."""
    plain = json.loads(json.dumps(examine(BASE).as_json()))
    wanted = {"schema", "python", "platform", "machine", "cpu", "torch", "packages", "devices", "artifacts"}
    assert wanted | {"findings", "exit_code", "interpreter"} <= plain.keys()
    assert {"name", "features", "cores"} <= plain["cpu"].keys()
    assert {"library", "status", "text", "version", "path", "sha256", "kernels"} <= plain["artifacts"][0].keys()


def test_without_torch_it_says_so() -> None:
    """In a process where torch can not be imported the doctor works, finds that, and ends with code 1."""
    script = (
        "import sys; sys.modules['torch'] = None; from quantfarm.doctor.report import doctor; seen = doctor(); "
        "print([f.code for f in seen.findings]); print(seen.facts[0]); sys.exit(seen.exit_code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "toolchain_torch" in done.stdout
    assert "torch is absent" in done.stdout
