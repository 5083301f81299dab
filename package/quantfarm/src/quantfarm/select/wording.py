"""Sentences made from a selection: the refusal, the note on a lost backend, and the one thing to do."""

from __future__ import annotations

from collections.abc import Iterable

from quantfarm.declare.reason import Reason
from quantfarm.select.check_device import host_devices
from quantfarm.select.host import Host
from quantfarm.select.remedy import command
from quantfarm.select.request import Request
from quantfarm.select.selection import Candidate, Selection


def describe(request: Request, host: Host) -> str:
    """Return the request in one line, each device with its exact target where it is known."""
    shown = []
    for device in request.devices:
        archs = dict.fromkeys(str(d.arch) for d in host_devices(device, host) if d.arch)
        shown.append(f"{device} ({', '.join(archs)})" if archs else str(device))
    return f"{request.what}, on {', '.join(shown)}"


def refusal(selection: Selection, host: Host, *, strict: bool = False) -> str:
    """Return the error text: what was asked, one line a candidate, one thing to do.

    For a backend by name those are the named one and what would run instead; the trace and ``explain`` hold the rest.
    """
    if strict:
        why = "QUANTFARM_STRICT is set and a faster backend is missing because of the installation"
    elif selection.request.automatic:
        why = "no backend can"
    else:
        why = f"backend {selection.request.backend.value} was asked for"
    first = f"cannot run {describe(selection.request, host)}: {why}"
    named, *others = selection.trace
    told = selection.trace if selection.request.automatic else [named, *(c for c in others if c.usable)]
    return "\n".join([first, *candidate_lines(told), advice(selection, host, strict=strict)])


def candidate_lines(trace: Iterable[Candidate]) -> list[str]:
    """Return one line a candidate, names in one column."""
    rows = [(candidate.spec_name, verdict(candidate)) for candidate in trace]
    width = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{width}}  {text}" for name, text in rows]


def verdict(candidate: Candidate) -> str:
    """Return ``usable``, or every reason of a candidate in order."""
    if candidate.usable:
        return candidate.state_note or "usable"
    return "; ".join(str(reason) for reason in candidate.reasons)


def lost_note(candidate: Candidate, selection: Selection) -> str:
    """Return the note on a preferred backend that only the installation stands against."""
    chosen = selection.chosen.backend.value if selection.chosen else "nothing"
    limits = ", inference-only" if candidate.inference_only else ""
    return f"{chosen} instead of {candidate.backend.value} (preferred{limits}): {verdict(candidate)}"


def advice(selection: Selection, host: Host, *, strict: bool = False) -> str:
    """Return the one thing to do after a refusal: a backend by name, a command, or a setting."""
    usable = next((candidate for candidate in selection.trace if candidate.usable), None)
    other = f'use backend="{usable.backend.value}", or leave backend unset' if usable else ""
    if strict:
        other = "unset QUANTFARM_STRICT to accept the slower backend"
    if not any(candidate.written for candidate in selection.trace):
        return "no kernel of this version serves it; `quantfarm doctor` lists the kernels that it has"
    first_only = bool(usable) and not selection.request.automatic
    nearest = sorted(selection.trace, key=lambda candidate: len(candidate.reasons))
    for candidate in selection.trace[:1] if first_only else nearest:
        fix = command(candidate.reasons[0], candidate.backend, host) if candidate.lost_to_installation else ""
        if fix:
            return f"{fix}    or {other}" if other else fix
    return other or setting_advice([reason for candidate in selection.trace for reason in candidate.reasons])


def improvement(selection: Selection, host: Host) -> str:
    """Return what would change a successful choice: the first thing missing and what provides it, or nothing."""
    if selection.chosen is None or not selection.ahead or not selection.request.automatic:
        return ""
    for candidate in selection.ahead:
        if candidate.usable:
            return f'{candidate.backend.value} runs when it is asked for: backend="{candidate.backend.value}"'
        fix = command(candidate.reasons[0], candidate.backend, host) if candidate.lost_to_installation else ""
        if fix:
            return f"{candidate.backend.value} needs {candidate.reasons[0].need}: {fix}"
    first = min(selection.ahead, key=_distance)
    return f"{first.backend.value} needs {first.reasons[0].need} ({first.reasons[0].code})"


def _distance(candidate: Candidate) -> tuple[bool, int]:
    """Return how far a candidate is from running: another family of devices is farther than any number of reasons."""
    return any(reason.code in ("family", "platform") for reason in candidate.reasons), len(candidate.reasons)


_SETTINGS = (
    (("method_format", "format"), "give a format that belongs to the method"),
    (("undeclared",), "leave backend unset, or name a backend that `quantfarm doctor` lists"),
    (("retired",), "leave backend unset"),
    (("family", "torch_build", "device_absent", "device_mixed"), "name a device that `quantfarm doctor` lists"),
    (("feature_training", "feature_adapter", "feature_sharded", "feature_packing"), "drop the feature that is refused"),
    (("activation_dtype",), "load the model in one of the dtypes above"),
    (("scheme_bits", "group_size", "zero_point", "act_order", "pack_dtype"), "quantize again with settings from above"),
)


def setting_advice(reasons: list[Reason]) -> str:
    """Return the setting to change when no command helps: that of the first kind of reason found."""
    codes = {reason.code for reason in reasons}
    for kinds, text in _SETTINGS:
        if codes.intersection(kinds):
            return text
    return "run `quantfarm doctor` to see what this machine offers"
