"""Overrides by module name, as a request carries them, and the small readers that requests and overrides share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quantfarm.declare.names import FORMAT, BadType, UnknownName, nearest, normalize_format
from quantfarm.errors import ConfigError

if TYPE_CHECKING:
    from quantfarm.select.request import Request

KEYS = ("bits", "group_size", "desc_act", "sym", "pack_dtype", "format")
"""What an override may change."""

_EXCLUDE, _INCLUDE = "-:", "+:"
_SCHEME = {"bits": "bits", "group_size": "group_size", "desc_act": "act_order", "sym": "sym"}
_DTYPE_ALIASES = {
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "float": "float32",
}
_WIDTH = re.compile(r"i?q(\d+)(_\w+)?")

Change = tuple[str, "int | bool | str | FORMAT"]


@dataclass(frozen=True)
class Override:
    """One entry of ``dynamic``: modules that match ``pattern`` stay dense, or have other settings."""

    pattern: str
    exclude: bool
    changes: tuple[Change, ...] = ()

    @property
    def key(self) -> str:
        """The key under which it is written."""
        return f"{_EXCLUDE if self.exclude else _INCLUDE}{self.pattern}"

    def apply(self, request: Request) -> Request:
        """Return the contract of the modules it matches: the request with the changes in it."""
        changes = dict(self.changes)
        scheme = {_SCHEME[key]: value for key, value in changes.items() if key in _SCHEME}
        other = {key: value for key, value in changes.items() if key not in _SCHEME}
        changed: dict[str, Any] = {**other, "scheme": replace(request.scheme, **scheme)}  # type: ignore[arg-type]
        return replace(request, dynamic=(), multi_select=False, **changed)


def read_overrides(dynamic: Mapping[str, Any] | Iterable[Override] | None) -> tuple[Override, ...]:
    """Read ``dynamic`` in its order: ``-:`` excludes a module, ``+:`` or no prefix changes its settings.

    Raises:
        UnknownName: a key that no override may have.
        BadType: not a mapping, or a value of a wrong type.
        ConfigError: a pattern that is no regular expression, or one that stands under two keys.
    """
    if not dynamic:
        return ()
    if not isinstance(dynamic, Mapping):
        entries = tuple(dynamic)
        if all(isinstance(entry, Override) for entry in entries):
            return entries
        raise BadType("dynamic: needs an object of patterns")
    seen: dict[str, str] = {}
    read = []
    for key, value in dynamic.items():
        override = _read(key, value)
        if override.pattern in seen:
            lines = [f"dynamic: needs one entry for {override.pattern!r}, got {seen[override.pattern]!r} and {key!r}"]
            raise ConfigError("cannot read the overrides", lines=lines, remedy="remove one of the two keys")
        seen[override.pattern] = key
        read.append(override)
    return tuple(read)


def _read(key: str, value: Any) -> Override:
    exclude = key.startswith(_EXCLUDE)
    pattern = key.removeprefix(_EXCLUDE).removeprefix(_INCLUDE)
    try:
        re.compile(pattern)
    except re.error as error:
        lines = [f"dynamic[{key!r}]: needs a regular expression, got {error}"]
        raise ConfigError("cannot read the overrides", lines=lines, remedy="correct the pattern") from error
    if exclude:
        return Override(pattern, exclude=True)
    if not isinstance(value, Mapping):
        raise BadType(f"dynamic[{key!r}]: needs an object of settings, got {type(value).__name__}")
    for name in value:
        if name not in KEYS:
            raise UnknownName(f"dynamic[{key!r}]: unknown key {name!r}; known: {nearest(str(name), list(KEYS))}")
    return Override(pattern, exclude=False, changes=tuple((name, _value(name, value[name])) for name in value))


def _value(name: str, value: Any) -> int | bool | str | FORMAT:
    if name == "format":
        return normalize_format(value)
    if name == "pack_dtype":
        return normalize_dtype(value)
    if name == "bits":
        return normalize_bits(value)
    wanted = int if name == "group_size" else bool
    if type(value) is not wanted:
        raise BadType(f"{name}: needs {wanted.__name__}, got {type(value).__name__}")
    return value


def normalize_bits(value: object) -> int:
    """Read a code width: an integer, a ggml name such as ``q4_k_m``, or the mean width of a trellis file (rounded).

    Raises:
        UnknownName: a string that names no width.
        BadType: neither a number nor a string.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise BadType(f"bits: needs an integer or a name such as q4_k_m, got {type(value).__name__}")
    if not isinstance(value, str):
        return round(value)
    match = _WIDTH.fullmatch(value.strip().lower())
    if match is None and not value.strip().isdecimal():
        raise UnknownName(f"bits: unknown width {value!r}; needs an integer or a name such as q4_k_m")
    return int(match[1] if match else value)


def normalize_dtype(value: object) -> str:
    """Read a dtype given as ``bfloat16``, ``bf16``, ``torch.bfloat16`` or the torch object; raise BadType."""
    text = str(value)
    if not isinstance(value, str) and not text.startswith("torch."):
        raise BadType(f"dtype: needs a string or a torch dtype, got {type(value).__name__}")
    name = text.strip().lower().removeprefix("torch.")
    return _DTYPE_ALIASES.get(name, name)
