"""Build the wheels into dist/: the front once, each back end once; what was built stands in dist/build.json."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from farm import declarations as facts
from farm import places, source
from farm.errors import BuildFailed, WheelDiffers
from farm.matrix import Matrix
from farm.wheel import Wheel

SCHEMA = 1
FRONT = "quantfarm"
EPOCH = "315619200"
"""The time stamp inside the wheels, so that two builds of one source give one file."""

_TOOLS = ("torch", "scikit-build-core", "cmake", "ninja", "hatchling", "build")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Built:
    """What dist/build.json holds."""

    record: Mapping[str, Any]

    @property
    def wheels(self) -> list[dict[str, Any]]:
        """The rows: distribution, name, sha256, bytes, tag."""
        return list(self.record["wheels"])

    def hashes(self) -> dict[str, str]:
        """Return distribution name to sha256."""
        return {row["distribution"]: row["sha256"] for row in self.wheels}


def build(matrix: Matrix, targets: Sequence[str], say: Say) -> Built:
    """Build the front and the back ends of the targets, check their budgets, move them into dist/.

    Raises:
        BuildFailed: a target that is not built here, a compiler's error, or a file above its budget.
    """
    unknown = [t for t in targets if t not in matrix.targets or not matrix.targets[t].built]
    if unknown:
        buildable = ", ".join(name for name, target in matrix.targets.items() if target.built)
        why = [f"{t}: {matrix.targets[t].note}" for t in unknown if t in matrix.targets]
        raise BuildFailed(f"cannot build {', '.join(unknown)}", lines=why, remedy=f"targets built here: {buildable}")
    state = source.read(places.ROOT)
    places.DIST.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".building-", dir=places.DIST))
    try:
        names = [FRONT, *(matrix.targets[t].wheel for t in targets)]
        built = [_one(name, folder, say) for name in names]
        _check_budgets(built, matrix)
        return _publish(built, state, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _one(distribution: str, folder: Path, say: Say) -> Wheel:
    started = time.monotonic()
    say(f"building {distribution}")
    into = folder / distribution
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(into)]
    command.append(str(places.ROOT / "package" / distribution))
    # The wheel must not depend on who builds it: no foreign PYTHONPATH, one time stamp.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    tail = _stream(command, {**environment, "SOURCE_DATE_EPOCH": EPOCH}, say)
    found = sorted(into.glob("*.whl")) if into.is_dir() else []
    if tail is not None or len(found) != 1:
        raise BuildFailed(f"cannot build {distribution}", lines=tail or ["the build left no wheel"])
    say(f"built {found[0].name} in {time.monotonic() - started:.1f} s")
    return Wheel(found[0])


def _stream(command: Sequence[str], environment: Mapping[str, str], say: Say) -> list[str] | None:
    """Run a command and pass on its lines as they come; return the last ones if it failed."""
    lines: list[str] = []
    with subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            say(f"  {line.rstrip()}")
    return None if process.returncode == 0 else lines[-20:]


def _check_budgets(built: Sequence[Wheel], matrix: Matrix) -> None:
    over = [
        f"{wheel.path.name}: needs at most {matrix.wheels[wheel.distribution].budget_bytes} bytes, got {size}"
        for wheel in built
        if (size := wheel.path.stat().st_size) > matrix.wheels[wheel.distribution].budget_bytes
    ]
    if over:
        raise BuildFailed(
            "cannot take the wheels: too large", lines=over, remedy="raise the budget in matrix.yaml, with the reason"
        )


def _publish(built: Sequence[Wheel], state: source.Source, say: Say) -> Built:
    record = _record(built, state)
    for old in places.DIST.glob("*.whl"):
        old.unlink()
    for wheel in built:
        wheel.path.replace(places.DIST / wheel.path.name)
    places.write_atomic(places.BUILD_RECORD, json.dumps(record, indent=2) + "\n")
    for row in record["wheels"]:
        say(f"{row['name']}  {row['bytes']} bytes  sha256 {row['sha256']}")
    return Built(record)


def _record(built: Sequence[Wheel], state: source.Source) -> dict[str, Any]:
    compilers, declared = [_compiler(wheel) for wheel in built], facts.read()
    return {
        "schema": SCHEMA,
        "commit": state.commit,
        "dirty": state.dirty,
        "compiler": next((text for text in compilers if text), ""),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _TOOLS}},
        "machine": platform.machine(),
        "image": "none: built on the machine itself",
        "declarations": facts.digest(declared),
        "kernels": kernel_hashes(declared),
        "constraints": places.sha256(places.CONSTRAINTS),
        "wheels": [
            {
                "distribution": wheel.distribution,
                "name": wheel.path.name,
                "sha256": wheel.sha256,
                "bytes": wheel.path.stat().st_size,
                "tag": wheel.tag,
            }
            for wheel in built
        ],
    }


def kernel_hashes(declared: Mapping[str, Any]) -> dict[str, str]:
    """Return kernel folder to the checksum of its two halves in this source tree."""
    libraries = {record["kernel"]: facts.library_of(record) for record in declared["records"]}
    return {kernel: places.kernel_hash(places.ROOT, kernel, library) for kernel, library in libraries.items()}


def _compiler(wheel: Wheel) -> str:
    manifest = wheel.files.get(f"{wheel.module}/manifest.json")
    if not manifest:
        return ""
    with_what = json.loads(manifest).get("built_with", {})
    return f"{with_what.get('compiler', '')} {with_what.get('compiler_version', '')}".strip()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def read() -> Built:
    """Return what was built last, after comparing the files in dist/ with their checksums.

    Raises:
        BuildFailed: nothing was built.
        WheelDiffers: a file is missing or is not the one that was built.
    """
    if not places.BUILD_RECORD.is_file():
        remedy = "python -m farm build"
        raise BuildFailed("cannot find built wheels: needs dist/build.json, got none", remedy=remedy)
    built = Built(json.loads(places.BUILD_RECORD.read_text(encoding="utf-8")))
    verify(built.wheels, places.DIST)
    return built


def verify(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Compare wheel files with their listed checksums; see ``read``."""
    wrong = []
    for row in rows:
        path = folder / row["name"]
        got = places.sha256(path) if path.is_file() else "no file"
        if got != row["sha256"]:
            wrong.append(f"{row['name']}: needs sha256 {row['sha256']}, got {got}")
    if wrong:
        raise WheelDiffers(
            "cannot use the wheels in dist/: they are not the files that were built",
            lines=wrong,
            remedy="python -m farm build",
        )
