"""The NVIDIA driver: below the floor of a wheel, in two halves that differ, or without devices in a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quantfarm.declare.names import DEVICE
from quantfarm.doctor.finding import Finding, RecordState
from quantfarm.select.host import Host
from quantfarm.select.machine import NVIDIA_VERSION, driver_library_version

CONTROL = Path("/dev/nvidiactl")
"""The device file that a container is given together with its cards."""


def driver_findings(
    host: Host, records: tuple[RecordState, ...], *, control: Path = CONTROL, library: str | None = None
) -> Iterator[Finding]:
    """Yield at most one finding on the driver, the first cause first.

    Args:
        host: its ``versions["driver"]`` is the version of the kernel module.
        records: what each record says on this host.
        control: the device file that shows whether the cards are handed in.
        library: the version of the driver's library; left out, its file is looked for.
    """
    module = host.versions.get("driver", "")
    if not module:
        return
    found = driver_library_version() if library is None else library
    if not control.exists() and not host.of_family(DEVICE.CUDA):
        yield Finding(
            code="driver",
            evidence=f"{NVIDIA_VERSION} says {module}; there is no {control}",
            sentence="the driver is loaded and its devices are not visible here: a container without its cards",
            command="docker run --gpus all",
        )
    elif found and found != module:
        yield Finding(
            code="driver",
            evidence=f"kernel module {module}, library libcuda.so.{found}",
            sentence=f"the two halves of the driver differ: the kernel module is {module}, the library is {found}",
            command="sudo reboot",
        )
    else:
        reasons = (reason for record in records if record.written for reason in record.reasons)
        for reason in (reason for reason in reasons if reason.code == "driver"):
            yield Finding(
                code="driver",
                evidence=f"{NVIDIA_VERSION} says {module}",
                sentence=f"{reason.sentence}: needs {reason.need}, got {reason.got} ({reason.note})",
                command=f"update the NVIDIA driver to {reason.need.rpartition(' ')[2]} or later",
            )
            return
