"""Native libraries of the back-end wheels: found, compared with this front, loaded. The outcome is always a value.

The only file with a broad ``except``: what a loader raises is kept as text and never swallowed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from quantfarm import __version__
from quantfarm.declare.artifact import ArtifactState

MANIFEST = "manifest.json"
_ABI_MARKS = ("undefined symbol", "symbol not found", "version `", "procedure could not be found")
_CHUNK = 1 << 20


def module_name(library: str) -> str:
    """Return the module of a back-end wheel, such as ``quantfarm_cpu``."""
    return f"quantfarm_{library}"


def find_folder(library: str) -> Path | None:
    """Return the folder of a back-end wheel's module without importing it, or None where there is none."""
    try:
        spec = importlib.util.find_spec(module_name(library))
    except (ImportError, ValueError):
        return None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def describe_library(library: str) -> ArtifactState:
    """Return the state of a library from its files alone: nothing is loaded, torch is not imported.

    ``loaded`` then means only that manifest, versions and checksum fit; ``checked`` is False.
    """
    folder = find_folder(library)
    recorded = _version_of(f"quantfarm-{library}")
    if folder is None:
        text = f"quantfarm-{library} {recorded} is recorded as installed, but there is no {module_name(library)}"
        return ArtifactState(library=library, status="absent", text=text if recorded else "", version=recorded)
    source = folder / MANIFEST
    if not source.is_file():
        text = f"{module_name(library)} has no {MANIFEST}: a placeholder without native code"
        return ArtifactState(library=library, status="absent", text=text, version=recorded)
    try:
        manifest = json.loads(source.read_text(encoding="utf-8"))
        version = str(manifest["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{MANIFEST} can not be read: {type(error).__name__}: {error}"
        return ArtifactState(library=library, status="failed", text=text)
    state = ArtifactState(library=library, status="loaded", version=version, manifest=manifest)
    return _compare(state, folder, manifest)


def _compare(state: ArtifactState, folder: Path, manifest: Mapping[str, Any]) -> ArtifactState:
    """Compare version, contents, file and torch with what is installed; the first cause found is the state."""
    if state.version != __version__:
        text = f"quantfarm-{state.library}: needs {__version__}, got {state.version}"
        return replace(state, status="wrong_abi", text=text)
    skipped = manifest.get("skipped") or ()
    if not manifest.get("kernels"):
        sentence = "; ".join(dict.fromkeys(str(row["reason"]) for row in skipped))
        status = "skipped" if skipped else "absent"
        return replace(state, status=status, text=sentence or f"{MANIFEST} lists no kernel")
    path = folder / str(manifest.get("library", ""))
    if not path.is_file():
        return replace(state, status="failed", text=f"missing: {path.name} is listed in {MANIFEST} but not there")
    state = replace(state, path=str(path))
    found = sha256(path)
    if found != manifest.get("sha256"):
        text = f"corrupt: needs sha256 {manifest.get('sha256')}, got {found}"
        return replace(state, status="failed", text=text)
    torch = _installed_torch()
    target = str(manifest.get("torch_abi", ""))
    if torch and target and _older(torch, target):
        return replace(state, status="wrong_abi", text=f"torch {torch} is older than {target}, the library's ABI")
    return state


def sha256(path: Path) -> str:
    """Return the checksum of a file as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _installed_torch() -> str:
    return _version_of("torch")


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _older(found: str, target: str) -> bool:
    try:
        return Version(Version(found).base_version) < Version(target)
    except InvalidVersion:
        return True


@cache
def load_library(library: str) -> ArtifactState:
    """Load a library into this process, once, and return what came of it.

    Torch is imported only if the files fit. Where it can not be imported the state stays unchecked: that fault is
    torch's, and every record says so.
    """
    state = describe_library(library)
    if state.status != "loaded":
        return state
    try:
        import torch
    except (ImportError, OSError):
        return state
    try:
        torch.ops.load_library(state.path)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - the one broad except; the text is the outcome
        return _refused(state, _words(error))
    space = getattr(torch.ops, module_name(library))
    names = {name for row in state.manifest["kernels"] for name in row.get("ops", ())}
    missing = sorted(name for name in names if not hasattr(space, name))
    if missing:
        text = f"the library registers no operator {', '.join(missing)}"
        return replace(state, status="failed", text=text, checked=True)
    return replace(state, checked=True)


def _words(error: BaseException) -> str:
    """Return what was raised, the first cause first: torch wraps the loader's sentence in one of its own."""
    texts = [str(error) or type(error).__name__]
    while error.__cause__ is not None:
        error = error.__cause__
        texts.insert(0, str(error) or type(error).__name__)
    return "; ".join(dict.fromkeys(texts))


def _refused(state: ArtifactState, text: str) -> ArtifactState:
    """Tell a library of another build from one that fails for another reason, by the loader's own words."""
    if any(mark in text.lower() for mark in _ABI_MARKS):
        built = (state.manifest.get("built_with") or {}).get("torch", "unknown")
        text = f"built with torch {built}, found torch {_installed_torch() or 'none'}: {text}"
        return replace(state, status="wrong_abi", text=text, checked=True)
    return replace(state, status="failed", text=text, checked=True)


def checksum_of(state: ArtifactState) -> str:
    """Return the checksum of a state's library file, or an empty text where there is no file."""
    return sha256(Path(state.path)) if state.path and Path(state.path).is_file() else ""
