"""Which source a file came from: commit and dirty flag, as git says. Standard library only."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "unknown"
OUTPUTS = (":(exclude)evidence", ":(exclude)docs/support-matrix.md")
"""What the farm itself writes: a new record does not make the tree dirty."""


@dataclass(frozen=True)
class Source:
    """A commit, and whether the tree held changes that it does not."""

    commit: str
    dirty: bool

    @property
    def short(self) -> str:
        """The first digits of the commit."""
        return self.commit[:10]


def read(root: Path) -> Source:
    """Return the state of a checkout. Without git nothing can be said, and nothing said counts as dirty."""
    try:
        commit = _git(root, "rev-parse", "HEAD")
        changes = _git(root, "status", "--porcelain", "--", ".", *OUTPUTS)
    except (OSError, subprocess.CalledProcessError):
        return Source(UNKNOWN, dirty=True)
    return Source(commit, bool(changes))


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
