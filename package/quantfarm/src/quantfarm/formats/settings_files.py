"""Where a checkpoint keeps its quantization settings, and what holds when several files state them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantfarm.errors import CheckpointError, ConfigError
from quantfarm.formats.dialects import SPELLINGS, canonical, translated

NESTED = "quantization_config"
PLACES: tuple[tuple[str, str], ...] = (
    ("quantize_config.json", ""),
    ("quant_config.json", ""),
    ("config.json", NESTED),
)
"""File and key in the order of search; an empty key means the whole file."""


def find_settings(folder: Path) -> tuple[Mapping[str, Any], str]:
    """Return the settings of a checkpoint folder and the file they come from.

    The first place that has settings wins. A later place may add keys that the first leaves out (the name of the
    source then lists both), and it must agree on every canonical key that both state.

    Raises:
        ConfigError: none of the three places has settings, or two places disagree; names files and key.
        CheckpointError: there is no such folder, or a file is not JSON.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"cannot open {folder}: no such folder",
            lines=("model: needs a folder with config.json and safetensors, got " + _what_is_there(folder),),
            remedy="name the folder of a checkpoint",
        )
    found = [(settings, _label(file, key)) for file, key in PLACES if (settings := _read(folder / file, key))]
    if not found:
        raise ConfigError(
            f"cannot find quantization settings in {folder}: this is not a quantized checkpoint",
            lines=tuple(f"{_label(file, key)}: {_absence(folder / file, key)}" for file, key in PLACES),
            remedy="pass quantize_config, or name a folder that holds one of these",
        )
    merged, sources = dict(found[0][0]), [found[0][1]]
    for settings, label in found[1:]:
        added = _agreeing_additions((merged, " and ".join(sources)), (settings, label))
        if added:
            merged.update(added)
            sources.append(label)
    return merged, " and ".join(sources)


def has_settings(folder: Path) -> bool:
    """Say whether any of the places has quantization settings."""
    return any(_read(folder / file, key) for file, key in PLACES)


def _what_is_there(path: Path) -> str:
    return "a file" if path.exists() else "nothing"


def _agreeing_additions(known: tuple[dict[str, Any], str], other: tuple[Mapping[str, Any], str]) -> dict[str, Any]:
    """Return the canonical facts that only ``other`` states, in its own spelling; raise where both state one."""
    ours, theirs = (canonical(translated(settings, label), label) for settings, label in (known, other))
    for key in SPELLINGS:
        if key != "meta" and key in ours and key in theirs and ours[key] != theirs[key]:
            raise ConfigError(
                f"cannot read the settings: {known[1]} and {other[1]} disagree on {key}",
                lines=(f"{known[1]}: {key} is {_shown(ours[key])}", f"{other[1]}: {key} is {_shown(theirs[key])}"),
                remedy="correct or remove one of the two files",
            )
    missing = [key for key in theirs if key not in ours]
    return {name: other[0][name] for key in missing for name in SPELLINGS[key] if other[0].get(name) is not None}


def _read(path: Path, key: str) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"cannot read {path}: not valid JSON", lines=(str(error),), remedy="fetch the file again"
        ) from error
    settings = content.get(key) if key and isinstance(content, dict) else content
    return settings if isinstance(settings, dict) else {}


def _label(file: str, key: str) -> str:
    return f"{file} ({key})" if key else file


def _absence(path: Path, key: str) -> str:
    if not path.is_file():
        return "no such file"
    return f"no key {key}" if key else "no settings in it"


def _shown(value: Any) -> str:
    return (
        str(getattr(value, "value", value)).lower() if isinstance(value, bool) else str(getattr(value, "value", value))
    )
