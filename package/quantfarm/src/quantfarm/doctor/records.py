"""Each record on this host: a plain request that the record itself declares to serve, and the reasons against it."""

from __future__ import annotations

from quantfarm.declare.names import DEVICE
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.scheme import Scheme
from quantfarm.declare.spec import KernelSpec
from quantfarm.doctor.finding import RecordState
from quantfarm.select.check import check
from quantfarm.select.host import Host
from quantfarm.select.request import FAMILY_ORDER, Device, Request

_BITS, _GROUP, _WIDTH = 4, 128, 4096


def plain_request(spec: KernelSpec, host: Host) -> Request:
    """Return the plainest request of a record: its own backend by name, usual width and group where declared."""
    row = spec.accepts[0]
    fmt = row.formats[0]
    group = _GROUP if _GROUP in row.group_sizes else max(row.group_sizes)
    rule = spec.shape
    k = _WIDTH if _WIDTH % rule.k_multiple == 0 else rule.k_multiple * max(group, 1)
    n = _WIDTH if _WIDTH % rule.n_multiple == 0 else rule.n_multiple * _BITS
    return Request(
        method=spec.method,
        format=fmt,
        scheme=Scheme(
            weight_kind=row.weight_kind,
            bits=_BITS if _BITS in row.bits else row.bits[0],
            group_size=group,
            sym=row.sym[0],
        ),
        in_features=k,
        out_features=n,
        activation_dtype=spec.activations[0],
        pack_dtype=spec.pack_dtypes[0],
        devices=(Device(_family(spec, host)),),
        backend=spec.backend,
    )


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
        reasons = check(spec, request, host)
        states.append(RecordState(name=spec.name, backend=spec.backend.value, request=str(request), reasons=reasons))
    return tuple(states)
