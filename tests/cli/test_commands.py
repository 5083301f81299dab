"""The commands: named is used or refused, errors end with their exit code, text and JSON agree."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from gguf_files import SMALL, encoded, three, write
from select_hosts import BASE, HOSTS

from quantfarm import __version__
from quantfarm.cli import app, main
from quantfarm.declare.names import ALIASES, BACKEND, FORMAT, METHOD, POLICIES, normalize_backend
from quantfarm.declare.registry import KERNELS
from quantfarm.doctor.report import examine
from quantfarm.errors import ConfigError
from quantfarm.select.host import Host

LAYER = ["explain", "--in-features", "4096", "--out-features", "11008", "--dtype", "bf16"]
NAMES = [name for backend in BACKEND for name in (backend.value, backend.value.upper())] + [*ALIASES, "", "  "]


class Cli:
    """Runs the command line in this process on a fake host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capsys = monkeypatch, capsys
        self.on(BASE)

    def on(self, host: Host) -> None:
        """Let every probe return this host."""
        self.patch.setattr(app, "probe", lambda **_: host)
        self.patch.setattr(app, "examine", lambda: examine(host))

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error."""
        self.patch.setattr(sys, "argv", ["quantfarm", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self.capsys.readouterr()
        return int(ended.value.code or 0), out, err


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return the runner."""
    return Cli(monkeypatch, capsys)


def test_version(cli: Cli) -> None:
    """--version prints the version."""
    assert cli("--version") == (0, f"quantfarm {__version__}\n", "")


@pytest.mark.parametrize("name", NAMES)
def test_r97_a_named_backend_is_used_or_refused(name: str, cli: Cli) -> None:
    """Named is used, or the exit code is 3 and the reason is printed; text and JSON agree; blank is automatic."""
    code, text, _ = cli(*LAYER, "--backend", name)
    json_code, out, _ = cli(*LAYER, "--backend", name, "--json")
    plain = json.loads(out)
    wanted = normalize_backend(name, METHOD.GPTQ) or BACKEND.AUTO
    assert code == json_code == (0 if plain["chosen"] else 3)
    assert plain["request"]["backend"] == wanted.value
    if wanted in POLICIES:
        assert plain["backend"] == "gptq_torch_aten"
    elif plain["chosen"]:
        assert plain["backend"] == wanted.value
    else:
        first = plain["trace"][0]
        assert first["backend"] == wanted.value
        assert first["reasons"][0]["code"] in text
    assert plain["next"] in text


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--backend", "gptq_torhc"], "nearest known names: gptq_torch"),
        (["--backend", "gptq"], "is a method, not a backend; backends of that method: gptq_bitblas"),
        (["--method", "gtpq"], "nearest known names: gptq"),
        (["--format", "gtpq"], "nearest known names: gptq"),
        (["--device", "gpu"], "device: unknown name 'gpu'"),
        (["--arch", "hopper"], "known spellings: sm_75"),
    ],
)
def test_unknown_names_end_with_two(words: list[str], part: str, cli: Cli) -> None:
    """An unknown name prints the nearest known ones to stderr and ends with 2, without a traceback."""
    code, out, err = cli("explain", *words)
    assert (code, out) == (2, "")
    assert part in err
    assert "Traceback" not in err


def test_explain_prints_candidates_notes_and_the_next_step(cli: Cli) -> None:
    """The text has the request, every candidate with its reasons, and what would change the answer."""
    cli.on(HOSTS["ABSENT"])
    code, text, _ = cli(*LAYER)
    assert code == 0
    assert text.splitlines()[:3] == [
        "GPTQ int4 g128 sym, K=4096 N=11008, bf16, on cpu: gptq_torch_aten",
        "  gptq_torch_cpu_avx512  artifact_absent: needs quantfarm-cpu 0.1.0, got none",
        "  gptq_torch_aten        usable",
    ]
    assert "  gptq_torch             usable" in text.splitlines()
    assert all(f"  {spec.name} " in text for spec in KERNELS if FORMAT.GPTQ in spec.formats and not spec.role)
    assert text.splitlines()[-1].startswith("next: gptq_torch_cpu_avx512 needs quantfarm-cpu 0.1.0: ")
    assert '"quantfarm[cpu]==0.1.0"' in text.splitlines()[-1]


