"""The time of a record's kernel against peers in the same run, with an interval, on cold weights."""

from __future__ import annotations

from typing import Any

import torch
from support import layers, measure, peers, timing
from support.cases import all_cases, read_shape
from support.job import Job
from support.weights import AffineWeight, Weight, random_weight

from farm import statistics

GROUP = 128
SMALL = (256, 512)
SAME = "the same kernel under a second name"


def test_speed_against_peers(job: Job, figures: dict[str, Any]) -> None:
    """Parity first, then paired rounds; the record gets medians, ratios with intervals, noise, percent of the roof."""
    speed: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "roof_read_gbs": round(timing.read_roof(), 2),
        "peers": peers.versions(),
        "weights": f"cold: copies of at least {job.tier['cold_bytes'] // 1_000_000} MB take turns",
        "order": "counterbalanced rounds",
        "rows": [],
    }
    figures["speed"] = speed
    for shape in job.tier["bench_shapes"]:
        n, k = read_shape(shape)
        weight = _weight(job, n, k)
        _parity_first(job, _judged(job, weight))
        copies = _copies(job, weight)
        for rows in job.tier["bench_rows"]:
            speed["rows"].append(_timed(job, weight, copies, rows, speed["roof_read_gbs"]))
    speed["layer_overhead_us"] = _overhead(job)
    assert speed["rows"]


def _dtype(job: Job) -> str:
    return "bfloat16" if "bfloat16" in job.record["activations"] else str(job.record["activations"][0])


def _weight(job: Job, n: int, k: int) -> Weight:
    """Return a weight of 4 bits and groups of 128 where the record has such, else of what comes nearest to it."""
    found = [case for case in all_cases(job.record, [(n, k)]) if (case.n, case.k) == (n, k)]
    best = min(found, key=lambda c: (c.bits != 4, c.group_size != GROUP, c.sym, c.act_order, c.bias != "none"))
    return random_weight(best.recipe, seed=17)


def _stored_bytes(weight: Weight) -> int:
    return sum(t.numel() * t.element_size() for t in weight.tensors().values())


def _judged(job: Job, weight: Weight) -> Weight:
    """Return what parity is judged on: the weight itself, or a small one where the oracle reads bytes one by one."""
    if isinstance(weight, AffineWeight):
        return weight
    alike = [case for case in all_cases(job.record, [SMALL]) if case.variant == weight.recipe.variant]
    return random_weight(alike[0].recipe, seed=17)


def _parity_first(job: Job, weight: Weight) -> None:
    """A kernel that is not right is not timed."""
    layer, w64, dtype = layers.build(weight, job.record), weight.dense(), _dtype(job)
    for rows in (min(job.tier["bench_rows"]), max(job.tier["bench_rows"])):
        x = torch.randn(rows, weight.k, generator=torch.Generator().manual_seed(rows)).to(getattr(torch, dtype))
        with torch.no_grad():
            found = measure.errors(layer(x), measure.expected(weight.inputs(x), w64), x, w64)
        wrong = measure.problems(found, measure.dense_error(x, w64), job.record, dtype)
        assert not wrong, f"M={rows}: {'; '.join(wrong)}"


def _copies(job: Job, weight: Weight) -> list[Any]:
    spec = layers.spec_of(job.record)
    backend = layers.backend_of(spec)
    tensor = layers.read(weight)
    count = timing.copies_for(job.tier["cold_bytes"], _stored_bytes(weight))
    return timing.prepared_copies(lambda: backend.prepare(tensor, torch.device("cpu")), count)


def _timed(job: Job, weight: Weight, copies: list[Any], rows: int, roof: float) -> dict[str, Any]:
    run = layers.backend_of(layers.spec_of(job.record)).run
    dtype = _dtype(job)
    x = torch.randn(rows, weight.k).to(getattr(torch, dtype))
    mine = timing.Rotation([lambda p=p: run(p, x, None) for p in copies])
    others = peers.peers(weight.n, weight.k, x, job.tier["cold_bytes"])
    with torch.no_grad():
        found = timing.interleave({job.backend: mine, SAME: mine, **others}, job.tier["rounds"])
    samples = found.samples[job.backend]
    epsilon = statistics.noise(samples, found.samples[SAME])
    moved = _stored_bytes(weight) + 2 * rows * (weight.n + weight.k)
    median = statistics.summary(samples)["median_us"]
    return {
        "n": weight.n,
        "k": weight.k,
        "group_size": weight.recipe.group_size,
        "scheme": f"{weight.format} {weight.recipe.variant}".strip() + f" {weight.recipe.bits} bits",
        "m": rows,
        "dtype": dtype,
        **statistics.summary(samples),
        "samples_us": [round(value, 1) for value in samples],
        "copies": len(copies),
        "launches_a_round": found.launches[job.backend],
        "rounds": len(samples),
        "rounds_dropped_for_steal": found.dropped,
        "noise": round(float(epsilon), 4),
        "gbs": round(moved / median / 1e3, 2),
        "percent_of_read_roof": round(100 * moved / median / 1e3 / roof, 1),
        "peers": {name: _against(samples, found.samples[name], epsilon) for name in others},
    }


def _against(mine: list[float], other: list[float], epsilon: float) -> dict[str, Any]:
    """Compare with a peer: ``ratio`` is my time over the peer's, so below 1 is faster."""
    ratio = statistics.paired_ratio(mine, other)
    return {
        **statistics.summary(other),
        "ratio": ratio.as_json(),
        "verdict": statistics.gate(mine, other, epsilon),
        "smallest_effect_seen": round(statistics.detectable(epsilon, ratio), 4),
    }


def _overhead(job: Job) -> float:
    """Return what the layer around the kernel costs a call, in microseconds, on a small hot weight."""
    weight = _weight(job, 256, 256)
    layer, spec = layers.build(weight, job.record), layers.spec_of(job.record)
    prepared, run = layer.prepare(), layers.backend_of(spec).run
    x = torch.randn(1, 256).to(getattr(torch, _dtype(job)))
    with torch.no_grad():
        pair = {
            "layer": timing.Rotation([lambda: layer(x)] * 200),
            "kernel": timing.Rotation([lambda: run(prepared, x, None)] * 200),
        }
        found = timing.interleave(pair, 9)
    medians = {name: statistics.summary(values)["median_us"] for name, values in found.samples.items()}
    return round(medians["layer"] - medians["kernel"], 2)
