"""Checkpoints whose headers and settings are right and whose tensors are missing: nobody reads them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

GPTQ = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "desc_act": False,
    "checkpoint_format": "gptq",
}


def write_tensors(path: Path, shapes: dict[str, tuple[str, list[int]]]) -> None:
    """Write a safetensors file whose header is right and whose data are missing: nobody reads them."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    header |= {n: {"dtype": d, "shape": s, "data_offsets": [0, 0]} for n, (d, s) in shapes.items()}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def checkpoint(folder: Path, settings: dict[str, Any], *files: dict[str, tuple[str, list[int]]]) -> Path:
    """Write a checkpoint with settings in config.json."""
    config = {"dtype": "bfloat16", "quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for number, shapes in enumerate(files):
        write_tensors(folder / f"model-{number}.safetensors", shapes)
    return folder
