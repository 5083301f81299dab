"""choose(request, host, kernels): the only function that chooses. ``select`` fills in the host and the records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from quantfarm.declare.names import BACKEND, DEVICE, LEGACY, METHOD
from quantfarm.declare.reason import Reason
from quantfarm.declare.registry import KERNELS, TIES
from quantfarm.declare.spec import KernelSpec
from quantfarm.errors import KernelRefused
from quantfarm.formats.table import rule_of
from quantfarm.select.cache import CHECKS
from quantfarm.select.check_install import older
from quantfarm.select.host import Host, probe
from quantfarm.select.pairs import FORMATS_OF
from quantfarm.select.request import BASE, Request, normalize_devices
from quantfarm.select.selection import Candidate, Selection
from quantfarm.select.wording import lost_note, refusal

__all__ = ["Candidate", "Selection", "choose", "select", "strictly_refused", "survey"]

_PREFERS_TRAINABLE = (METHOD.GPTQ, METHOD.AWQ)
"""Methods whose models are opened with AUTO and switched to training later."""

OLDEST_ROCM = "10.1"
"""An older one is told, not refused."""

Kernels = tuple[KernelSpec, ...]


def select(request: Request, host: Host | None = None) -> Selection:
    """Choose the backend of one request.

    Args:
        request: what the layer needs.
        host: the facts of the machine; left out, the running machine is probed.

    Raises:
        KernelRefused: the named backend, or every backend, has reasons against it; ``trace`` is the Selection.
    """
    return choose(request, host or probe(), KERNELS)


def choose(request: Request, host: Host, kernels: Kernels) -> Selection:
    """Choose among the given records, or raise KernelRefused with every candidate's reasons."""
    selection = survey(request, host, kernels)
    strict = strictly_refused(selection, host)
    if selection.chosen is None or strict:
        raise KernelRefused(refusal(selection, host, strict=strict), trace=selection)
    return selection


def strictly_refused(selection: Selection, host: Host) -> bool:
    """Say whether the strict switch refuses a choice: a candidate ahead of it is lost to the installation."""
    lost = any(candidate.lost_to_installation for candidate in selection.ahead)
    return host.settings.strict and selection.request.automatic and lost


def survey(request: Request, host: Host, kernels: Kernels) -> Selection:
    """Check every candidate and choose, but raise nothing for a refusal: ``chosen`` is then None."""
    forced = rule_of(request.method, request.format, request.code_type).forced_dtype
    dtype = request.activation_dtype or forced or None
    open_dtype = bool(forced) and request.activation_dtype is None
    devices = normalize_devices(request.devices or None, host)
    if (devices, dtype) != (request.devices, request.activation_dtype):
        request = replace(request, devices=devices, activation_dtype=dtype)
    if request.format not in FORMATS_OF[request.method]:
        return Selection(request=request, chosen=None, trace=(_no_such_pair(request),))
    automatic = request if request.automatic else replace(request, backend=BACKEND.AUTO)
    records = ordered(request, kernels)
    if request.automatic:
        trace = tuple(_candidate(spec, request, host) for spec in records) or (_no_record(request),)
        trace, chosen = _pick(trace, records, request)
    else:
        named = _named(request, kernels)
        first = _candidate(named, request, host) if named else _unnamed(request)
        others = (_candidate(spec, automatic, host) for spec in records if spec is not named)
        trace = (first, *others)
        chosen = named if first.usable else None
    selection = Selection(request=request, chosen=chosen, trace=trace, listed=_listed(request, trace, chosen, records))
    said = (f"activations are {forced}: the format {request.format.value} demands it",) if open_dtype else ()
    return replace(selection, notes=(*said, *_notes(selection, host)))


def ordered(request: Request, kernels: Kernels) -> Kernels:
    """Return the records of a pair: priority down, then backend value down; a rule's or tie's own order before that."""
    pair = (request.method, request.format)
    records = [s for s in kernels if s.method is request.method and request.format in s.formats and not s.role]
    rule = rule_of(*pair, request.code_type)
    order = rule.automatic or next((t.order for t in TIES if (t.method, t.format) == pair), ())
    records.sort(key=lambda s: s.backend.value, reverse=True)
    records.sort(key=lambda s: order.index(s.backend) if s.backend in order else len(order))
    records.sort(key=lambda s: s.priorities.get(request.format, 0), reverse=True)
    return tuple(records)


