"""The wrappers that integrations call, with the documented names and parameter orders, and no ranking of their own.

Each fills in the running machine, reads the names, and asks ``choose``; its answer is a handle on the chosen backend.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from quantfarm.declare.names import (
    BACKEND,
    DEVICE,
    FORMAT,
    METHOD,
    BadType,
    normalize_backend,
    normalize_format,
    normalize_method,
)
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.scheme import Scheme
from quantfarm.declare.spec import ArtifactKind, KernelSpec
from quantfarm.formats.table import rule_of
from quantfarm.select.choose import choose
from quantfarm.select.host import Host, probe
from quantfarm.select.overrides import normalize_bits
from quantfarm.select.pairs import kind_of
from quantfarm.select.request import FAMILY_ORDER, Device, Request, normalize_devices
from quantfarm.select.selection import Selection

_NOWHERE = ("disk", "meta")
_SYMBOLIC = ("auto", "balanced", "sequential")
_BALANCED = "balanced_low_"


@dataclass(frozen=True)
class Handle:
    """A chosen backend: its record, and the selection with every candidate's reasons."""

    spec: KernelSpec
    selection: Selection

    @property
    def backend(self) -> BACKEND:
        """The user-facing member."""
        return self.spec.backend

    @property
    def kernel(self) -> str | None:
        """The kernel's folder; None for an engine, whose own kernels decide."""
        return None if self.spec.artifact.kind is ArtifactKind.ENGINE else self.spec.kernel

    def load(self) -> ModuleType:
        """Import and return the kernel's module: ``prepare``, ``run``, ``restore``, ``calls``.

        Raises:
            BadType: the handle is an engine's and has no local kernel.
        """
        if self.kernel is None:
            raise BadType(f"backend: {self.backend.value} is an engine and has no local kernel")
        return importlib.import_module(f"quantfarm.kernels.{self.kernel}.backend")


def select_quant_linear(  # noqa: PLR0913, PLR0917 - the published signature
    bits: int | str,
    group_size: int,
    desc_act: bool,
    sym: bool,
    device: object,
    backend: BACKEND | str | None = BACKEND.AUTO,
    format: FORMAT | str = FORMAT.GPTQ,  # noqa: A002 - the documented name
    quant_method: METHOD | str = METHOD.GPTQ,
    pack: bool = False,
    allow_marlin: bool = True,
    dynamic: Mapping[str, Any] | None = None,
    pack_dtype: object = None,
    dtype: object = None,
    multi_select: bool = False,
    adapter: object = None,
    is_sharded: bool = False,
) -> Handle | list[Handle]:
    """Choose the backend of a whole model by its settings.

    ``bits`` may be a name such as ``q4_k_m``. ``device`` takes a name, member, ordinal, torch device, or an iterable of
    these, and has no default. ``pack_dtype`` None is the usual one of the format, ``dtype`` None leaves activations
    unchecked. ``adapter`` is its kind, or an adapter object, whose class names the kind. All else is as in ``Request``.

    Returns:
        A handle, or with ``multi_select`` a list of handles in order.

    Raises:
        KernelRefused, UnknownName, BadType: refused; a name or a value that is none.
    """
    if device is None:
        raise BadType("device: needs a name, an ordinal or a torch device, got None")
    method, form = normalize_method(quant_method), normalize_format(format)
    host, width = probe(), normalize_bits(bits)
    scheme = Scheme(
        weight_kind=kind_of(method, form, width),
        bits=width,
        group_size=group_size,
        sym=_flag("sym", sym),
        act_order=_flag("desc_act", desc_act),
    )
    request = Request(
        method=method,
        format=form,
        scheme=scheme,
        activation_dtype=None if dtype is None else str(dtype),
        pack_dtype=_words(method, form, pack_dtype),
        devices=normalize_devices(device, host),
        backend=normalize_backend(backend, method) or BACKEND.AUTO,
        adapter=adapter if adapter is None or isinstance(adapter, str) else type(adapter).__name__.lower(),
        sharded=is_sharded,
        packing=pack,
        allow_marlin=allow_marlin,
        dynamic=dynamic,  # type: ignore[arg-type]
        multi_select=multi_select,
    )
    return _handles(choose(request, host, KERNELS))


