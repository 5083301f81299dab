"""The validation cache: bounded, exact about its key, safe under threads, and free of exception objects."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from select_asks import ask
from select_hosts import BASE, HOSTS, wheel

from quantfarm.declare.reason import Reason
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.spec import KernelSpec
from quantfarm.errors import KernelRefused
from quantfarm.select.cache import CheckCache
from quantfarm.select.choose import choose
from quantfarm.select.host import Host
from quantfarm.select.request import Request

ASK = "gptq/gptq W4 g128 bf16"
SPEC = KERNELS[0]


class Counting:
    """A check function that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, spec: KernelSpec, request: Request, host: Host) -> tuple[Reason, ...]:
        """Return one reason that names the call."""
        self.calls += 1
        return (Reason("shape_k", str(request.in_features), host.machine, note=spec.name),)


def test_it_is_bounded_and_drops_the_least_recently_used() -> None:
    """The 1025th contract pushes out the one that was not asked for longest."""
    count = Counting()
    cache = CheckCache(count)
    asks = [replace(ask(ASK, BASE), in_features=k) for k in range(1, 1026)]
    for request in asks[:1024]:
        cache(SPEC, request, BASE)
    cache(SPEC, asks[0], BASE)
    cache(SPEC, asks[1024], BASE)
    assert (len(cache), count.calls) == (1024, 1025)
    cache(SPEC, asks[0], BASE)
    assert count.calls == 1025
    cache(SPEC, asks[1], BASE)
    assert count.calls == 1026


def test_threads_share_one_result() -> None:
    """Eight threads with the same question cause one check."""
    count = Counting()
    cache = CheckCache(count)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: cache(SPEC, ask(ASK, BASE), BASE), range(64)))
    assert count.calls == 1
    assert len(set(results)) == 1


@pytest.mark.parametrize(
    "host",
    [
        replace(BASE, artifacts=wheel("failed", "text")),
        replace(BASE, versions={"torch": "2.14.0"}),
        replace(BASE, cpu_features=frozenset()),
        HOSTS["TWO"],
    ],
)
def test_another_host_is_another_key(host: Host) -> None:
    """A changed artifact, package, processor or device is asked anew; an equal host is not."""
    count = Counting()
    cache = CheckCache(count)
    for asked in (BASE, host, replace(BASE), replace(host)):
        cache(SPEC, ask(ASK, BASE), asked)
    assert count.calls == 2


def test_refusals_are_new_exceptions_with_equal_texts() -> None:
    """Two refusals of one request read the same and share neither object nor traceback."""
    caught = []
    for _ in range(2):
        with pytest.raises(KernelRefused) as info:
            choose(ask(ASK, BASE, "marlin"), BASE, KERNELS)
        caught.append(info.value)
    first, second = caught
    assert str(first) == str(second)
    assert first is not second
    assert first.__traceback__ is not second.__traceback__


def test_swapped_devices_give_no_stale_answer() -> None:
    """After the capabilities of two devices are swapped, the same question gets the new answer."""
    host = HOSTS["TWO"]
    swapped = replace(
        host, devices=(replace(host.devices[1], index=0), replace(host.devices[0], index=1), host.devices[2])
    )
    count = Counting()
    cache = CheckCache(count)
    request = ask(f"{ASK} on:cuda:1", host)
    cache(SPEC, request, host)
    cache(SPEC, request, swapped)
    assert count.calls == 2
