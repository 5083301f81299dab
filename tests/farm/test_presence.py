"""The presence gate finds what a finished wheel lacks and what it should not hold, and names record and arch."""

from __future__ import annotations

import zipfile
from pathlib import Path

import farm_wheels
import pytest

from farm import declarations, matrix, places, presence
from farm.errors import WheelDiffers
from farm.wheel import Wheel

RULES = matrix.load(places.MATRIX)
DECLARED = declarations.read()
ARCH = "x86_64_avx512"


def findings(path: Path) -> list[presence.Finding]:
    """Inspect one wheel."""
    return presence.inspect([Wheel(path)], DECLARED, RULES).findings


def texts(path: Path) -> str:
    """Return all findings as text."""
    return "\n".join(map(str, findings(path)))


def test_a_good_wheel_passes(tmp_path: Path) -> None:
    """R53 (1): a wheel that holds exactly what is declared has no finding, and each pair has its proof."""
    report = presence.inspect([Wheel(farm_wheels.good().write(tmp_path))], DECLARED, RULES)
    assert report.findings == []
    markers = presence.declared_markers(DECLARED, "cpu", "cpu")
    assert markers
    assert report.present == markers


def test_a_wheel_without_its_library_fails(tmp_path: Path) -> None:
    """R53 (2): the same wheel with the library removed fails for every declared record and arch."""
    wheel = farm_wheels.good()
    wheel.without_library = True
    found = findings(wheel.write(tmp_path))
    assert {(f.record, f.arch) for f in found} == set(presence.declared_markers(DECLARED, "cpu", "cpu"))


def test_a_missing_kernel_is_named_with_record_and_arch(tmp_path: Path) -> None:
    """R53 (3): a library built without one level fails and names each record and the arch."""
    wheel = farm_wheels.good()
    gone = [name for name in wheel.names if name.endswith("_avx512")]
    wheel.names = [name for name in wheel.names if name not in gone]
    found = findings(wheel.write(tmp_path))
    records = {r["name"] for r in DECLARED["records"] if r["artifact"]["kind"] == "native" and r["implemented"]}
    assert {(f.record, f.arch) for f in found} == {(name, ARCH) for name in records}
    assert gone[0] in str(found[0])


def test_a_level_that_was_left_out_fails_with_the_manifest_s_sentence(tmp_path: Path) -> None:
    """What a build leaves out on purpose is still declared, and the sentence says which switch did it."""
    wheel = farm_wheels.good()
    wheel.names = [name for name in wheel.names if not name.endswith("_avx512")]
    row = wheel.manifest["kernels"][0]
    row["archs"].remove(ARCH)
    sentence = "left out by the build option QUANTFARM_AVX512=OFF"
    wheel.manifest["skipped"] = [{"kernel": row["kernel"], "arch": ARCH, "reason": sentence}]
    assert sentence in texts(wheel.write(tmp_path))


def test_an_undeclared_arch_fails(tmp_path: Path) -> None:
    """Code that no record declares fails too, by symbol and by manifest."""
    wheel = farm_wheels.good()
    row = wheel.manifest["kernels"][0]
    wheel.names.append(f"quantfarm_cpu_{row['kernel']}_avx512_bf16")
    row["archs"].append("x86_64_avx512_bf16")
    found = texts(wheel.write(tmp_path))
    assert f"symbol quantfarm_cpu_{row['kernel']}_avx512_bf16: present, but no record declares it" in found
    assert "lists" in found


def test_a_hand_edited_manifest_fails(tmp_path: Path) -> None:
    """A manifest whose checksum, list of archs or operators differs from the library is found."""
    wheel = farm_wheels.good()
    wheel.digest = "0" * 64
    wheel.manifest["kernels"][0]["ops"] = []
    wheel.manifest["kernels"][0]["archs"].remove(ARCH)
    found = texts(wheel.write(tmp_path))
    assert "manifest.json sha256: says 000" in found
    assert "operator" in found
    assert "does not list it: no sentence says why" in found


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    """One changed byte of a member is found, by RECORD or by the zip's own checksum."""
    path = farm_wheels.good().write(tmp_path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    library = "quantfarm_cpu/libquantfarm_cpu.so"
    flipped = bytearray(files[library])
    flipped[70] ^= 1
    files[library] = bytes(flipped)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    assert f"{library}: RECORD needs sha256=" in texts(path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(flipped) + 70] ^= 1
    path.write_bytes(raw)
    with pytest.raises(WheelDiffers, match="Bad CRC"):
        findings(path)


@pytest.mark.parametrize("name", ["libtorch_cpu.so", "libc10.so", "libcuda.so.1", "libcudart.so.12", "libgomp-1.so.1"])
def test_a_bundled_framework_library_fails_by_name(tmp_path: Path, name: str) -> None:
    """R56: framework, driver and runtime libraries inside a wheel fail by name."""
    wheel = farm_wheels.good()
    wheel.extra[f"quantfarm_cpu.libs/{name}"] = farm_wheels.library(["x"])
    assert f"{name}: a framework, driver or runtime library must not be inside" in texts(wheel.write(tmp_path))


def test_an_unlisted_external_library_fails(tmp_path: Path) -> None:
    """R56: a library may ask only for the listed external ones; patterns match, not versions."""
    wheel = farm_wheels.good()
    wheel.needs = ("libc.so.6", "libstdc++.so.7", "libfancy.so.3")
    found = texts(wheel.write(tmp_path))
    assert "needs libfancy.so.3" in found
    assert "libstdc++" not in found


@pytest.mark.parametrize(("tag", "machine"), [("py3-none-any", 62), ("py3-none-linux_x86_64", 183)])
def test_a_wrong_tag_fails(tmp_path: Path, tag: str, machine: int) -> None:
    """Machine code in a wheel for any platform, or code for another machine than the tag says, fails."""
    wheel = farm_wheels.good()
    wheel.tag, wheel.machine = tag, machine
    assert "tag:" in texts(wheel.write(tmp_path))


def test_a_size_above_the_budget_fails(tmp_path: Path) -> None:
    """R56: a wheel that outgrows its budget fails until the budget is raised."""
    wheel = farm_wheels.good()
    wheel.extra["quantfarm_cpu/blob"] = bytes(RULES.wheels["quantfarm-cpu"].budget_bytes)
    assert "size: needs at most" in texts(wheel.write(tmp_path))


def test_the_front_holds_every_kernel_and_no_machine_code(tmp_path: Path) -> None:
    """The pure wheel fails for a kernel folder it lacks and for a library it holds."""
    version = DECLARED["version"]
    files = {f"quantfarm/kernels/{r['kernel']}/backend.py": b"" for r in DECLARED["records"] if r["implemented"]}
    missing, _ = files.popitem()
    path = farm_wheels.pack(
        tmp_path / f"quantfarm-{version}-py3-none-any.whl", {**files, "quantfarm/x.so": farm_wheels.library(["x"])}
    )
    found = texts(path)
    assert f"needs {missing}, got none" in found
    assert "quantfarm/x.so: machine code" in found
