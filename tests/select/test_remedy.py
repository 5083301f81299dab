"""Remedies: every reason that lies in the installation has one command, spelled for the installer in use."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from select_asks import ask
from select_hosts import BASE, HOSTS

from quantfarm import __version__
from quantfarm.declare.names import BACKEND
from quantfarm.declare.reason import SENTENCES, Reason
from quantfarm.select import remedy
from quantfarm.select.choose import select
from quantfarm.select.explain import explain
from quantfarm.select.remedy import command, installer
from quantfarm.select.wording import advice, improvement

NATIVE = BACKEND.GPTQ_TORCH_CPU_AVX512
INSTALLATION = [code for code in SENTENCES if Reason(code, "", "").is_installation and code != "artifact_device"]


@pytest.fixture(autouse=True)
def _pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suppose an environment that pip manages."""
    monkeypatch.setattr(remedy, "installer", lambda: "pip install")


@pytest.mark.parametrize("code", INSTALLATION)
def test_every_installation_code_has_a_command(code: str) -> None:
    """A command exists for each cause that a command can remove, and names only packages of the project's world."""
    text = command(Reason(code, "package >= 1.0", "none"), NATIVE, BASE)
    assert text.startswith("pip install ")
    assert any(word in text for word in (f"=={__version__}", '"torch>=', "--upgrade torch", '"package>=1.0"'))


def test_other_codes_have_none() -> None:
    """Hardware and request are not changed by a command; a member without record has no library to install."""
    assert command(Reason("arch", "sm_90", "sm_80"), NATIVE, BASE) == ""
    assert command(Reason("artifact_absent", "", ""), BACKEND.MARLIN, BASE) == ""


def test_an_old_torch_is_the_remedy_of_a_foreign_library() -> None:
    """A library that fits this front and not this torch is repaired by a newer torch."""
    reason = Reason("artifact_wrong_abi", "", "")
    assert command(reason, NATIVE, HOSTS["OLD-TORCH"]) == 'pip install "torch>=2.10"'
    assert command(reason, NATIVE, BASE).endswith(f"--no-deps quantfarm-cpu=={__version__}")


@pytest.mark.parametrize(("config", "words"), [("uv = 0.9\n", "uv pip install"), ("home = x\n", "pip install")])
def test_the_installer_is_the_one_that_made_the_environment(
    config: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment made by uv gets uv's spelling, also of a forced reinstall."""
    (tmp_path / "pyvenv.cfg").write_text(config, encoding="utf-8")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    installer.cache_clear()
    monkeypatch.setattr(remedy, "installer", installer)
    assert remedy.install_library("cpu") == f'{words} "quantfarm[cpu]=={__version__}"'
    flag = "--reinstall-package quantfarm-cpu" if words.startswith("uv") else "--force-reinstall"
    assert remedy.reinstall_library("cpu") == f"{words} {flag} --no-deps quantfarm-cpu=={__version__}"
    installer.cache_clear()


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("ABSENT", "gptq_torch_cpu_avx512 needs quantfarm-cpu"),
        ("CPU-BF16", 'gptq_torch_cpu_avx512 runs when it is asked for: backend="gptq_torch_cpu_avx512"'),
        ("CPU-AVX512", "gptq_torch_cpu_avx512 needs avx512_bf16 (cpu_feature)"),
    ],
)
def test_what_would_change_a_choice(host: str, text: str) -> None:
    """The way to the better backend: a command, its name, or what the machine lacks; nothing for a demand."""
    asked = ask("gptq/gptq W4 g128 bf16", HOSTS[host])
    assert improvement(explain(asked, HOSTS[host]), HOSTS[host]).startswith(text)
    named = replace(asked, backend=BACKEND.GPTQ_TORCH)
    assert improvement(explain(named, HOSTS[host]), HOSTS[host]) == ""


def test_choosing_imports_no_torch() -> None:
    """Probing without torch and choosing pull in neither torch nor numpy."""
    script = (
        "import sys; from quantfarm.select.host import probe; from quantfarm.select.explain import explain; "
        "from quantfarm.select.request import Request; from quantfarm.declare.scheme import Scheme; "
        "scheme = Scheme(bits=4, group_size=128, sym=True); "
        "explain(Request(method='gptq', format='gptq', scheme=scheme), probe(use_torch=False)); "
        "print({'torch', 'numpy', 'triton'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_what_is_not_written_has_no_command() -> None:
    """Where no kernel of this version serves a pair, the advice says so and offers nothing to install."""
    message = advice(explain(ask("nf12/nf12 W12 bf16", HOSTS["H200"]), HOSTS["H200"]), HOSTS["H200"])
    assert message == "no kernel of this version serves it; `quantfarm doctor` lists the kernels that it has"
    shown = improvement(explain(ask("gptq/gptq W4 g128 fp16", HOSTS["H200"]), HOSTS["H200"]), HOSTS["H200"])
    assert shown == f"machete needs kernel code in quantfarm {__version__} (artifact_absent)"
    strict = replace(HOSTS["H200"], settings=replace(BASE.settings, strict=True))
    assert explain(ask("gptq/gptq W4 g128 fp16", strict), strict).backend is BACKEND.GPTQ_TORCH
    assert select(ask("gptq/gptq W4 g128 fp16", strict), strict).backend is BACKEND.GPTQ_TORCH
