"""Tested file is shipped file: what lies in dist/ is compared by checksum before anything is done with it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import farm_wheels
import pytest

from farm import build, errors, matrix, places, presence
from farm.environment import requirements
from farm.wheel import Wheel


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a dist/ with one wheel and its build.json."""
    wheel = Wheel(farm_wheels.good().write(tmp_path))
    row = {"distribution": wheel.distribution, "name": wheel.path.name, "sha256": wheel.sha256}
    (tmp_path / "build.json").write_text(json.dumps({"wheels": [row]}))
    monkeypatch.setattr(places, "DIST", tmp_path)
    monkeypatch.setattr(places, "BUILD_RECORD", tmp_path / "build.json")
    return tmp_path


def test_the_built_file_is_accepted(dist: Path) -> None:
    """Unchanged wheels are read with their checksums."""
    assert build.read().hashes() == {"quantfarm-cpu": Wheel(next(dist.glob("*.whl"))).sha256}


def test_one_flipped_byte_is_refused(dist: Path) -> None:
    """R53: a wheel that differs in one bit is refused with needed and found checksum, before any install."""
    path = next(dist.glob("*.whl"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.WheelDiffers, match=r"needs sha256 [0-9a-f]{64}, got [0-9a-f]{64}") as caught:
        build.read()
    assert caught.value.exit_code == 17


def test_a_missing_file_and_a_missing_build_say_what_to_do(dist: Path) -> None:
    """Each names the command that makes the wheels."""
    next(dist.glob("*.whl")).unlink()
    with pytest.raises(errors.WheelDiffers, match="got no file"):
        build.read()
    (dist / "build.json").unlink()
    with pytest.raises(errors.BuildFailed, match="python -m farm build"):
        build.read()


def test_a_target_that_is_not_built_here_says_why() -> None:
    """Asking for a target without code is an error with the matrix's own sentence."""
    with pytest.raises(errors.BuildFailed, match="no device code is in the repository yet"):
        build.build(matrix.load(places.MATRIX), ["cuda12"], print)


def test_exit_codes_are_distinct() -> None:
    """Each kind of failure has an exit code of its own, and none is that of a crash."""
    kinds = [errors.PlanInvalid, errors.BuildFailed, errors.PresenceFailed, errors.RunnerLost, errors.CellsFailed]
    kinds += [errors.EvidenceInvalid, errors.PageStale, errors.WheelDiffers]
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert {0, 1, 2}.isdisjoint(codes)


def test_the_environment_follows_the_front_s_own_metadata(tmp_path: Path) -> None:
    """Requirements come from the wheel: plain ones and those of the extras that the cells need."""
    path = farm_wheels.pack(tmp_path / "quantfarm-0-py3-none-any.whl", {})
    wheel = Wheel(path)
    info = next(name for name in wheel.files if name.endswith("METADATA"))
    lines = ["torch>=2.10", 'accelerate>=1.0 ; extra == "transformers"', "quantfarm-cpu==0 ; extra == 'cpu'"]
    wheel.files[info] = "".join(f"Requires-Dist: {line}\n" for line in lines).encode()  # type: ignore[index]
    found = requirements(wheel)
    assert {"torch>=2.10", "accelerate>=1.0"} <= set(found)
    assert not any("quantfarm-cpu" in line for line in found)


def test_installing_changes_nothing_that_is_installed() -> None:
    """R77: the back end requires nothing, and the front has lower bounds only."""
    front = (places.ROOT / "package/quantfarm/pyproject.toml").read_text(encoding="utf-8")
    back = (places.ROOT / "package/quantfarm-cpu/pyproject.toml").read_text(encoding="utf-8")
    assert "dependencies = []" in back
    needs = re.search(r"^dependencies = \[(.*?)^\]", front, re.DOTALL | re.MULTILINE)
    assert needs is not None
    assert not re.search(r"[<=~!]=\d|<\d", needs[1].replace(">=", ">"))


def test_presence_reads_the_wheel_and_not_the_build_tree(dist: Path, tmp_path: Path) -> None:
    """The gate gives the same answer for a wheel that lies alone somewhere else."""
    from farm import declarations

    alone = tmp_path / "elsewhere"
    alone.mkdir()
    moved = next(dist.glob("*.whl")).rename(alone / next(dist.glob("*.whl")).name)
    report = presence.inspect([Wheel(moved)], declarations.read(), matrix.load(places.MATRIX))
    assert report.findings == []
