"""check(spec, request, host): every reason why one record can not serve one request. Pure; never stops early.

The order is that of the contract: policy, format, device, installation, scheme, shape, features.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from quantfarm.declare.reason import Reason
from quantfarm.declare.spec import Accepts, ArtifactKind, KernelSpec, Undeclared, declared
from quantfarm.formats.table import rule_of
from quantfarm.select.check_device import device_reasons
from quantfarm.select.check_install import install_reasons
from quantfarm.select.check_shape import one_of, shape_reasons
from quantfarm.select.host import Host
from quantfarm.select.pairs import FORMATS_OF, takes_part
from quantfarm.select.request import Request

_MOST_ANSWERS = 1024
"""How many answers of one host are kept."""


def check(spec: KernelSpec, request: Request, host: Host) -> tuple[Reason, ...]:
    """Return every reason against the record, in the fixed order; empty means it can serve the request.

    Of a record that does not read the format, scheme, numbers and shape are not compared: they belong to other formats.
    """
    if spec.retired:
        return (Reason("retired", "a backend in use", "retired", note=spec.retired),)
    parts = [_policy(spec, request), _format(spec, request), iter(_on_host(spec, request, host))]
    if spec.method is request.method and request.format in spec.formats:
        parts += [_scheme(spec, request), _numbers(spec, request), shape_reasons(spec.shape, request)]
    return tuple(chain(*parts, _features(spec, request), _exclusions(spec, request)))


def _on_host(spec: KernelSpec, request: Request, host: Host) -> tuple[Reason, ...]:
    """Return what device and installation say, once for a record and its devices: the layers of a model share it."""
    key = (id(spec), request.devices, request.mixed_recipe)
    known = host.answers.get(key)
    if known is not None and known[0] is spec:
        return known[1]
    found = (*device_reasons(spec, request, host), *install_reasons(spec, request, host))
    if len(host.answers) >= _MOST_ANSWERS:
        host.answers.clear()
    host.answers[key] = (spec, found)
    return found


def _policy(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    if request.automatic and request.format in spec.formats and not takes_part(spec, request):
        yield Reason("on_request_only", "a request by name", request.backend.value, note=spec.on_request)


def _format(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    if request.format not in FORMATS_OF[request.method]:
        known = ", ".join(f.value for f in FORMATS_OF[request.method])
        yield Reason("method_format", f"a format of {request.method.value}: {known}", request.format.value)
    if spec.method is not request.method or request.format not in spec.formats:
        reads = ", ".join(f"{spec.method.value}/{f.value}" for f in spec.formats)
        yield Reason("format", reads, f"{request.method.value}/{request.format.value}")
    allowed = rule_of(request.method, request.format, request.code_type).allowed
    if allowed and spec.backend not in allowed and spec.artifact.kind is not ArtifactKind.ENGINE:
        yield Reason("loader_rule", one_of(tuple(b.value for b in allowed)), spec.backend.value)


def _scheme(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    if spec.unknown:
        yield Reason("undeclared", f"{', '.join(spec.unknown)} declared", "unknown")
    bits = request.scheme.bits
    rows = [row for row in spec.accepts if request.format in row.formats]
    found = [(bits not in declared(row.bits), list(_row_reasons(row, spec, request))) for row in rows]
    yield from min(found, key=lambda pair: (pair[0], len(pair[1])))[1]


def _row_reasons(row: Accepts, spec: KernelSpec, request: Request) -> Iterator[Reason]:
    scheme, dtype = request.scheme, request.activation_dtype
    if scheme.weight_kind is not row.weight_kind:
        yield Reason("scheme_kind", row.weight_kind.value, scheme.weight_kind.value)
    if _outside(scheme.bits, row.bits):
        yield Reason("scheme_bits", one_of(declared(row.bits)), str(scheme.bits))
    yield from _group(row, spec, request)
    if request.code_type and _outside(request.code_type, row.code_types):
        yield Reason("group_size", one_of(row.code_types), request.code_type)
    yield from _zeros(row, request)
    if _outside(scheme.act_order, row.act_order):
        yield Reason("act_order", _order(declared(row.act_order)[0]), _order(scheme.act_order))
    if dtype in spec.activations and _outside(dtype, row.activations):
        kind = _symmetry(scheme.sym)
        yield Reason("activation_dtype", one_of(row.activations), str(dtype), note=f"codes with {kind}")


def _outside(value: object, allowed: tuple[object, ...] | Undeclared) -> bool:
    """Say whether a fact is declared, has a meaning, and leaves the value out."""
    return bool(values := declared(allowed)) and value not in values


def _group(row: Accepts, spec: KernelSpec, request: Request) -> Iterator[Reason]:
    size, inputs, allowed = request.scheme.group_size, request.in_features, declared(row.group_sizes)
    whole_row = size == inputs and -1 in allowed
    if _outside(size, allowed) and not whole_row:
        yield Reason("group_size", one_of(allowed), str(size))
    elif allowed and inputs is not None and size > 0 and inputs % size and not spec.shape.short_last_group:
        yield Reason("group_size", f"a divisor of K={inputs}", str(size))


def _zeros(row: Accepts, request: Request) -> Iterator[Reason]:
    sym, allowed = request.scheme.sym, declared(row.sym)
    if _outside(sym, allowed):
        yield Reason("zero_point", _symmetry(allowed[0]), _symmetry(sym))
    elif request.zeros_differ and allowed == (True,):
        middle = 1 << (request.scheme.bits - 1)
        yield Reason("zero_point", f"every stored zero point equal to {middle}", "others, although sym is true")


def _numbers(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    dtype = request.activation_dtype
    forced = rule_of(request.method, request.format, request.code_type).forced_dtype
    if dtype is not None and _outside(dtype, spec.activations):
        yield Reason("activation_dtype", one_of(spec.activations), dtype)
    elif dtype is not None and forced and dtype != forced:
        yield Reason("activation_dtype", forced, dtype, note=f"the format {request.format.value} demands it")
    if _outside(request.pack_dtype, spec.pack_dtypes):
        yield Reason("pack_dtype", one_of(declared(spec.pack_dtypes)), request.pack_dtype)


def _features(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    features = spec.features
    if request.needs_gradients and features.training is not True:
        yield Reason("feature_training", "gradients", "inference-only")
    if request.adapter is not None and request.adapter not in declared(features.adapters):
        yield Reason("feature_adapter", one_of(declared(features.adapters)), request.adapter)
    if request.sharded and features.sharded_load is not True:
        yield Reason("feature_sharded", "one file", "a sharded checkpoint")
    if request.packing and features.raw_packing is not True:
        got = "none" if features.raw_packing is False else "undeclared"
        yield Reason("feature_packing", "a packer from floats", got)


def _exclusions(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    if request.automatic and spec.backend in request.excluded:
        yield Reason("excluded_by_request", "leave of the caller", f"allow_{spec.backend.value}=False")
    if request.private_layout and request.private_layout != spec.kernel:
        yield Reason("layout_private", "tensors as in the checkpoint", f"the layout of {request.private_layout}")


def _symmetry(sym: bool) -> str:
    return "symmetric" if sym else "stored zero points"


def _order(act_order: bool) -> str:
    return "act-order" if act_order else "plain order"