def test_explain_obeys_the_strict_switch(cli: Cli) -> None:
    """With the strict switch a slower choice is shown and the exit code is that of a refusal."""
    cli.on(HOSTS["STRICT-ABSENT"])
    code, text, _ = cli(*LAYER)
    assert code == 3
    assert "refused: QUANTFARM_STRICT is set" in text


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["--arch", "sm_90"], "gptq_torch"),
        (["--arch", "gfx1201", "--device", "cuda:0"], "gptq_torch"),
        (["--arch", "x86_64_avx2"], "gptq_torch_aten"),
        (["--arch", "x86_64_avx512_bf16", "--backend", "gptq_torch_cpu_avx512"], "gptq_torch_cpu_avx512"),
        (["--method", "awq", "--asym"], "awq_torch_aten"),
        (["--bits", "3"], "gptq_torch"),
        (["--group-size", "-1", "--desc-act"], "gptq_torch_fused"),
        (["--format", "gptq_v2", "--device", "cpu"], "gptq_torch_aten"),
    ],
)
def test_options_reach_the_request(words: list[str], chosen: str, cli: Cli) -> None:
    """Method, format, scheme, devices and a supposed target decide the choice."""
    code, out, _ = cli("explain", *words, "--json")
    assert (code, json.loads(out)["backend"]) == (0, chosen)


def test_doctor_ends_with_its_code(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is that of the report, in text and in JSON."""
    monkeypatch.setattr("quantfarm.doctor.report.duplicate_findings", lambda _: ())
    monkeypatch.setattr("quantfarm.doctor.findings.GPU_NODES", {})
    code, out, _ = cli("doctor", "--json")
    assert code == json.loads(out)["exit_code"] == 0
    cli.on(replace(BASE, artifacts={"cpu": replace(BASE.artifacts["cpu"], status="failed", text="broken")}))
    code, out, _ = cli("doctor")
    assert code == 1
    assert "artifact_failed" in out


def test_doctor_that_can_not_look_ends_with_two(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that keeps the doctor from looking is printed and ends with 2."""

    def refuse() -> None:
        raise ConfigError("cannot read the environment: unknown value")

    monkeypatch.setattr(app, "examine", refuse)
    code, _, err = cli("doctor")
    assert (code, "cannot read the environment" in err) == (2, True)


def test_convert_hands_over_its_options(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The converter gets paths and settings, and its errors end with their exit code."""
    seen: dict[str, Any] = {}

    def write(source: Path, target: Path, **settings: Any) -> None:
        seen.update(settings, source=source, target=target)
        if settings["bits"] == 5:
            raise ConfigError("cannot convert: bits")

    monkeypatch.setitem(sys.modules, "quantfarm.load.convert", fake_module(write))
    target = tmp_path / "out"
    code, out, _ = cli("convert", str(tmp_path), str(target), "--group-size", "64", "--asym", "--format", "gptq_v2")
    assert (code, str(target) in out) == (0, True)
    wanted = {"bits": None, "group_size": 64, "sym": False, "desc_act": None, "format": FORMAT.GPTQ_V2}
    wanted |= {"code_type": "", "modules_to_not_convert": (), "requantize": False, "force": False}
    assert seen == wanted | {"source": tmp_path, "target": target}
    code, _, err = cli("convert", str(tmp_path), str(target), "--bits", "5")
    assert (code, err) == (4, "cannot convert: bits\n")


def fake_module(write: Any) -> ModuleType:
    """Return a stand-in for the converter's module."""
    module = ModuleType("quantfarm.load.convert")
    vars(module).update(vars(SimpleNamespace(convert=write)))
    return module


def test_explain_works_without_torch() -> None:
    """Where torch can not be imported, explain names that as the reason, the command, and ends with 3."""
    script = "import sys; sys.modules['torch'] = None; from quantfarm.cli import main; main()"
    command = [sys.executable, "-c", script, *LAYER, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    plain = json.loads(done.stdout)
    tried = [candidate for candidate in plain["trace"] if candidate["priority"]]
    assert all("toolchain_torch" in {reason["code"] for reason in c["reasons"]} for c in tried)
    assert plain["next"].endswith('"torch>=2.10"')


def test_inspect_text_and_json_agree(cli: Cli, tmp_path: Path) -> None:
    """Both forms have the same facts; a contradiction ends with 1 and a broken file with its own code."""
    path = write(tmp_path / "m.gguf", encoded(SMALL, three()))
    code, text, _ = cli("inspect", str(path))
    assert code == 0
    assert "2 layers" in text
    code, out, _ = cli("inspect", str(path), "--json")
    shown = json.loads(out)
    assert (code, shown["schema"], len(shown["layers"])) == (0, "quantfarm-inspect/1", 2)
    write(path, encoded(SMALL | {"llama.block_count": ("u32", 2)}, [replace(three()[1], name="blk.0.w.weight")]))
    assert cli("inspect", str(path))[0] == 1
    path.write_bytes(path.read_bytes()[:40])
    code, out, err = cli("inspect", str(path))
    assert (code, out) == (5, "")
    assert "truncated" in err
