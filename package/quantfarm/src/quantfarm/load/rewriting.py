"""The work of writing a quantized checkpoint in another format without changing a weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from quantfarm.declare.scheme import Scheme
from quantfarm.errors import InexactConversion
from quantfarm.formats.config import DynamicRule, QuantConfig
from quantfarm.formats.relayout import relayout
from quantfarm.formats.weights.base import Weight
from quantfarm.load.packed_source import PackedSource
from quantfarm.load.work import Made, Unit, Work, about_layer, plain

_AGAIN = "leave these options out, or round the decoded values again: pass requantize"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The parts of a scheme that a caller stated; None for what may be as it is."""

    bits: int | None = None
    group_size: int | None = None
    sym: bool | None = None
    desc_act: bool | None = None

    def stated(self) -> dict[str, Any]:
        """Return the parts that were stated, by their key in settings."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def check(self, scheme: Scheme) -> None:
        """Raise InexactConversion with a line for each stated part that the scheme of a weight does not have."""
        found = dict(_overrides(scheme))
        lines = [f"  {name}: needs {found[name]}, got {v}" for name, v in self.stated().items() if found[name] != v]
        if lines:
            raise InexactConversion("\n".join(["cannot convert without rounding again", *lines, _AGAIN]))


def rewriting(source: PackedSource, target: QuantConfig, *, asked: Asked, force: bool) -> Work:
    """Return the units that write every packed module of a checkpoint in the target's format.

    Args:
        source: the checkpoint, opened.
        target: method and format to write; each module keeps its own scheme.
        asked: what the caller wants of the scheme; a module that has another is refused.
        force: write what readers of the format decode in different ways.
    """
    way = _Way(target, asked, force)
    units = [_unit(source, module, way) for module in source.packed]
    units += [plain(name, source.read_plain) for name in source.plain]
    return Work(
        label=source.label,
        verb="rewriting",
        units=tuple(units),
        model_config=source.model_config,
        dense=source.config.modules_to_not_convert,
        notes=(),
        copy_rest=source.copy_rest,
    )


def with_schemes(target: QuantConfig, schemes: Mapping[str, Scheme]) -> QuantConfig:
    """Return the settings that describe the modules: the commonest scheme, and one rule for each other module."""
    if not schemes:
        return target
    common = Counter(schemes.values()).most_common(1)[0][0]
    rules = tuple(
        DynamicRule(pattern=f"{_literally(name)}$", exclude=False, overrides=_overrides(scheme))
        for name, scheme in schemes.items()
        if scheme != common
    )
    return replace(target, **dict(_overrides(common)), dynamic=rules)


def _literally(name: str) -> str:
    return name.replace(".", r"\.")


def _overrides(scheme: Scheme) -> tuple[tuple[str, Any], ...]:
    return (
        ("bits", scheme.bits),
        ("group_size", scheme.group_size),
        ("sym", scheme.sym),
        ("desc_act", scheme.act_order),
    )


class _Way:
    """How each module is rewritten."""

    def __init__(self, target: QuantConfig, asked: Asked, force: bool) -> None:
        self.target, self.asked, self.force = target, asked, force

    def rewrite(self, weight: Weight, module: str) -> Made:
        """Return a module's tensors in the target's format; raise InexactConversion with its name."""
        try:
            tensors, scheme = relayout(weight, self.target, force=self.force)
            self.asked.check(scheme)
        except InexactConversion as error:
            raise about_layer(error, module) from error
        return Made(
            tensors={f"{module}.{part}": t for part, t in tensors.items()}, scheme=scheme, notes=tuple(weight.notes)
        )


def _unit(source: PackedSource, module: str, way: _Way) -> Unit:
    return Unit(name=module, packs=True, make=lambda: way.rewrite(source.read(module), module))
