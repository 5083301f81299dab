"""check(spec, request, host): every reason why one record can not serve one request. Pure; never stops early.

The order is that of the contract: policy, format, device, installation, scheme, shape, features.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from quantfarm.declare.reason import Reason
from quantfarm.declare.spec import Accepts, KernelSpec
from quantfarm.select.check_device import device_reasons
from quantfarm.select.check_install import install_reasons
from quantfarm.select.host import Host
from quantfarm.select.pairs import FORMATS_OF, allowed_backends, forced_dtype
from quantfarm.select.request import Request


def check(spec: KernelSpec, request: Request, host: Host) -> tuple[Reason, ...]:
    """Return every reason against the record, in the fixed order; empty means it can serve the request."""
    if spec.retired:
        return (Reason("retired", "a backend in use", "retired", note=spec.retired),)
    return tuple(
        chain(
            _policy(spec, request),
            _format(spec, request),
            device_reasons(spec, request, host),
            install_reasons(spec, request, host),
            _scheme(spec, request),
            _numbers(spec, request),
            _shape(spec, request),
            _features(spec, request),
            _exclusions(spec, request),
        )
    )


def _policy(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    if request.automatic and request.format in spec.formats and spec.priorities.get(request.format, 0) <= 0:
        yield Reason("on_request_only", "a request by name", request.backend.value, note=spec.on_request)


def _format(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    if request.format not in FORMATS_OF[request.method]:
        known = ", ".join(f.value for f in FORMATS_OF[request.method])
        yield Reason("method_format", f"a format of {request.method.value}: {known}", request.format.value)
    if spec.method is not request.method or request.format not in spec.formats:
        reads = ", ".join(f"{spec.method.value}/{f.value}" for f in spec.formats)
        yield Reason("format", reads, f"{request.method.value}/{request.format.value}")
    allowed = allowed_backends(request.method, request.format)
    if allowed and spec.backend not in allowed:
        yield Reason("loader_rule", one_of(tuple(b.value for b in allowed)), spec.backend.value)


def _scheme(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    rows = [row for row in spec.accepts if request.format in row.formats] or list(spec.accepts)
    found = [list(_row_reasons(row, spec, request)) for row in rows]
    yield from min(found, key=len, default=[])


def _row_reasons(row: Accepts, spec: KernelSpec, request: Request) -> Iterator[Reason]:
    scheme = request.scheme
    if scheme.weight_kind is not row.weight_kind:
        yield Reason("scheme_kind", row.weight_kind.value, scheme.weight_kind.value)
    if scheme.bits not in row.bits:
        yield Reason("scheme_bits", one_of(row.bits), str(scheme.bits))
    yield from _group(row, spec, request)
    if scheme.sym not in row.sym:
        yield Reason("zero_point", _symmetry(row.sym[0]), _symmetry(scheme.sym))
    if scheme.act_order not in row.act_order:
        yield Reason("act_order", _order(row.act_order[0]), _order(scheme.act_order))


def _group(row: Accepts, spec: KernelSpec, request: Request) -> Iterator[Reason]:
    size, inputs = request.scheme.group_size, request.in_features
    whole_row = size == inputs and -1 in row.group_sizes
    if size not in row.group_sizes and not whole_row:
        yield Reason("group_size", one_of(row.group_sizes), str(size))
    elif inputs is not None and size > 0 and inputs % size and not spec.shape.short_last_group:
        yield Reason("group_size", f"a divisor of K={inputs}", str(size))


def _numbers(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    dtype = request.activation_dtype
    forced = forced_dtype(request.method, request.format)
    if dtype is not None and dtype not in spec.activations:
        yield Reason("activation_dtype", one_of(spec.activations), dtype)
    elif dtype is not None and forced and dtype != forced:
        yield Reason("activation_dtype", forced, dtype, note=f"the format {request.format.value} demands it")
    if request.pack_dtype not in spec.pack_dtypes:
        yield Reason("pack_dtype", one_of(spec.pack_dtypes), request.pack_dtype)


def _shape(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    rule = spec.shape
    sides = (
        ("shape_k", "K", request.in_features, 1 if rule.pads_k else rule.k_multiple, rule.k_min),
        ("shape_n", "N", request.out_features, rule.n_multiple, rule.n_min),
    )
    for code, letter, value, multiple, minimum in sides:
        if value is None:
            continue
        if value % multiple:
            yield Reason(code, f"{letter} a multiple of {multiple}", f"{letter}={value}")
        elif value < minimum:
            yield Reason(code, f"{letter} of at least {minimum}", f"{letter}={value}")


def _features(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    features = spec.features
    if request.needs_gradients and features.training is not True:
        yield Reason("feature_training", "gradients", "inference-only")
    if request.adapter is not None and request.adapter not in features.adapters:
        yield Reason("feature_adapter", one_of(features.adapters), request.adapter)
    if request.sharded and features.sharded_load is not True:
        yield Reason("feature_sharded", "one file", "a sharded checkpoint")
    if request.packing and features.raw_packing is not True:
        declared = features.raw_packing is False
        yield Reason("feature_packing", "a packer from floats", "none" if declared else "undeclared")


def _exclusions(spec: KernelSpec, request: Request) -> Iterator[Reason]:
    if request.automatic and spec.backend in request.excluded:
        yield Reason("excluded_by_request", "leave of the caller", f"allow_{spec.backend.value}=False")
    if request.private_layout and request.private_layout != spec.kernel:
        yield Reason("layout_private", "tensors as in the checkpoint", f"the layout of {request.private_layout}")


def one_of(values: tuple[object, ...]) -> str:
    """Return allowed values as printed after ``needs``: ``4``, ``2, 3 or 4``, ``none``."""
    texts = [str(value) for value in values]
    if len(texts) < 2:
        return texts[0] if texts else "none"
    return f"{', '.join(texts[:-1])} or {texts[-1]}"


def _symmetry(sym: bool) -> str:
    return "symmetric" if sym else "stored zero points"


def _order(act_order: bool) -> str:
    return "act-order" if act_order else "plain order"
