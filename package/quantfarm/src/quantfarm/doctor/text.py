"""The report as lines for people: what is installed, what loads, which backends run, what to do."""

from __future__ import annotations

from collections.abc import Iterator

from quantfarm import __version__
from quantfarm.doctor.finding import Report

_VERDICTS = ("healthy", "findings", "could not look at everything")


def as_text(report: Report) -> str:
    """Return the whole report as text; the facts are those of its JSON."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    host = report.host
    yield f"quantfarm {__version__}: {_VERDICTS[report.exit_code]}"
    yield f"  interpreter  {report.interpreter} (Python {host.versions.get('python', 'unknown')})"
    yield f"  machine      {host.platform} {host.machine}, {host.cpu_name or 'unnamed processor'}, {report.cores} cores"
    yield f"  processor    {host.cpu_level}"
    for device in host.devices:
        yield f"  device       {device} {device.arch or ''} {device.name}".rstrip()
    for fact in report.facts:
        yield f"  fact         {fact}"
    yield "native libraries"
    for library, state in host.artifacts.items():
        loaded = state.status == "loaded"
        verdict = ("loads" if state.checked else "read, not loaded") if loaded else state.status
        yield f"  {library}  {' '.join(part for part in (verdict, state.version, state.path or state.text) if part)}"
        for row in state.manifest.get("kernels", ()):
            yield f"      {row['kernel']}: {', '.join(row['archs'])}"
        for row in state.manifest.get("skipped", ()):
            yield f"      {row['kernel']} left out for {row['arch']}: {row['reason']}"
    yield from _backends(report)
    if report.findings:
        yield "findings"
    for finding in report.findings:
        yield f"  {finding.code}: {finding.sentence}"
        yield f"      looked at  {finding.evidence}"
        yield f"      do         {finding.command}"
    for text in report.blind:
        yield f"could not look at {text}"


def _backends(report: Report) -> Iterator[str]:
    yield "backends"
    written = [record for record in report.records if record.written]
    width = max((len(record.name) for record in written), default=0)
    for record in written:
        verdict = "usable" if record.usable else str(record.reasons[0])
        yield f"  {record.name:<{width}}  {verdict}"
    others = [record.name for record in report.records if not record.written]
    if others:
        yield f"  declared only, without code in this version ({len(others)}): {', '.join(others)}"
