"""The presence gate: does the finished wheel hold what is declared, and nothing that is not?

Reads wheel files only. Every failure names the wheel, the record and the arch.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm import declarations as facts
from farm import elf
from farm.matrix import Matrix
from farm.wheel import Wheel

MANIFEST = "manifest.json"
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a wheel. Record and arch are empty for the wheel as a whole."""

    wheel: str
    record: str
    arch: str
    sentence: str

    def __str__(self) -> str:
        """Return one line: wheel, record, arch, sentence."""
        where = " ".join(part for part in (self.record, self.arch) if part)
        return f"{self.wheel}  {where}{': ' if where else ''}{self.sentence}"


@dataclass
class Report:
    """What was read: findings, and facts per wheel and per (record, arch)."""

    findings: list[Finding] = field(default_factory=list)
    wheels: dict[str, dict[str, Any]] = field(default_factory=dict)
    present: dict[tuple[str, str], str] = field(default_factory=dict)

    def of_record(self, record: str, archs: Sequence[str]) -> list[Finding]:
        """Return the findings that concern a record on some archs, those of whole wheels included."""
        return [f for f in self.findings if f.record in ("", record) and (not f.arch or f.arch in archs)]


def inspect(wheels: Sequence[Wheel], declarations: Mapping[str, Any], matrix: Matrix) -> Report:
    """Read the wheels and compare them with the declarations; every difference becomes a finding."""
    report = Report()
    for wheel in wheels:
        _common(wheel, matrix, report)
        library = _library_family(wheel, matrix)
        if library:
            _native(wheel, library, declarations, matrix, report)
        else:
            _front(wheel, declarations, report)
    return report


def _library_family(wheel: Wheel, matrix: Matrix) -> str:
    front = "quantfarm"
    names = {t.wheel: name for name, t in matrix.targets.items() if t.wheel != front}
    return names.get(wheel.distribution, "")


def _common(wheel: Wheel, matrix: Matrix, report: Report) -> None:
    name = wheel.path.name
    wrong = wheel.record_problems() + wheel.tag_problems()
    wrong += [
        f"{member}: a framework, driver or runtime library must not be inside (matches {pattern})"
        for member in wheel.files
        for pattern in matrix.never_bundled
        if fnmatch.fnmatchcase(member.rsplit("/", 1)[-1], pattern)
    ]
    rule, size = matrix.wheels.get(wheel.distribution), wheel.path.stat().st_size
    if rule is None:
        wrong.append(f"distribution {wheel.distribution}: needs an entry under wheels in matrix.yaml, got none")
    elif size > rule.budget_bytes:
        wrong.append(f"size: needs at most {rule.budget_bytes} bytes, got {size}")
    report.findings += [Finding(name, "", "", sentence) for sentence in wrong]
    report.wheels[name] = {"sha256": wheel.sha256, "bytes": size, "tag": wheel.tag}


def _front(wheel: Wheel, declarations: Mapping[str, Any], report: Report) -> None:
    """The front holds no machine code, and the Python half of every kernel that has code."""
    for member in wheel.libraries:
        report.findings.append(
            Finding(wheel.path.name, "", "", f"{member}: machine code in a wheel tagged {wheel.tag}")
        )
    if wheel.version != declarations["version"]:
        sentence = f"version: needs {declarations['version']}, got {wheel.version}"
        report.findings.append(Finding(wheel.path.name, "", "", sentence))
    for record in (row for row in declarations["records"] if row["implemented"]):
        member = f"{wheel.module}/kernels/{record['kernel']}/backend.py"
        if member in wheel.files:
            report.present[(record["name"], "python")] = member
        else:
            report.findings.append(Finding(wheel.path.name, record["name"], "", f"needs {member}, got none"))


def _native(wheel: Wheel, library: str, declarations: Mapping[str, Any], matrix: Matrix, report: Report) -> None:
    name = wheel.path.name
    expected = declared_markers(declarations, library, matrix.targets[library].family)
    if not wheel.libraries:
        for (record, arch), symbol in expected.items():
            report.findings.append(Finding(name, record, arch, f"needs the symbol {symbol}, the wheel has no library"))
        return
    if wheel.platform == "any":
        report.findings.append(Finding(name, "", "", "tag: machine code in a wheel for any platform"))
    for member in wheel.libraries:
        _library(wheel, member, matrix, report)
    main = f"{wheel.module}/lib{wheel.module}.so"
    if main not in wheel.files:
        report.findings.append(Finding(name, "", "", f"needs {main}, got {', '.join(wheel.libraries)}"))
        return
    defined = _defined(wheel.files[main])
    _compare_symbols(name, defined, expected, library, report)
    manifest = _manifest(wheel, main, report)
    _compare_manifest(name, manifest, expected, declarations, report)
    report.wheels[name] |= {"manifest_sha256": _digest(wheel.files.get(f"{wheel.module}/{MANIFEST}", b""))}


