"""The tests must be able to fail: errors that are put in on purpose are found at the smallest and largest shape."""

from __future__ import annotations

import functools

import pytest
import torch
from support import layers, measure
from support.cases import Case, parity_cases
from support.inject import INJECTIONS
from support.job import Job
from support.subject import Subject, normal_rows, one_hot_inputs, run, seed_of, subject


def cases(job: Job, test: str) -> list[Case]:
    """The smallest case of each dtype, the largest of all, and one with an order of activations."""
    sized = sorted(parity_cases(job), key=lambda c: (c.n * c.k, not c.act_order, c.bias != "none"))
    smallest = {case.dtype: case for case in reversed(sized)}
    ordered = next((case for case in sized if case.act_order), sized[0])
    return list(dict.fromkeys([*smallest.values(), sized[-1], ordered]))


def _alarms(job: Job, case: Case, faulty: Subject, sound: Subject) -> list[str]:
    """Return every alarm that the parity suite would raise for a faulty layer."""
    x = normal_rows(case, 8)
    found = measure.errors(run(faulty, x), measure.expected(x, sound.w64, sound.weight.bias), x, sound.w64)
    wrong = measure.problems(found, measure.dense_error(x, sound.w64), job.record, case.dtype)
    inputs = one_hot_inputs(case, sound.weight)
    hot = torch.zeros(len(inputs), case.k, dtype=x.dtype)
    hot[torch.arange(len(inputs)), inputs] = 1.0
    with torch.no_grad():
        distance = measure.ulps(faulty.layer.compute(hot, None), sound.w64[:, inputs.numpy()].T, case.dtype)
    return wrong + ([f"one-hot rows {distance:.2f} ulp off"] if distance > 1.0 else [])


@functools.lru_cache(maxsize=1)
def _sound_alarms(job: Job, case: Case) -> tuple[str, ...]:
    return tuple(_alarms(job, case, subject(job, case), subject(job, case)))


@pytest.mark.parametrize("name", INJECTIONS)
def test_an_injected_error_is_detected(job: Job, case: Case, name: str, figures: dict[str, object]) -> None:
    """Each deliberate error raises an alarm, and the sound layer raises none."""
    sound = subject(job, case)
    inputs = one_hot_inputs(case, sound.weight)
    at = int(inputs[seed_of(case) % len(inputs)])
    broken = INJECTIONS[name](sound.weight, at, seed_of(case) % case.n)
    if name.startswith("E5") and not case.act_order:
        assert (broken.groups == sound.weight.groups).all()
        return
    faulty = Subject(broken, sound.w64, layers.build(broken, job.record))
    assert _sound_alarms(job, case) == ()
    assert _alarms(job, case, faulty, sound), f"{name} at input {at} passed unseen"
    figures["injected_errors_detected"] = f"E1 to E5, {len(INJECTIONS)} kinds"
