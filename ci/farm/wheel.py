"""A finished wheel file, read as a zip: name, tags, checksums, members. Standard library only."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from farm.errors import WheelDiffers
from farm.places import sha256

_ELF = b"\x7fELF"


@dataclass(frozen=True)
class Wheel:
    """One wheel file. Nothing of the build tree is looked at."""

    path: Path

    @cached_property
    def sha256(self) -> str:
        """The checksum of the file."""
        return sha256(self.path)

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """Every member's name and bytes.

        Raises:
            WheelDiffers: no zip file, or a member whose checksum inside the zip is wrong.
        """
        try:
            with zipfile.ZipFile(self.path) as archive:
                return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as error:
            raise WheelDiffers(f"cannot read {self.path.name}: {error}") from error

    @property
    def _parts(self) -> list[str]:
        return self.path.name.removesuffix(".whl").split("-")

    @property
    def distribution(self) -> str:
        """The distribution's name, such as ``quantfarm-cpu``."""
        return self._parts[0].replace("_", "-").lower()

    @property
    def module(self) -> str:
        """The name of the module inside, such as ``quantfarm_cpu``."""
        return self.distribution.replace("-", "_")

    @property
    def version(self) -> str:
        """The version in the file's name."""
        return self._parts[1]

    @property
    def tag(self) -> str:
        """The compatibility tag in the file's name, such as ``py3-none-any``."""
        return "-".join(self._parts[-3:])

    @property
    def platform(self) -> str:
        """The last part of the tag."""
        return self._parts[-1]

    @cached_property
    def libraries(self) -> tuple[str, ...]:
        """Members that are ELF files, by content and not by name."""
        return tuple(sorted(name for name, data in self.files.items() if data[:4] == _ELF))

    def metadata(self, name: str) -> bytes:
        """Return a file of the .dist-info folder, or empty bytes."""
        return next((data for path, data in self.files.items() if path.endswith(f".dist-info/{name}")), b"")

    def record_problems(self) -> list[str]:
        """Compare every member with RECORD; return each difference as a sentence."""
        rows = {row[0]: row[1] for row in csv.reader(io.StringIO(self.metadata("RECORD").decode())) if row}
        if not rows:
            return ["RECORD: needs one, got none"]
        found = []
        for name, data in self.files.items():
            if name.endswith(".dist-info/RECORD"):
                continue
            listed = rows.pop(name, None)
            got = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            if listed is None:
                found.append(f"{name}: needs a line in RECORD, got none")
            elif listed != got:
                found.append(f"{name}: RECORD needs {listed}, got {got}")
        leftover = [name for name in rows if not name.endswith(".dist-info/RECORD")]
        return found + [f"{name}: listed in RECORD, needs the file, got none" for name in leftover]

    def tag_problems(self) -> list[str]:
        """Compare the tag in the file's name with the tags in the WHEEL file."""
        lines = self.metadata("WHEEL").decode().splitlines()
        inside = sorted(line.removeprefix("Tag: ") for line in lines if line.startswith("Tag: "))
        return [] if self.tag in inside else [f"tag: the file name says {self.tag}, WHEEL says {', '.join(inside)}"]
