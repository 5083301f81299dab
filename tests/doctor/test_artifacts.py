"""States of a native library read from its files alone, each with the text a person needs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quantfarm import __version__
from quantfarm.doctor.child import ending
from quantfarm.runtime import artifacts
from quantfarm.runtime.artifacts import describe_library

MakeWheel = Callable[..., Path]


def test_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that can not be found is absent, without text."""
    monkeypatch.setitem(sys.modules, "quantfarm_cpu", None)
    monkeypatch.setattr(artifacts, "_version_of", lambda _: "")
    state = describe_library("cpu")
    assert (state.status, state.text, state.path) == ("absent", "", "")


def test_fitting_files(make_wheel: MakeWheel) -> None:
    """Files that fit are loaded in name only: nothing was checked, and the module was not imported."""
    folder = make_wheel(content=b"bytes")
    state = describe_library("cpu")
    assert (state.status, state.checked, state.version) == ("loaded", False, __version__)
    assert state.path == str(folder / "libquantfarm_cpu.so")
    assert state.archs("int4_panel")[0] == "x86_64_avx2"


def test_placeholder(make_wheel: MakeWheel) -> None:
    """A module without manifest is a placeholder: absent, and the text says that a module is there."""
    (make_wheel() / "manifest.json").unlink()
    state = describe_library("cpu")
    assert state.status == "absent"
    assert "no manifest.json" in state.text


def test_unreadable_manifest(make_wheel: MakeWheel) -> None:
    """A manifest that is no JSON is a failure that keeps the parser's words."""
    (make_wheel() / "manifest.json").write_text("{", encoding="utf-8")
    state = describe_library("cpu")
    assert state.status == "failed"
    assert "JSONDecodeError" in state.text


def test_other_version(make_wheel: MakeWheel) -> None:
    """A wheel of another version names both versions."""
    make_wheel(version="0.0.9")
    state = describe_library("cpu")
    assert (state.status, state.text) == ("wrong_abi", f"quantfarm-cpu: needs {__version__}, got 0.0.9")


def test_everything_left_out(make_wheel: MakeWheel) -> None:
    """A build that left every kernel out gives the manifest's sentence."""
    rows = [{"kernel": "int4_panel", "arch": arch, "reason": "QUANTFARM_AVX2=OFF"} for arch in ("a", "b")]
    make_wheel(kernels=[], skipped=rows)
    state = describe_library("cpu")
    assert (state.status, state.text) == ("skipped", "QUANTFARM_AVX2=OFF")


def test_no_kernel_at_all(make_wheel: MakeWheel) -> None:
    """A manifest without kernels and without a sentence is a wheel that holds nothing."""
    make_wheel(kernels=[])
    assert describe_library("cpu").status == "absent"


def test_missing_file(make_wheel: MakeWheel) -> None:
    """A library that the manifest lists and the folder lacks is a failure that names the file."""
    (make_wheel() / "libquantfarm_cpu.so").unlink()
    state = describe_library("cpu")
    assert state.status == "failed"
    assert "libquantfarm_cpu.so" in state.text


def test_one_changed_byte(make_wheel: MakeWheel) -> None:
    """A library that differs from its manifest by one byte is corrupt, with both checksums."""
    folder = make_wheel(content=b"bytes")
    (folder / "libquantfarm_cpu.so").write_bytes(b"byteS")
    state = describe_library("cpu")
    assert state.status == "failed"
    assert state.text.startswith("corrupt: needs sha256 ")
    assert ", got " in state.text


@pytest.mark.parametrize(("torch", "status"), [("2.9.1", "wrong_abi"), ("2.10.0a0+git", "loaded"), ("", "loaded")])
def test_older_torch(torch: str, status: str, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch older than the library's ABI is told apart; without torch the files are all that can be judged."""
    make_wheel(content=b"bytes")
    monkeypatch.setattr(artifacts, "_installed_torch", lambda: torch)
    state = describe_library("cpu")
    assert state.status == status
    assert status == "loaded" or "torch 2.9.1 is older than 2.10" in state.text


def test_how_a_process_ended() -> None:
    """A signal is named, an exit code is printed."""
    assert [ending(code) for code in (-6, 3, -250)] == ["SIGABRT", "exit code 3", "signal 250"]