def _candidate(spec: KernelSpec, request: Request, host: Host) -> Candidate:
    """Check one record against the base contract and every override: all of them, or any one for multi_select."""
    contracts = request.contracts()
    answers = {name: CHECKS(spec, contract, host) for name, contract in contracts.items()}
    reasons = answers[BASE]
    for name, against in answers.items():
        reasons += tuple(_of_override(name, reason) for reason in against if reason not in answers[BASE])
    serves = tuple(name for name, against in answers.items() if not against)
    if request.multi_select and serves:
        reasons = ()
    return Candidate(
        spec_name=spec.name,
        backend=spec.backend,
        priority=spec.priorities.get(request.format),
        reasons=reasons,
        usable=not reasons,
        inference_only=spec.features.training is not True,
        written=spec.kernel in host.implemented,
        serves=serves if len(answers) > 1 else (),
    )


def _of_override(name: str, reason: Reason) -> Reason:
    note = f'dynamic "{name}"'
    return replace(reason, note=f"{note}: {reason.note}" if reason.note else note)


def _listed(request: Request, trace: Iterable[Candidate], chosen: KernelSpec | None, records: Kernels) -> Kernels:
    """Return what multi_select asks for: the usable records of an automatic choice, or the named one."""
    if not request.multi_select or chosen is None:
        return ()
    if not request.automatic:
        return (chosen,)
    names = [candidate.spec_name for candidate in trace if candidate.usable]
    return tuple(spec for spec in records if spec.name in names)


def _pick(
    trace: tuple[Candidate, ...], records: Kernels, request: Request
) -> tuple[tuple[Candidate, ...], KernelSpec | None]:
    usable = [candidate for candidate in trace if candidate.usable]
    chosen = next(iter(usable), None)
    if _prefers_trainable(request):
        chosen = next((c for c in usable if not c.inference_only), chosen)
    if chosen is None:
        return trace, None
    passed = trace[: trace.index(chosen)]
    marked = tuple(_passed_over(c, chosen) if c in passed and c.usable else c for c in trace)
    return marked, next(spec for spec in records if spec.name == chosen.spec_name)


def _prefers_trainable(request: Request) -> bool:
    on_cpu = all(device.family is DEVICE.CPU for device in request.devices)
    plain = request.backend is BACKEND.AUTO and not request.packing and not request.trainable
    return on_cpu and plain and request.method in _PREFERS_TRAINABLE


def _passed_over(candidate: Candidate, chosen: Candidate) -> Candidate:
    reason = Reason("prefer_trainable", "gradients", "inference-only", note=f"{chosen.backend.value} trains")
    return replace(candidate, reasons=(reason,), state_note="usable, inference-only")


def _named(request: Request, kernels: Kernels) -> KernelSpec | None:
    """Return the record that a named backend means: of this pair, else of this method, else any of that name."""
    mine = [spec for spec in kernels if spec.backend is request.backend and not spec.role]
    mine.sort(key=lambda s: (s.method is not request.method, request.format not in s.formats))
    return next(iter(mine), None)


def _unnamed(request: Request) -> Candidate:
    """Return the refusal of a member that has no record: a family name without an entry, or one nobody declared."""
    if request.backend in LEGACY:
        valid = sorted({t[request.method].value for t in LEGACY.values() if request.method in t})
        need = f"a backend of {request.method.value}: {', '.join(valid) or 'none has such a name'}"
        reason = Reason("format", need, request.backend.value)
    else:
        reason = Reason("undeclared", f"a record for {request.backend.value}", "none")
    return _bare(request, request.backend.value, reason)


def _no_such_pair(request: Request) -> Candidate:
    known = ", ".join(f.value for f in FORMATS_OF[request.method])
    reason = Reason("method_format", f"a format of {request.method.value}: {known}", request.format.value)
    return _bare(request, request.backend.value, reason)


def _no_record(request: Request) -> Candidate:
    pair = f"{request.method.value}/{request.format.value}"
    return _bare(request, pair, Reason("undeclared", f"a record for {pair}", "none"))


def _bare(request: Request, name: str, reason: Reason) -> Candidate:
    return Candidate(spec_name=name, backend=request.backend, priority=None, reasons=(reason,), usable=False)


def _notes(selection: Selection, host: Host) -> tuple[str, ...]:
    request, notes = selection.request, []
    if request.unchecked:
        notes.append(f"unchecked: {', '.join(request.unchecked)}")
    if host.torch_ops is None and selection.chosen and selection.chosen.toolchain.all_ops:
        notes.append("unchecked: torch operators, since torch was not asked")
    rocm = host.versions.get("rocm", "")
    if rocm and older(rocm, OLDEST_ROCM) and any(device.family is DEVICE.ROCM for device in request.devices):
        notes.append(f"rocm {rocm} is older than {OLDEST_ROCM}, the oldest supported; nothing is refused for it")
    for candidate in selection.ahead if selection.chosen else ():
        if candidate.state_note:
            notes.append(f"{candidate.backend.value}: {candidate.state_note}; ask for it by name to use it")
        elif candidate.lost_to_installation:
            notes.append(lost_note(candidate, selection))
    return tuple(notes)
