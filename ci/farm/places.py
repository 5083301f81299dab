"""Where things lie in a checkout, and writing files so that a reader never sees half of one. Standard library only."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MATRIX = ROOT / "matrix.yaml"
DIST = ROOT / "dist"
BUILD_RECORD = DIST / "build.json"
EVIDENCE = ROOT / "evidence"
SITE = ROOT / "site"
SUPPORT_PAGE = ROOT / "docs" / "support-matrix.md"
CONSTRAINTS = ROOT / "ci" / "constraints.txt"
WORK = ROOT / ".farm"
HARDWARE_TESTS = ROOT / "hardware-tests"
_CHUNK = 1 << 20


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a file under a temporary name in its own folder, then move it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data.encode() if isinstance(data, str) else data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """Return the checksum of a file as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def hash_tree(*folders: Path) -> str:
    """Return one checksum over the names and bytes of all files below the folders; build leavings are skipped."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
            digest.update(f"{folder.name}/{path.relative_to(folder).as_posix()}\0{sha256(path)}\n".encode())
    return digest.hexdigest()


def kernel_hash(root: Path, kernel: str, library: str) -> str:
    """Return the checksum of a kernel's two halves: its folder in the front and, for native code, in csrc/."""
    front = root / "package" / "quantfarm" / "src" / "quantfarm" / "kernels" / kernel
    native = root / "csrc" / ("cpu" if library == "cpu" else "device") / kernel
    return hash_tree(front, *([native] if library else []))
