"""Recorded endings of jobs are classified as a person would."""

from __future__ import annotations

import pytest

from farm.failure import CLASSES, RETRIES, Failure, classify, combine

LOGS = [
    ("OSError: [Errno 28] No space left on device", 1, "infrastructure", "disk-full"),
    ("pip._vendor.urllib3 ... Read timed out.", 1, "infrastructure", "network"),
    ("Temporary failure in name resolution", 1, "infrastructure", "network"),
    ("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus", 1, "infrastructure", "device-fault"),
    ("Failed to initialize NVML: Driver/library version mismatch", 18, "infrastructure", "driver-mismatch"),
    ("The runner has received a shutdown signal.", 143, "infrastructure", "runner-lost"),
    ("", -9, "infrastructure", "out-of-memory"),
    ("AssertionError: M=8: over the limit: e=3.1e-03 > limit 2.0e-03", 1, "numeric", "over-limit"),
    ("AssertionError: M=1: non-finite outputs: 3", 1, "numeric", "non-finite"),
    ("AssertionError: not bit-equal: M=17", 1, "numeric", "non-repeatable"),
    ("gate: verdict: slower (1.09 [1.07, 1.11])", 1, "performance", "slower"),
    ("ImportError: libtorch.so: undefined symbol: foo", 1, "product", "import"),
    ("AssertionError: needs the code group_size, got scheme_bits", 1, "product", "wrong-refusal"),
    ("", -4, "product", "illegal-instruction"),
    ("Fatal Python error: Segmentation fault", -11, "product", "segmentation-fault"),
    ("something nobody has seen before", 1, "product", "unknown"),
]


@pytest.mark.parametrize(("log", "code", "kind", "member"), LOGS)
def test_a_replayed_log_gets_its_class(log: str, code: int, kind: str, member: str) -> None:
    """Each recorded log gives the class and the member; what is unknown is a fault of the product."""
    assert classify(log, returncode=code) == Failure(kind, member)
    assert kind in CLASSES


def test_a_time_limit_while_progressing_is_not_a_hang() -> None:
    """Results that kept coming until the limit mean a slow machine; silence means a hanging product."""
    assert classify("", timed_out=True, progressing=True) == Failure("infrastructure", "timeout")
    assert classify("", timed_out=True) == Failure("product", "hang")


def test_passed_and_failed_on_one_file_is_flaky() -> None:
    """Both outcomes without a sign of infrastructure are flaky, which is never retried."""
    numeric = Failure("numeric", "over-limit")
    assert combine([True, False], numeric).kind == "flaky"
    assert combine([False, False], numeric) == numeric
    assert combine([True, False], Failure("infrastructure", "network")).kind == "infrastructure"


def test_only_infrastructure_and_speed_are_tried_again() -> None:
    """Blind reruns hide races: numbers and product faults are never retried."""
    assert {kind: count for kind, count in RETRIES.items() if count} == {"infrastructure": 2, "performance": 1}
