"""The tests must be able to fail: errors that are put in on purpose are found at the smallest and largest shape."""

from __future__ import annotations

import functools

import torch
from support import layers, measure
from support.cases import Case, parity_cases
from support.inject import injections
from support.job import Job
from support.subject import Subject, expected, normal_rows, one_hot_inputs, run, seed_of, subject
from support.weights import Weight

from quantfarm.errors import TensorMismatch

OUTPUTS = 2000
"""Values that one relative error is taken over: with fewer, the rounding of one element decides."""

FEWEST = 3
"""Kinds of errors that every format has: another code, another scale, a dropped group."""


def cases(job: Job, test: str) -> list[Case]:
    """The smallest case of each dtype and each variant of a format, the largest of all, and one with act-order."""
    sized = sorted(parity_cases(job), key=lambda c: (c.n * c.k, not c.act_order, c.bias != "none"))
    smallest = {case.dtype: case for case in reversed(sized)}
    ordered = next((case for case in sized if case.act_order), sized[0])
    formats = {(case.format, case.variant): case for case in reversed(sized)}
    return list(dict.fromkeys([*smallest.values(), *formats.values(), sized[-1], ordered]))


def _alarms(job: Job, case: Case, faulty: Subject, sound: Subject) -> list[str]:
    """Return every alarm that the parity suite would raise for a faulty layer."""
    x = normal_rows(case, max(8, OUTPUTS // case.n))
    found = measure.errors(run(faulty, x), expected(sound, x, sound.weight.bias), x, sound.w64)
    wrong = measure.problems(found, measure.dense_error(x, sound.w64), job.record, case.dtype)
    inputs = one_hot_inputs(case, sound.weight)
    hot = torch.zeros(len(inputs), case.k, dtype=x.dtype)
    hot[torch.arange(len(inputs)), inputs] = 1.0
    with torch.no_grad():
        wanted, rows = sound.w64[:, inputs.numpy()].T, not sound.weight.exact
        distance = measure.ulps(faulty.layer.compute(hot, None), wanted, case.dtype, whole_rows=rows)
    return wrong + ([f"one-hot rows {distance:.2f} ulp off"] if distance > sound.weight.ulps(case.dtype) else [])


def _noticed(job: Job, case: Case, broken: Weight, sound: Subject) -> bool:
    """Say whether the reader refuses the broken weight, or the suite raises an alarm for the layer over it."""
    try:
        layer = layers.build(broken, job.record)
    except TensorMismatch:
        return True
    return bool(_alarms(job, case, Subject(broken, sound.w64, layer), sound))


@functools.lru_cache(maxsize=1)
def _sound_alarms(job: Job, case: Case) -> tuple[str, ...]:
    return tuple(_alarms(job, case, subject(job, case), subject(job, case)))


def test_every_injected_error_is_detected(job: Job, case: Case, figures: dict[str, object]) -> None:
    """Each deliberate error raises an alarm, and the sound layer raises none."""
    sound = subject(job, case)
    inputs = one_hot_inputs(case, sound.weight)
    at, n = int(inputs[seed_of(case) % len(inputs)]), seed_of(case) % case.n
    assert _sound_alarms(job, case) == ()
    seen = []
    for name, inject in injections(sound.weight).items():
        broken = inject(at, n)
        if name.startswith("E5") and not case.act_order:
            continue
        assert _noticed(job, case, broken, sound), f"{name} at input {at} passed unseen"
        seen.append(name)
    assert len(seen) >= FEWEST
    figures["injected_errors_detected"] = ", ".join(seen)
