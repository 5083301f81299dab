"""Paired timing on cold weights: candidates take turns in counterbalanced order and walk through rotating copies."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], object]
_ROUND_SECONDS = 0.012
_MOST_STEAL = 0.01


@dataclass
class Rotation:
    """Calls over copies of one weight in different memory, taken one after another for ever."""

    calls: Sequence[Call]
    at: int = 0

    def launch(self, count: int) -> float:
        """Run the next ``count`` calls and return microseconds a call."""
        chosen = [self.calls[(self.at + i) % len(self.calls)] for i in range(count)]
        self.at = (self.at + count) % len(self.calls)
        began = time.perf_counter()
        for call in chosen:
            call()
        return (time.perf_counter() - began) / count * 1e6


@dataclass
class Rounds:
    """Samples in microseconds a call, one list a candidate, all of one length; and what was dropped."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    dropped: int = 0


def interleave(candidates: dict[str, Rotation], rounds: int) -> Rounds:
    """Time the candidates in ``rounds`` rounds; odd rounds go backwards, and the first place moves on.

    A round in which the hypervisor took more than 1 % of the processor is repeated, at most ``rounds`` times in all.
    """
    found = Rounds(samples={name: [] for name in candidates})
    for name, rotation in candidates.items():
        rotation.launch(1)
        once = rotation.launch(2) / 1e6
        found.launches[name] = max(1, min(len(rotation.calls), round(_ROUND_SECONDS / once)))
    names, number = list(candidates), 0
    while len(found.samples[names[0]]) < rounds:
        start = number % len(names)
        order = names[start:] + names[:start]
        before = _ticks()
        took = {
            name: candidates[name].launch(found.launches[name]) for name in (reversed(order) if number % 2 else order)
        }
        number += 1
        if _steal(before, _ticks()) > _MOST_STEAL and found.dropped < rounds:
            found.dropped += 1
            continue
        for name, value in took.items():
            found.samples[name].append(value)
    return found


def _ticks() -> tuple[int, int]:
    try:
        values = [int(v) for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return values[7] if len(values) > 7 else 0, sum(values)


def _steal(before: tuple[int, int], after: tuple[int, int]) -> float:
    spent = after[1] - before[1]
    return (after[0] - before[0]) / spent if spent else 0.0


def read_roof(size_bytes: int = 1 << 29, rounds: int = 7) -> float:
    """Return the read-stream bandwidth of this machine in GB/s, all threads: the median of sums over a large buffer."""
    buffer = torch.ones(size_bytes // 4)
    buffer.sum()
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        buffer.sum()
        took.append(time.perf_counter() - began)
    return size_bytes / sorted(took)[len(took) // 2] / 1e9


def copies_for(cold_bytes: int, weight_bytes: int) -> int:
    """Return how many copies keep the last-level cache cold."""
    return max(2, -(-cold_bytes // weight_bytes))


def clone(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """Return a copy of a prepared weight whose tensors lie in memory of their own; anything else is shared."""
    memo = {} if memo is None else memo
    if isinstance(value, torch.Tensor):
        return memo.setdefault(id(value), value.clone())
    if is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for each in fields(value):
            object.__setattr__(twin, each.name, clone(getattr(value, each.name), memo))
        return twin
    return value


def prepared_copies(prepare: Callable[[], Any], count: int) -> list[Any]:
    """Return ``count`` prepared weights; where preparing takes longer than 100 ms, copies of the first one."""
    began = time.perf_counter()
    first = prepare()
    slow = time.perf_counter() - began > 0.1
    return [first, *(clone(first) if slow else prepare() for _ in range(count - 1))]