def _defined(data: bytes) -> frozenset[str]:
    try:
        return elf.read(data).defines
    except ValueError:
        return frozenset()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def declared_markers(declarations: Mapping[str, Any], library: str, family: str) -> dict[tuple[str, str], str]:
    """Return (record, arch) -> the symbol that proves it, for every native record with code of a library family."""
    return {
        (record["name"], arch): f"quantfarm_{library}_{record['kernel']}_{arch.removeprefix('x86_64_')}"
        for record in declarations["records"]
        if record["implemented"] and facts.library_of(record) == library
        for arch in record["devices"].get(family, {"archs": []})["archs"]
    }


def _compare_symbols(
    name: str, defined: frozenset[str], expected: Mapping[tuple[str, str], str], library: str, report: Report
) -> None:
    for (record, arch), symbol in expected.items():
        if symbol in defined:
            report.present[(record, arch)] = symbol
        else:
            sentence = f"declared, but the finished library has no symbol {symbol}"
            report.findings.append(Finding(name, record, arch, sentence))
    for symbol in sorted(s for s in defined if s.startswith(f"quantfarm_{library}_")):
        if symbol not in expected.values():
            report.findings.append(Finding(name, "", "", f"symbol {symbol}: present, but no record declares it"))


def _manifest(wheel: Wheel, main: str, report: Report) -> dict[str, Any]:
    member = f"{wheel.module}/{MANIFEST}"
    try:
        manifest = dict(json.loads(wheel.files[member]))
    except (KeyError, ValueError, TypeError) as error:
        report.findings.append(Finding(wheel.path.name, "", "", f"{member}: needs a JSON object, got {error!r}"))
        return {}
    checks = (
        ("version", wheel.version),
        ("sha256", _digest(wheel.files[main])),
        ("bytes", len(wheel.files[main])),
        ("library", main.rsplit("/", 1)[-1]),
    )
    for key, got in checks:
        if manifest.get(key) != got:
            sentence = f"{MANIFEST} {key}: says {manifest.get(key)}, the file has {got}"
            report.findings.append(Finding(wheel.path.name, "", "", sentence))
    return manifest


def _compare_manifest(
    name: str,
    manifest: Mapping[str, Any],
    expected: Mapping[tuple[str, str], str],
    declarations: Mapping[str, Any],
    report: Report,
) -> None:
    kernel_of = {record["name"]: record["kernel"] for record in declarations["records"]}
    ops_of = {record["name"]: record["artifact"]["ops"] for record in declarations["records"]}
    rows = {row.get("kernel"): row for row in manifest.get("kernels", ())}
    left_out = {(row.get("kernel"), row.get("arch")): row.get("reason", "") for row in manifest.get("skipped", ())}
    for record, arch in expected:
        kernel = kernel_of[record]
        if arch not in rows.get(kernel, {}).get("archs", ()):
            why = left_out.get((kernel, arch), "no sentence says why")
            report.findings.append(Finding(name, record, arch, f"declared, but {MANIFEST} does not list it: {why}"))
    for record in {record for record, _ in expected}:
        missing = sorted(set(ops_of[record]) - set(rows.get(kernel_of[record], {}).get("ops", ())))
        for operator in missing:
            report.findings.append(Finding(name, record, "", f"operator {operator}: declared, not in {MANIFEST}"))
    declared = {(kernel_of[record], arch) for record, arch in expected}
    for kernel, row in rows.items():
        for arch in row.get("archs", ()):
            if (kernel, arch) not in declared:
                sentence = f"{MANIFEST} lists {kernel} for {arch}, but no record declares it"
                report.findings.append(Finding(name, "", "", sentence))


def _library(wheel: Wheel, member: str, matrix: Matrix, report: Report) -> None:
    name = wheel.path.name
    try:
        found = elf.read(wheel.files[member])
    except ValueError as error:
        report.findings.append(Finding(name, "", "", f"{member}: {error}"))
        return
    wrong = [] if not found.run_path else [f"{member}: needs no search path, got {found.run_path}"]
    if not wheel.platform.endswith(found.machine):
        wrong.append(f"tag: {wheel.platform}, but {member} is code for {found.machine}")
    allowed = matrix.wheels[wheel.distribution].external if wheel.distribution in matrix.wheels else []
    wrong += [
        f"{member} needs {needed}, which is not in the list of external libraries"
        for needed in found.needs
        if not any(fnmatch.fnmatchcase(needed, pattern) for pattern in allowed)
    ]
    match = _MANYLINUX.fullmatch(wheel.platform)
    if match and found.glibc > (int(match[1]), int(match[2])):
        wrong.append(f"tag: promises glibc {match[1]}.{match[2]}, {member} needs {'.'.join(map(str, found.glibc))}")
    report.findings += [Finding(name, "", "", sentence) for sentence in wrong]
    measured = f"manylinux_{'_'.join(map(str, found.glibc))}_{found.machine}"
    report.wheels[name] |= {"measured_tag": measured, "needs": list(found.needs), "libstdcxx": found.stdcxx}
