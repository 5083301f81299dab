"""Each record on this host: a plain request that the record itself declares to serve, and the reasons against it."""

from __future__ import annotations

from quantfarm.declare.names import DEVICE
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.scheme import Scheme
from quantfarm.declare.spec import KernelSpec, Undeclared, declared
from quantfarm.doctor.finding import RecordState
from quantfarm.select.check import check
from quantfarm.select.host import Host
from quantfarm.select.request import FAMILY_ORDER, Device, Request

_BITS, _GROUP, _WIDTH = 4, 128, 4096


def plain_request(spec: KernelSpec, host: Host) -> Request:
    """Return the plainest request of a record: its own backend by name, usual width and group where declared."""
    row = spec.accepts[0]
    groups, bits = declared(row.group_sizes), declared(row.bits)
    group = max(groups) if groups and _GROUP not in groups else _GROUP
    return Request(
        method=spec.method,
        format=row.formats[0],
        scheme=Scheme(
            weight_kind=row.weight_kind,
            bits=bits[0] if bits and _BITS not in bits else _BITS,
            group_size=group,
            sym=next(iter(declared(row.sym)), True),
        ),
        in_features=_whole(spec.shape.k_multiple),
        out_features=_whole(spec.shape.n_multiple),
        activation_dtype=next(iter(spec.activations), None),
        pack_dtype=next(iter(declared(spec.pack_dtypes)), "int32"),
        devices=(Device(_family(spec, host)),),
        backend=spec.backend,
    )


def _whole(multiple: int | Undeclared) -> int:
    """Return the usual width, or the nearest one that divides."""
    return _WIDTH if isinstance(multiple, Undeclared) else max(_WIDTH // multiple, 1) * multiple


def _family(spec: KernelSpec, host: Host) -> DEVICE:
    """Return the best family that host and record share; where they share none, the host's best one."""
    present = [family for family in FAMILY_ORDER if host.of_family(family)]
    shared = [family for family in present if family in spec.devices or DEVICE.ALL in spec.devices]
    return next(iter(shared or present), DEVICE.CPU)


def record_states(host: Host, kernels: tuple[KernelSpec, ...] = KERNELS) -> tuple[RecordState, ...]:
    """Return every record with its reasons on this host."""
    states = []
    for spec in kernels:
        request = plain_request(spec, host)
        states.append(
            RecordState(
                name=spec.name,
                backend=spec.backend.value,
                request=str(request),
                reasons=check(spec, request, host),
                written=spec.kernel in host.implemented and not spec.retired,
            )
        )
    return tuple(states)
