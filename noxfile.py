"""The entry for people and CI: ``python3 noxfile.py -s tests`` and ``python3 noxfile.py -s farm``.

Plain Python needs no nox: the file brings nox into an environment of its own (.nox-bootstrap/) and runs it there,
so a system Python that refuses ``pip install`` (PEP 668) stays untouched. ``nox -s NAME`` works as well.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
CONSTRAINTS = ROOT / "ci" / "constraints.txt"
BOOTSTRAP = ROOT / ".nox-bootstrap"
SOURCES = os.pathsep.join([str(ROOT / "package" / "quantfarm" / "src"), str(ROOT / "ci")])

if importlib.util.find_spec("nox") is not None:
    import nox

    nox.needs_version = ">=2024.10.9"
    nox.options.sessions = ["tests"]
    nox.options.reuse_venv = "yes"
    nox.options.error_on_external_run = True
    PROJECT = nox.project.load_toml("pyproject.toml")

    def need(session: nox.Session, group: str) -> None:
        """Install one dependency group of pyproject.toml at the pinned versions, with progress shown."""
        wanted = nox.project.dependency_groups(PROJECT, group)
        session.install("-c", str(CONSTRAINTS), *wanted, silent=False)

    def farm(session: nox.Session, *arguments: str) -> None:
        """Run one step of the farm from the source tree; the wheels it tests are the built files."""
        need(session, "main-job")
        session.run("python", "-m", "farm", *arguments, env={"PYTHONPATH": SOURCES})

    @nox.session
    def tests(session: nox.Session) -> None:
        """Lint, types and every test that needs no GPU; builds the native wheel first."""
        need(session, "tests")
        session.install("--no-deps", "--no-build-isolation", "-e", "package/quantfarm")
        session.install(
            "--no-deps", "--no-build-isolation", "--force-reinstall", "./package/quantfarm-cpu", silent=False
        )
        check(session)
        # Two workers on two cores: threads that spin for each other inside a worker would only take time.
        session.run("pytest", "-n", "2", *session.posargs, env={"OMP_NUM_THREADS": "1"})

    def check(session: nox.Session) -> None:
        """Run the linters and the type checker."""
        session.run("ruff", "check", ".")
        session.run("ruff", "format", "--check", ".")
        session.run("mypy")

    @nox.session
    def lint(session: nox.Session) -> None:
        """Only the linters and the type checker."""
        need(session, "tests")
        check(session)

    @nox.session(name="farm")
    def main_job(session: nox.Session) -> None:
        """The main job: build the wheels, read them, run them on this machine, write evidence, make the matrix."""
        arguments = session.posargs or ["--tier", "default"]
        farm(session, "build")
        for step in (["presence"], ["run", *arguments], ["page", "--open"]):
            session.run("python", "-m", "farm", *step, env={"PYTHONPATH": SOURCES})

    @nox.session
    def plan(session: nox.Session) -> None:
        """Print the cells of a run without running anything."""
        farm(session, "plan", *session.posargs)

    @nox.session
    def build(session: nox.Session) -> None:
        """Build the wheels into dist/."""
        farm(session, "build", *session.posargs)

    @nox.session
    def presence(session: nox.Session) -> None:
        """Read the finished wheels and compare them with the declarations."""
        farm(session, "presence", *session.posargs)

    @nox.session
    def hw(session: nox.Session) -> None:
        """Run the cells of this machine from the built wheels."""
        farm(session, "run", *session.posargs)

    @nox.session
    def page(session: nox.Session) -> None:
        """Make the support matrix from declarations and evidence."""
        farm(session, "page", *session.posargs)


def bootstrap() -> int:
    """Run nox with the given arguments; where it is missing, first make an environment with it, once."""
    python = BOOTSTRAP / ("Scripts" if os.name == "nt" else "bin") / "python"
    if importlib.util.find_spec("nox") is not None:
        python = Path(sys.executable)
    elif not (BOOTSTRAP / "ready").exists():
        print("quantfarm: making an environment for nox in .nox-bootstrap/ (once)", flush=True)
        make_environment()
        subprocess.run([python, "-m", "pip", "install", "-q", "-c", CONSTRAINTS, "nox"], check=True)
        (BOOTSTRAP / "ready").touch()
    return subprocess.call([python, "-m", "nox", "-f", __file__, *sys.argv[1:]], cwd=ROOT)


def make_environment() -> None:
    """Create the environment; Debian splits ensurepip off, so bring that package where it is missing and root may."""
    if importlib.util.find_spec("ensurepip") is None:
        package = f"python3.{sys.version_info.minor}-venv"
        command = ["apt-get", "install", "-y", package]
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            sys.exit(f"this Python has no ensurepip: needs {package}, got none\nsudo {' '.join(command)}")
        print(f"quantfarm: this Python has no ensurepip; running {' '.join(command)}", flush=True)
        subprocess.run(["apt-get", "update"], check=True)
        subprocess.run(command, check=True)
    shutil.rmtree(BOOTSTRAP, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", BOOTSTRAP], check=True)


if __name__ == "__main__":
    try:
        sys.exit(bootstrap())
    except subprocess.CalledProcessError as error:
        sys.exit(f"the command failed with exit code {error.returncode}: {' '.join(map(str, error.cmd))}")
