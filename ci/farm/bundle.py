"""The test bundle: hardware tests, their data, and the light half of the farm, copied beside each other and hashed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from farm import places

LIGHT = ("__init__", "cells", "statistics", "errors")
"""Modules of the farm that the hardware tests import."""

DATA = places.ROOT / "tests" / "data"


@dataclass(frozen=True)
class Bundle:
    """A folder without any source of the product, and its checksum."""

    folder: Path
    sha256: str


def make() -> Bundle:
    """Copy the parts into a clean folder below the farm's working folder."""
    folder = places.WORK / "bundle"
    shutil.rmtree(folder, ignore_errors=True)
    skip = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(places.HARDWARE_TESTS, folder / "hardware-tests", ignore=skip)
    (folder / "farm").mkdir()
    for name in LIGHT:
        shutil.copyfile(Path(__file__).with_name(f"{name}.py"), folder / "farm" / f"{name}.py")
    for source in sorted(DATA.iterdir()) if DATA.is_dir() else ():
        if (source / "model.safetensors").is_file():
            shutil.copytree(source, folder / "data" / source.name, ignore=skip)
    return Bundle(folder, places.hash_tree(folder))
