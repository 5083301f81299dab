"""How long the selector takes: ``python benchmarks/selector_speed.py``. Needs no GPU; the checkpoint is headers only.

Prints seconds of wall time, the best and the median of several rounds, beside the limits of the project:
1,000 choices under 1 s, explaining 64 layers without torch under 2 s, importing the package under 60 ms.
"""

from __future__ import annotations

import json
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from quantfarm.declare.device import parse_arch
from quantfarm.declare.names import DEVICE
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.scheme import Scheme
from quantfarm.select.choose import select
from quantfarm.select.host import Host, HostDevice, probe
from quantfarm.select.request import Device, Request

ROUNDS = 5
NO_TORCH = "import sys; sys.modules['torch'] = None; from quantfarm.cli import main; main()"


def seconds(function: Callable[[], object]) -> str:
    """Return the best and the median of some rounds."""
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return f"best {min(taken):.3f} s, median {statistics.median(taken):.3f} s"


def h200() -> Host:
    """Return this machine as if it had an H200."""
    card = HostDevice(family=DEVICE.CUDA, arch=parse_arch("sm_90"), limits={"shared_memory_per_block_optin": 232448})
    here = probe(use_torch=False)
    return replace(here, torch_build="cuda", devices=(card, *here.of_family(DEVICE.CPU)))


def choices(host: Host, *, distinct: bool) -> Callable[[], object]:
    """Return a function that chooses a thousand times: for one layer, or for a thousand shapes never seen before."""
    scheme = Scheme(bits=4, group_size=128, sym=True)
    base = Request(method="gptq", format="gptq", scheme=scheme, devices=(Device(DEVICE.CUDA, 0),))  # type: ignore[arg-type]
    select(base, host)
    counter = iter(range(1, 1 << 30))

    def run() -> None:
        for _ in range(1000):
            select(replace(base, in_features=128 * next(counter)) if distinct else base, host)

    return run


def checkpoint(folder: Path, layers: int = 64) -> Path:
    """Write settings and a header of a model with seven quantized layers in each of its blocks."""
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings, "dtype": "float16"}))
    names = [("self_attn", p, 4096, 4096) for p in ("q_proj", "k_proj", "v_proj", "o_proj")]
    names += [("mlp", "gate_proj", 4096, 11008), ("mlp", "up_proj", 4096, 11008), ("mlp", "down_proj", 11008, 4096)]
    header = {
        f"model.layers.{layer}.{part}.{name}.qweight": {"dtype": "I32", "shape": [k // 8, n], "data_offsets": [0, 0]}
        for layer in range(layers)
        for part, name, k, n in names
    }
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return folder


def main() -> None:
    """Measure and print."""
    host = h200()
    print(f"records {len(KERNELS)}")
    print(f"1,000 choices, one layer          {seconds(choices(host, distinct=False))}")
    print(f"1,000 choices, all shapes new     {seconds(choices(host, distinct=True))}")
    with tempfile.TemporaryDirectory() as folder:
        words = ["explain", str(checkpoint(Path(folder))), "--device", "cuda:0", "--arch", "9.0"]
        command = [sys.executable, "-c", NO_TORCH, *words]
        taken = seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        print(f"explain, 64 blocks, without torch {taken}")
    bare = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    for name in ("quantfarm", "quantfarm.declare.registry"):
        runs = [subprocess.run([sys.executable, "-c", bare.format(name)], capture_output=True, text=True, check=True)]
        runs += [subprocess.run(runs[0].args, capture_output=True, text=True, check=True) for _ in range(2 * ROUNDS)]
        taken = [float(run.stdout) for run in runs]
        print(f"import {name:<26} best {min(taken) * 1e3:.1f} ms, median {statistics.median(taken) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
