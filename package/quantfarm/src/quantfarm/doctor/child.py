"""Loading a native library in a child process: an illegal instruction or an abort can not be caught in this one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict, replace

from quantfarm.declare.artifact import ArtifactState
from quantfarm.runtime.artifacts import describe_library, load_library

TIMEOUT = 120.0
"""Seconds a child may take; nearly all of it is the import of torch on a cold machine."""

_MARK = "quantfarm-child:"
_SCRIPT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from quantfarm.doctor.child import report; report(sys.argv[2])"
)
_TAIL = 2000


class ChildNotStarted(OSError):
    """The child process could not be started, so nothing is known about the library."""


def report(library: str) -> None:
    """Load a library and print its state as one marked line: the child's side."""
    print(_MARK + json.dumps(asdict(load_library(library))), flush=True)


def load_in_child(library: str, *, timeout: float = TIMEOUT) -> ArtifactState:
    """Return what became of a library when another process loaded it.

    Raises:
        ChildNotStarted: no process could be started.
    """
    state = describe_library(library)
    if state.status != "loaded":
        return state
    command = [sys.executable, "-c", _SCRIPT, json.dumps(sys.path), library]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return replace(state, status="failed", text=f"loading it takes longer than {timeout:g} s", checked=True)
    except OSError as error:
        raise ChildNotStarted(f"{sys.executable}: {error}") from error
    line = next((line for line in done.stdout.splitlines() if line.startswith(_MARK)), "")
    if done.returncode == 0 and line:
        return ArtifactState(**json.loads(line.removeprefix(_MARK)))
    text = f"loading it ends the process with {ending(done.returncode)}"
    said = done.stderr.strip()[-_TAIL:]
    return replace(state, status="failed", text=f"{text}: {said}" if said else text, checked=True)


def load_or_read(library: str) -> ArtifactState:
    """Return what became of a library in another process; where none can be started, what its files say."""
    try:
        return load_in_child(library)
    except ChildNotStarted:
        return describe_library(library)


def ending(code: int) -> str:
    """Return how a process ended: the signal's name, or its exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
