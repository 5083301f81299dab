"""Rules by module name: the ``dynamic`` patterns and the list of modules that stay dense."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantfarm.declare.names import FORMAT
from quantfarm.errors import ConfigError
from quantfarm.formats.dialects import SPELLINGS, canonical, wrong

_OVERRIDABLE = ("bits", "group_size", "sym", "desc_act", "pack_dtype", "format")
_EXCLUDE, _INCLUDE = "-:", "+:"


@dataclass(frozen=True, kw_only=True)
class DynamicRule:
    """One entry of ``dynamic``: a regular expression, matched from the start of the module name.

    ``exclude`` (prefix ``-:``) leaves the module dense; otherwise (prefix ``+:`` or none) ``overrides`` replace
    settings, as pairs of canonical key and value.
    """

    pattern: str
    exclude: bool
    overrides: tuple[tuple[str, int | bool | str | FORMAT], ...] = ()

    @property
    def key(self) -> str:
        """The key under which the rule is written."""
        return f"{_EXCLUDE if self.exclude else _INCLUDE}{self.pattern}"

    def matches(self, name: str) -> bool:
        """Say whether the rule is about the module."""
        return re.match(self.pattern, name) is not None

    def as_overrides(self) -> dict[str, int | bool | str]:
        """Return the overrides as they are written: format names as plain strings."""
        return {key: value.value if isinstance(value, FORMAT) else value for key, value in self.overrides}


def read_dynamic(dynamic: Mapping[str, Any], source: str) -> tuple[DynamicRule, ...]:
    """Read the ``dynamic`` object in its order; raise ConfigError for a bad pattern or a bad override."""
    return tuple(_rule(key, value, source) for key, value in dynamic.items())


def names_path(entry: str, module: str) -> bool:
    """Say whether ``entry`` names ``module`` or a part of its path.

    The entry's components (between dots) must occur as consecutive whole components of the module name:
    ``visual`` names ``visual.blocks.0.qkv`` and ``model.visual.blocks.0``, not ``model.visualizer.proj``;
    ``mlp.gate`` names ``layers.0.mlp.gate``, not ``layers.0.mlp.gate_proj``.
    """
    wanted, found = entry.strip(".").split("."), module.split(".")
    return any(found[i : i + len(wanted)] == wanted for i in range(len(found) - len(wanted) + 1))


def _rule(key: str, value: Any, source: str) -> DynamicRule:
    exclude = key.startswith(_EXCLUDE)
    pattern = key.removeprefix(_EXCLUDE).removeprefix(_INCLUDE)
    label = f"dynamic[{key!r}]"
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"cannot read {source}: a pattern is no regular expression",
            lines=(f"{label}: {error}",),
            remedy=f"correct the pattern in {source}",
        ) from error
    if exclude:
        return DynamicRule(pattern=pattern, exclude=True)
    if not isinstance(value, Mapping):
        raise wrong(label, "an object of settings", value, source)
    for name in SPELLINGS["method"]:
        if value.get(name) is not None:
            raise wrong(f"{label}: {name}", "no entry (one method per checkpoint)", value[name], source)
    stated = canonical(value, f"{source}, {label}")
    overrides = tuple((name, stated[name]) for name in _OVERRIDABLE if name in stated)
    return DynamicRule(pattern=pattern, exclude=False, overrides=overrides)
