"""Time the native int4 product on this CPU against torch's bf16 linear and ATen's int4 operator.

Weights are cold: each candidate cycles through copies of at least 520 MB. Candidates run in interleaved rounds, in a
new order each time, so that load on the machine hits all of them; the figures compared are ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from quantfarm.kernels.int4_panel.backend import to_panels
from quantfarm.runtime.artifacts import load_library

GROUP = 128
COLD_BYTES = 520_000_000
STREAM_BYTES = 1 << 28
LEVELS = {1: "avx2", 2: "avx512", 3: "avx512_vnni"}
Product = Callable[[int, torch.Tensor], object]
"""Multiply x with weight copy i."""


class Measured(NamedTuple):
    """Microseconds per candidate and round; how many rounds were quiet and how many disturbed."""

    times: dict[str, list[float]]
    quiet: int
    disturbed: int


def ours(n: int, k: int, copies: int, levels: list[int]) -> dict[str, Product]:
    """Return the kernel on each instruction set, over one set of copies with bf16 scales and symmetric codes."""
    ops = torch.ops.quantfarm_cpu
    weights = []
    for _ in range(copies):
        words = torch.randint(-(2**31), 2**31, (k // 8, n)).to(torch.int32)
        scales = to_panels((torch.randn(k // GROUP, n) * 0.3 - 5).exp().bfloat16())
        weights.append((ops.int4_panel_pack(words, None, n), scales))

    def on(level: int) -> Product:
        def product(i: int, x: torch.Tensor) -> object:
            ops.set_cpu_isa(level)
            return ops.int4_panel_mm(x, *weights[i % copies], None, None, None, GROUP, n)

        return product

    return {LEVELS[level]: on(level) for level in levels}


def aten_int4(n: int, k: int, copies: int) -> Product:
    """Return torch's own int4 operator, which takes bf16 activations and metadata."""
    pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu  # noqa: SLF001 - the operators have no public name
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu  # noqa: SLF001
    weights = [pack(torch.randint(0, 15, (n, k), dtype=torch.int32), 1) for _ in range(copies)]
    metadata = [torch.rand(k // GROUP, n, 2).bfloat16() for _ in range(copies)]
    return lambda i, x: multiply(x, weights[i % copies], GROUP, metadata[i % copies])


def dense(n: int, k: int, copies: int) -> Product:
    """Return the bf16 linear layer; four times the bytes, so a quarter of the copies is as cold."""
    weights = [torch.randn(n, k, dtype=torch.bfloat16) for _ in range(max(2, copies // 4))]
    return lambda i, x: torch.nn.functional.linear(x, weights[i % len(weights)])


def read_bandwidth(data: torch.Tensor) -> float:
    """Return GB/s of one sum over a buffer, with all threads."""
    start = time.perf_counter()
    data.sum()
    return data.numel() * data.element_size() / (time.perf_counter() - start) / 1e9


def busy_seconds() -> float:
    """Return the seconds that all processors have worked, or were taken by the hypervisor, since the start."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _wait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def one_round(products: dict[str, Product], x: torch.Tensor, start_at: int, repeats: int) -> dict[str, float]:
    """Return microseconds per call of every candidate, in a new order."""
    times = {}
    for name in random.sample(list(products), len(products)):
        start = time.perf_counter()
        for i in range(start_at, start_at + repeats):
            products[name](i, x)
        times[name] = (time.perf_counter() - start) / repeats * 1e6
    return times


def measure(products: dict[str, Product], x: torch.Tensor, options: argparse.Namespace, repeats: int) -> Measured:
    """Return one value a round for each candidate, and how many rounds were dropped.

    A round in which others used more than a twentieth of a processor says nothing about the candidates. When too
    few quiet rounds are found, the disturbed ones are kept and counted.
    """
    kept: list[dict[str, float]] = []
    disturbed: list[dict[str, float]] = []
    while len(kept) < options.rounds and len(kept) + len(disturbed) < options.attempts:
        wall, own, busy = time.perf_counter(), time.process_time(), busy_seconds()
        times = one_round(products, x, repeats * (len(kept) + len(disturbed)), repeats)
        wall, own, busy = time.perf_counter() - wall, time.process_time() - own, busy_seconds() - busy
        (kept if busy - own < 0.05 * wall + 0.02 else disturbed).append(times)
    rounds = kept if len(kept) >= 3 else kept + disturbed
    return Measured({name: [r[name] for r in rounds] for name in products}, len(kept), len(disturbed))


def paired(times: dict[str, list[float]], peer: str, ours_name: str) -> tuple[float, float, float]:
    """Return the median of the per-round ratios peer / ours and its bootstrap 95 % interval."""
    ratios = [a / b for a, b in zip(times[peer], times[ours_name], strict=True)]
    draws = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(2000))  # noqa: S311 - a bootstrap
    return statistics.median(ratios), draws[50], draws[1949]


def run_shape(n: int, k: int, options: argparse.Namespace, stream: torch.Tensor) -> list[dict[str, Any]]:
    """Measure every row count of one shape and return one record each."""
    bytes_read = n * k // 2 + n * k // GROUP * 2
    copies = max(2, -(-COLD_BYTES // (n * k // 2)))
    products = ours(n, k, copies, options.levels)
    products |= {"aten_int4": aten_int4(n, k, copies), "bf16": dense(n, k, copies)}
    best = LEVELS[options.levels[-1]]
    records = []
    for m in options.rows:
        x = torch.randn(m, k).bfloat16()
        for product in products.values():
            product(0, x)
        bandwidth = [read_bandwidth(stream) for _ in range(5)]
        measured = measure(products, x, options, copies if m <= 4 else max(2, copies // 8))
        times = measured.times
        bandwidth += [read_bandwidth(stream) for _ in range(5)]
        read = max(bandwidth)
        records.append(
            {
                "n": n,
                "k": k,
                "m": m,
                "us": {name: statistics.median(values) for name, values in times.items()},
                "ratio": {peer: paired(times, peer, best) for peer in products if peer != best},
                "quiet_rounds": measured.quiet,
                "disturbed_rounds": measured.disturbed,
                "read_gb_s": read,
                "of_read": bytes_read / statistics.median(times[best]) / 1e3 / read,
            }
        )
        print(line(records[-1], best), flush=True)
    return records


def line(record: dict[str, Any], best: str) -> str:
    """Return one row of the table."""
    times = "  ".join(f"{name} {value:8.0f}" for name, value in record["us"].items())
    ratios = "  ".join(
        f"{peer} {middle:.2f} [{low:.2f}, {high:.2f}]" for peer, (middle, low, high) in record["ratio"].items()
    )
    shape = f"{record['n']:>6}x{record['k']:<6} M {record['m']:<4}"
    roof = f"read {record['read_gb_s']:.1f} GB/s, {best} at {100 * record['of_read']:.0f} % of it"
    rounds = f"rounds {record['quiet_rounds']} quiet, {record['disturbed_rounds']} disturbed"
    return f"{shape} us: {times} | ratio to {best}: {ratios} | {roof} | {rounds}"


def main() -> int:
    """Read the options, run, write the records where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["4096x4096", "14336x4096", "4096x14336"], help="N x K")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--levels", nargs="+", type=int, default=[2, 3], help="1 avx2, 2 avx512, 3 avx512_vnni")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--attempts", type=int, default=60, help="rounds at most, disturbed ones included")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    state = load_library("cpu")
    if state.status != "loaded":
        print(f"quantfarm-cpu is {state.status}: {state.text}", file=sys.stderr)
        return 1
    torch.set_num_threads(options.threads)
    stream = torch.ones(STREAM_BYTES // 4)
    records = []
    for shape in options.shapes:
        n, k = (int(part) for part in shape.split("x"))
        records += run_shape(n, k, options, stream)
    if options.json:
        options.json.write_text(json.dumps(records, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
