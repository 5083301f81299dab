"""Why a cell failed: infrastructure, numeric, performance, flaky or product. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

CLASSES = ("infrastructure", "flaky", "numeric", "performance", "product")
RETRIES = {"infrastructure": 2, "flaky": 0, "numeric": 0, "performance": 1, "product": 0}
"""How often a class is tried again: infrastructure on another runner, performance in a fresh job, the rest never."""


@dataclass(frozen=True)
class Failure:
    """The class of a failure and its member, such as ``infrastructure`` and ``disk-full``."""

    kind: str
    member: str


_INFRASTRUCTURE = (
    ("disk-full", r"no space left on device|ENOSPC|disk quota exceeded"),
    ("network", r"connection (reset|refused|timed out)|temporary failure in name resolution|read timed out|ssl.*eof"),
    ("image-pull", r"failed to pull image|manifest unknown|toomanyrequests"),
    ("device-fault", r"\bXid\b|HW exception|ECC error|GPU has fallen off the bus"),
    ("device-busy", r"device (is )?busy|all .*devices are busy"),
    ("driver-mismatch", r"driver/library version mismatch"),
    ("runner-lost", r"runner has received a shutdown signal|lost communication with the server"),
    ("out-of-memory", r"\bMemoryError\b|cannot allocate memory|\boom-kill"),
)
_NUMERIC = (
    ("non-finite", r"non-finite|\bnan\b.*(output|result)"),
    ("over-limit", r"over the limit|e=\S+ > limit|exceeds the cap"),
    ("non-repeatable", r"not bit-equal|not repeatable"),
)
_PRODUCT = (
    ("illegal-instruction", r"illegal instruction|SIGILL"),
    ("missing-kernel", r"artifact_absent|artifact_skipped|no operator named|has no attribute 'quantfarm_"),
    ("import", r"ImportError|ModuleNotFoundError|undefined symbol"),
    ("wrong-refusal", r"needs the code \w+, got"),
)
_SIGNALS = {4: "illegal-instruction", 6: "abort", 8: "arithmetic", 11: "segmentation-fault"}


def classify(log: str, *, returncode: int = 1, timed_out: bool = False, progressing: bool = False) -> Failure:
    """Return the class of a failed job from its log and how it ended. What is unknown is a fault of the product.

    Args:
        log: everything the job printed.
        returncode: exit status; negative for a signal, as ``subprocess`` gives it.
        timed_out: whether the parent ended it at the time limit.
        progressing: whether results kept coming until then; a job that only hung is a fault of the product.
    """
    if timed_out:
        return Failure("infrastructure", "timeout") if progressing else Failure("product", "hang")
    if -returncode in _SIGNALS:
        return Failure("product", _SIGNALS[-returncode])
    if returncode in (-9, 137):
        return Failure("infrastructure", "out-of-memory")
    for kind, table in (("infrastructure", _INFRASTRUCTURE), ("numeric", _NUMERIC), ("product", _PRODUCT)):
        for member, pattern in table:
            if re.search(pattern, log, flags=re.IGNORECASE):
                return Failure(kind, member)
    if re.search(r"verdict: slower\b", log):
        return Failure("performance", "slower")
    return Failure("product", "unknown")


def combine(outcomes: Iterable[bool], failure: Failure) -> Failure:
    """Return ``flaky`` when one file on one lane both passed and failed without a sign of infrastructure."""
    seen = set(outcomes)
    if seen == {True, False} and failure.kind not in ("infrastructure", "performance"):
        return Failure("flaky", "passed-and-failed")
    return failure
