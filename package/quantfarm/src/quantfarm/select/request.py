"""Request: what is asked, as one frozen value, and how device names are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from quantfarm.declare.names import (
    BACKEND,
    DEVICE,
    FORMAT,
    METHOD,
    POLICIES,
    BadType,
    UnknownName,
    normalize_backend,
    normalize_format,
    normalize_method,
)
from quantfarm.declare.scheme import Scheme
from quantfarm.select.overrides import Override, normalize_dtype, read_overrides

if TYPE_CHECKING:
    from quantfarm.select.host import Host

SHORT_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
"""The short spellings that messages print."""

FAMILY_ORDER = (DEVICE.CUDA, DEVICE.ROCM, DEVICE.XPU, DEVICE.MPS, DEVICE.CPU)
"""The order in which a family is taken when no device is named."""

BASE = "base"
"""The name of the contract of the modules that no override matches."""

_ALLOW = "allow_"


@dataclass(frozen=True)
class Device:
    """A family with its ordinal; ``index`` None means the current device, or every visible one for an arch gate."""

    family: DEVICE
    index: int | None = None

    def __str__(self) -> str:
        """Return ``cuda:1`` or ``cuda``."""
        return self.family.value if self.index is None else f"{self.family.value}:{self.index}"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one layer needs. Names may be given as strings; they are normalized here, once.

    Attributes:
        method, format: the pair that says how the weights were made and how they lie on disk.
        scheme: code width, group size, zero points, order.
        in_features, out_features: K and N; None leaves the shape unchecked.
        activation_dtype: dtype of x, such as ``bfloat16``; None leaves it unchecked.
        pack_dtype: dtype of the stored words.
        devices: every exact target; empty means the best family present.
        backend: a member or string; AUTO and AUTO_TRAINABLE ask for a choice, any other name is a demand.
        trainable: gradients of input, adapter and bias are needed.
        adapter: kind of adapter, such as ``lora``; None for none.
        sharded: the checkpoint lies in several files.
        packing: weights are to be packed from floats.
        allow_marlin: False takes that backend out of the automatic choice.
        private_layout: kernel in whose private layout the tensors already are; empty for checkpoint tensors.
        code_type: the named type inside the format, such as the ggml type ``q4_k``; empty leaves it unchecked.
        zeros_differ: the tensors were looked at, and a stored zero point is not in the middle although ``sym`` says so.
        mixed_recipe: the weights mix two ways of quantizing activations.
        rows: M, the number of rows of x; None, the usual case, leaves it unchecked.
        dynamic: overrides by module name; a mapping is read as ``overrides.read_overrides`` says.
        multi_select: every record that serves at least one contract is wanted, not one that serves all of them.

    Raises:
        UnknownName: a string that names nothing.
        BadType: a value of a wrong type.
    """

    method: METHOD
    format: FORMAT
    scheme: Scheme
    in_features: int | None = None
    out_features: int | None = None
    activation_dtype: str | None = None
    pack_dtype: str = "int32"
    devices: tuple[Device, ...] = ()
    backend: BACKEND = BACKEND.AUTO
    trainable: bool = False
    adapter: str | None = None
    sharded: bool = False
    packing: bool = False
    allow_marlin: bool = True
    private_layout: str = ""
    code_type: str = ""
    zeros_differ: bool = False
    mixed_recipe: bool = False
    rows: int | None = None
    dynamic: tuple[Override, ...] = ()
    multi_select: bool = False

    def __post_init__(self) -> None:
        """Read names and dtypes; an explicit order of activations with one group is no order at all."""
        method = normalize_method(self.method)
        scheme = self.scheme
        if scheme.act_order and scheme.group_size in (-1, self.in_features):
            scheme = Scheme(**{**{f.name: getattr(scheme, f.name) for f in fields(scheme)}, "act_order": False})
        values: dict[str, Any] = {
            "method": method,
            "format": normalize_format(self.format),
            "scheme": scheme,
            "backend": normalize_backend(self.backend, method) or BACKEND.AUTO,
            "activation_dtype": None if self.activation_dtype is None else normalize_dtype(self.activation_dtype),
            "pack_dtype": normalize_dtype(self.pack_dtype),
            "devices": tuple(self.devices),
            "code_type": self.code_type.strip().lower(),
            "dynamic": read_overrides(self.dynamic),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def contracts(self) -> dict[str, Request]:
        """Return every effective contract by name: ``base``, then one for each override that changes settings."""
        if not self.dynamic and not self.multi_select:
            return {BASE: self}
        plain = replace(self, dynamic=(), multi_select=False)
        return {BASE: plain} | {o.pattern: o.apply(plain) for o in self.dynamic if not o.exclude}

    def __hash__(self) -> int:
        """Return the hash of every field, computed once: caches ask for it many times."""
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = hash(tuple(getattr(self, f.name) for f in fields(self)))
            object.__setattr__(self, "_hash", known)
        return known

    @property
    def automatic(self) -> bool:
        """Whether a choice is asked for instead of a named backend."""
        return self.backend in POLICIES

    @property
    def needs_gradients(self) -> bool:
        """Whether training is asked for, by the flag or by AUTO_TRAINABLE."""
        return self.trainable or self.backend is BACKEND.AUTO_TRAINABLE

    @property
    def excluded(self) -> tuple[BACKEND, ...]:
        """Backends taken out of the automatic choice: each field ``allow_<name>`` that is False names one."""
        if all(getattr(self, name) for name in _allowing()):
            return ()
        out = (normalize_backend(n.removeprefix(_ALLOW)) for n in _allowing() if not getattr(self, n))
        return tuple(backend for backend in out if backend is not None)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """What the request leaves open, so that no check looked at it."""
        open_fields = []
        if self.in_features is None or self.out_features is None:
            open_fields.append("shape")
        if self.activation_dtype is None:
            open_fields.append("dtype")
        return tuple(open_fields)

    @property
    def what(self) -> str:
        """The compact form without devices: ``GPTQ int4 g128 sym, K=4096 N=11008, bf16``."""
        pair = self.method.value.upper()
        if self.format.value != self.method.value:
            pair += f"/{self.format.value.upper()}"
        shape = " ".join(
            f"{letter}={value}" for letter, value in (("K", self.in_features), ("N", self.out_features)) if value
        )
        dtype = SHORT_DTYPES.get(self.activation_dtype or "", self.activation_dtype or "")
        extras = [
            f"words {self.pack_dtype}" if self.pack_dtype != "int32" else "",
            "trainable" if self.needs_gradients else "",
            f"adapter {self.adapter}" if self.adapter else "",
            "sharded" if self.sharded else "",
            "packing" if self.packing else "",
            self.code_type,
            f"{len(self.dynamic)} overrides" if self.dynamic else "",
        ]
        return ", ".join(part for part in (f"{pair} {self.scheme}", shape, dtype, *extras) if part)

    def __str__(self) -> str:
        """Return the compact form that every message uses, with the devices."""
        return f"{self.what}, on {', '.join(map(str, self.devices)) or 'the default device'}"

    def as_json(self) -> dict[str, Any]:
        """Return every field as values for programs."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        scheme = {f.name: getattr(self.scheme, f.name) for f in fields(self.scheme)}
        scheme["weight_kind"] = self.scheme.weight_kind.value
        plain |= {
            "method": self.method.value,
            "format": self.format.value,
            "backend": self.backend.value,
            "scheme": scheme,
            "devices": [str(device) for device in self.devices],
            "dynamic": {override.key: dict(override.changes) for override in self.dynamic},
        }
        return plain


@cache
def _allowing() -> tuple[str, ...]:
    return tuple(f.name for f in fields(Request) if f.name.startswith(_ALLOW))


def normalize_devices(value: object, host: Host) -> tuple[Device, ...]:
    """Read one device or several: members, strings, torch devices, accelerator ordinals, or an iterable of these.

    None means the best family present, without an ordinal. Ordinals are kept; the order is that of first sight,
    without duplicates. On a HIP build everything that says cuda means ROCM.

    Raises:
        UnknownName: a string that is no device.
        BadType: a value that can not be a device.
    """
    if value is None:
        present = {device.family for device in host.devices}
        return (Device(next((family for family in FAMILY_ORDER if family in present), DEVICE.CPU)),)
    single = isinstance(value, (str, int, Device)) or hasattr(value, "type")
    if not single and not isinstance(value, Iterable):
        raise BadType(f"device: needs a name, an ordinal or a torch device, got {type(value).__name__}")
    items: Iterable[object] = (value,) if single else value  # type: ignore[assignment]
    return tuple(dict.fromkeys(_one_device(item, host) for item in items))


def _one_device(value: object, host: Host) -> Device:
    device = _read_device(value, host)
    if device.family is DEVICE.CUDA and host.torch_build == "rocm":
        return Device(DEVICE.ROCM, device.index)
    return device


def _read_device(value: object, host: Host) -> Device:
    if isinstance(value, Device):
        return value
    if isinstance(value, DEVICE):
        return _family(value.value, None)
    if isinstance(value, bool):
        raise BadType("device: needs a name, an ordinal or a torch device, got bool")
    if isinstance(value, int):
        return Device(_accelerator(host), value)
    if isinstance(value, str):
        name, _, index = value.strip().lower().partition(":")
        if index and not index.isdecimal():
            raise UnknownName(f"device: unknown ordinal in {value!r}; needs a form such as cuda:0")
        return _family(name, int(index) if index else None)
    kind = getattr(value, "type", None)
    if isinstance(kind, str):
        return _family(kind, getattr(value, "index", None))
    raise BadType(f"device: needs a name, an ordinal or a torch device, got {type(value).__name__}")


def _family(name: str, index: int | None) -> Device:
    known = [family.value for family in FAMILY_ORDER]
    if name not in known:
        raise UnknownName(f"device: unknown name {name!r}; known: {', '.join(known)}")
    return Device(DEVICE(name), index)


def _accelerator(host: Host) -> DEVICE:
    present = {device.family for device in host.devices}
    return next((f for f in FAMILY_ORDER if f in present and f is not DEVICE.CPU), DEVICE.CUDA)