def hf_select_quant_linear(  # noqa: PLR0913, PLR0917 - the published signature
    bits: int,
    group_size: int,
    desc_act: bool,
    sym: bool,
    checkpoint_format: str,
    meta: Mapping[str, Any] | None = None,
    pack: bool = True,
    device_map: object = None,
    backend: BACKEND | str | None = None,
) -> Handle:
    """Choose the backend of a GPTQ model; ``checkpoint_format`` is honoured, ``meta`` is not needed."""
    del meta
    chosen = select_quant_linear(
        bits,
        group_size,
        desc_act,
        sym,
        hf_normalize_device_device_map(None, device_map),
        backend or BACKEND.AUTO,
        checkpoint_format,
        METHOD.GPTQ,
        pack,
        pack_dtype="int32",
    )
    assert isinstance(chosen, Handle)
    return chosen


def hf_select_quant_linear_v2(  # noqa: PLR0913, PLR0917 - the published signature
    bits: int,
    group_size: int,
    desc_act: bool,
    sym: bool,
    format: FORMAT | str,  # noqa: A002 - the documented name
    quant_method: METHOD | str,
    zero_point: bool | None = None,
    dtype: object = None,
    meta: Mapping[str, Any] | None = None,
    pack: bool = True,
    device_map: object = None,
    backend: BACKEND | str | None = None,
) -> Handle:
    """Choose the backend of a model of any method; a given ``zero_point`` overrides ``sym`` with its negation."""
    chosen = select_quant_linear(
        bits,
        group_size,
        desc_act,
        sym if zero_point is None else not zero_point,
        hf_normalize_device_device_map(None, device_map),
        backend or BACKEND.AUTO,
        format,
        quant_method,
        pack,
        pack_dtype=(meta or {}).get("pack_dtype"),
        dtype=dtype,
    )
    assert isinstance(chosen, Handle)
    return chosen


def hf_normalize_device_device_map(device: object, device_map: object) -> tuple[Device, ...]:
    """Return the exact devices that a device or a device map stands for; a given device wins.

    ``disk``, ``meta`` and None entries are left out. With an accelerator among the rest, CPU entries are offload. A
    symbolic map gives the machine's accelerator family without ordinals. Nothing left, or no map, is the CPU.

    Raises:
        UnknownName, BadType: an entry that is no device.
    """
    host = probe()
    if device is not None:
        return normalize_devices(device, host)
    if isinstance(device_map, str) and (device_map in _SYMBOLIC or device_map.startswith(_BALANCED)):
        return (Device(_best_family(host)),)
    entries = device_map.values() if isinstance(device_map, Mapping) else _as_entries(device_map)
    asked = [entry for entry in entries if entry is not None and str(entry) not in _NOWHERE]
    devices = normalize_devices(asked, host)
    return tuple(d for d in devices if d.family is not DEVICE.CPU) or (Device(DEVICE.CPU),)


def _as_entries(device_map: object) -> Iterable[object]:
    return () if device_map is None else (device_map,)


def _best_family(host: Host) -> DEVICE:
    return next((family for family in FAMILY_ORDER if host.of_family(family)), DEVICE.CPU)


def _words(method: METHOD, form: FORMAT, given: object) -> str:
    return str(given) if given is not None else rule_of(method, form).pack_dtype or "int32"


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadType(f"{name}: needs true or false, got {type(value).__name__}")
    return value


def _handles(selection: Selection) -> Handle | list[Handle]:
    if selection.request.multi_select:
        return [Handle(spec, selection) for spec in selection.listed]
    assert selection.chosen is not None
    return Handle(selection.chosen, selection)
