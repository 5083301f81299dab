"""QuantConfig: the effective quantization settings, parsed in one place for every layer and every caller.

``parse`` turns any dialect of the settings into one frozen record. Every default that was needed is
said in ``defaults_used``, every key that carries nothing for a reader in ``ignored``, everything that a user should
read once in ``notes``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from packaging.version import InvalidVersion, Version

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import ConfigError
from quantfarm.formats import rules
from quantfarm.formats.dialects import INNER_TYPES, QUANTIZER_ONLY, SPELLINGS, canonical, integer, translated, wrong
from quantfarm.formats.rules import DynamicRule
from quantfarm.formats.settings_files import find_settings
from quantfarm.formats.table import find, rule_of, usual_format

__all__ = ["DynamicRule", "QuantConfig", "ZeroRule", "find_settings", "parse"]

_PACK_DTYPE = "int32"
_WORD_WISE_PRODUCER = "gptqmodel"
_TRUSTED_ASYM = Version("0.9.0")
_PER_LAYER = ("bits", "group_size", "sym", "desc_act", "format")


class ZeroRule(str, Enum):
    """How the zero points of GPTQ v1 are turned back into true ones (formats, section 1, borrow rule)."""

    PER_FIELD = "per_field"
    WORD_WISE = "word_wise"


@dataclass(frozen=True, kw_only=True)
class QuantConfig:
    """The effective settings of one checkpoint, or of one module after ``for_module``.

    Attributes:
        method, format: who made the weights and how they lie on disk.
        bits, group_size, sym, desc_act: the scheme; group_size -1 means one group for the whole row.
        code_type: the named type inside the format, such as ``q4_k`` or ``nf4``; empty where a format has one.
        details: settings of the method's own, by their key; see ``FormatRow.keys``.
        dialect: whose tensor names the checkpoint uses; see ``FormatRow.dialect``.
        pack_dtype: dtype of the packed words.
        lm_head: True when the output head is packed too.
        modules_to_not_convert: module names or parts of them that stay dense; see ``rules.names_path``.
        dynamic: rules by module name.
        zeros_rule: the inverse of the minus-one of GPTQ v1.
        producer: what ``meta.quantizer`` says, entries joined by commas; empty when it says nothing.
        source: the file (and key) the settings were read from.
        defaults_used: ``key=value`` for everything that was not stated.
        ignored: keys that this project does not know.
        notes: sentences that belong into the load report.
    """

    method: METHOD
    format: FORMAT
    bits: int
    group_size: int
    sym: bool
    desc_act: bool = False
    code_type: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    dialect: str = ""
    pack_dtype: str = _PACK_DTYPE
    lm_head: bool = False
    modules_to_not_convert: tuple[str, ...] = ()
    dynamic: tuple[DynamicRule, ...] = ()
    zeros_rule: ZeroRule = ZeroRule.PER_FIELD
    producer: str = ""
    source: str = ""
    defaults_used: tuple[str, ...] = field(default=())
    ignored: tuple[str, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())

    def for_module(self, name: str) -> QuantConfig | None:
        """Return the settings of one module, or None when it stays dense.

        Order: excluding dynamic rules, ``modules_to_not_convert``, the output head, then the first including
        rule that matches, last what the method says of single layers. Module names are checkpoint names, never
        those of a fused runtime layer.
        """
        if any(rule.exclude and rule.matches(name) for rule in self.dynamic):
            return None
        if any(rules.names_path(entry, name) for entry in self.modules_to_not_convert):
            return None
        if name.rpartition(".")[2] == "lm_head" and not self.lm_head:
            return None
        rule = next((rule for rule in self.dynamic if not rule.exclude and rule.matches(name)), None)
        config = self if rule is None else self._under(rule)
        row = find(config.method, config.format, config.dialect)
        own = row.layer_settings()(config.details, name, config.source)
        return None if own is None else replace(config, **own) if own else config

    def _under(self, rule: DynamicRule) -> QuantConfig:
        """Return the settings with the overrides of one dynamic rule."""
        overrides: dict[str, Any] = dict(rule.overrides)
        source = f"{self.source} (dynamic)"
        row = find(self.method, overrides.get("format", self.format), self.dialect)
        if row.settings:
            # The method's own settings follow the override: a name in ``bits`` is a type, a width may imply one.
            told = self.as_settings() | rule.as_overrides()
            own = row.own_settings()(told, canonical(self.as_settings(), source) | overrides, source)
            overrides |= {key: own[key] for key in (*_PER_LAYER, "code_type", "details") if key in own}
        return _checked(replace(self, **overrides), source)

    def for_fused(self, names: Sequence[str]) -> QuantConfig | None:
        """Return the common settings of the modules that a runtime fuses into one, or None when all stay dense.

        Raises:
            ConfigError: the parts differ; says each part's settings. No value is chosen silently.
        """
        parts = [self.for_module(name) for name in names]
        shown = [_layer_text(part) for part in parts]
        if len(set(shown)) > 1:
            raise ConfigError(
                "cannot fuse modules: their settings differ",
                lines=tuple(f"{name}: {text}" for name, text in zip(names, shown, strict=True)),
                remedy=f"keep them as separate layers, or give them one rule in {self.source}",
            )
        return parts[0] if parts else None

    def as_settings(self) -> dict[str, Any]:
        """Return the canonical ``quantization_config`` object; ``parse`` reads it back to the same facts."""
        settings: dict[str, Any] = {
            "bits": self.bits,
            "group_size": self.group_size,
            "desc_act": self.desc_act,
            "sym": self.sym,
            "lm_head": self.lm_head,
            "method": self.method.value,
            "quant_method": self.method.value,
            "format": self.format.value,
            "checkpoint_format": self.format.value,
            "pack_dtype": self.pack_dtype,
        }
        if self.method is METHOD.AWQ:
            settings |= {"zero_point": not self.sym, "version": self.format.value}
        if self.code_type and self.method in INNER_TYPES:
            settings["format"] = self.code_type
        if self.dialect:
            settings["dialect"] = self.dialect
        if self.modules_to_not_convert:
            settings["modules_to_not_convert"] = list(self.modules_to_not_convert)
        if self.dynamic:
            settings["dynamic"] = {rule.key: rule.as_overrides() for rule in self.dynamic}
        if self.producer:
            settings["meta"] = {"quantizer": self.producer.split(", ")}
        if self.zeros_rule is not _rule_of(self.producer):
            settings["zeros_rule"] = self.zeros_rule.value
        return settings | dict(self.details)

    def facts(self) -> dict[str, Any]:
        """Return every field that decides how a layer is read: all but where the settings come from."""
        apart = ("source", "defaults_used", "ignored", "notes")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}


def parse(settings: Mapping[str, Any], *, source: str, zeros_rule: ZeroRule | str | None = None) -> QuantConfig:
    """Read quantization settings of any dialect.

    Args:
        settings: the object of quantize_config.json, quant_config.json or config.json[quantization_config].
        source: where it comes from; part of every message.
        zeros_rule: forces the rule for GPTQ v1 zero points; else the key of that name, else the producer decides.

    Raises:
        ConfigError: a value is missing, has a wrong type or contradicts another; names key and values.
        UnknownFormat: nothing here reads the method or the format; lists what is read.
    """
    raw = translated(settings, source)
    stated = canonical(raw, source)
    defaults: list[str] = []
    method = _default(stated, "method", METHOD.GPTQ, defaults)
    awq = method is METHOD.AWQ
    usual = usual_format(method) or next((f for f in FORMAT if f.value == method.value), FORMAT.GPTQ)
    fmt = _default(stated, "format", usual, defaults)
    row = find(method, fmt, str(raw.get("dialect") or ""))
    own = row.own_settings()(raw, stated, source)
    stated = stated | {key: value for key, value in own.items() if key in SPELLINGS}
    producer = _producer(stated.get("meta"))
    config = QuantConfig(
        method=method,
        format=fmt,
        bits=_required(stated, "bits", source),
        group_size=_required(stated, "group_size", source),
        sym=_default(stated, "sym", not awq, defaults),
        desc_act=_default(stated, "desc_act", False, defaults),
        code_type=own.get("code_type", ""),
        details=own.get("details", {}),
        dialect=row.dialect,
        pack_dtype=_default(stated, "pack_dtype", rule_of(method, fmt).pack_dtype or _PACK_DTYPE, defaults),
        lm_head=_default(stated, "lm_head", False, defaults),
        modules_to_not_convert=stated.get("modules_to_not_convert", ()),
        dynamic=rules.read_dynamic(stated.get("dynamic", {}), source),
        zeros_rule=_zeros_rule(zeros_rule or stated.get("zeros_rule"), producer, source),
        producer=producer,
        source=source,
        defaults_used=tuple(defaults),
        ignored=_ignored(raw, row.keys),
    )
    config = _checked(config, source)
    return replace(config, notes=(*_notes(config), *own.get("notes", ())))


def _default(stated: Mapping[str, Any], key: str, value: Any, used: list[str]) -> Any:
    if key in stated:
        return stated[key]
    shown = getattr(value, "value", value)
    used.append(f"{key}={str(shown).lower() if isinstance(shown, bool) else shown}")
    return value


def _required(stated: Mapping[str, Any], key: str, source: str) -> int:
    if key not in stated:
        raise wrong(" or ".join(SPELLINGS[key]), "an integer", None, source)
    return integer(key, stated[key], source)


def _checked(config: QuantConfig, source: str) -> QuantConfig:
    """Refuse what no reader of the format can mean; resolve act-order with one group, which is none."""
    row = find(config.method, config.format, config.dialect)
    if config.bits not in row.bits:
        raise wrong("bits", f"one of {', '.join(map(str, row.bits))} for {config.format.value}", config.bits, source)
    if config.group_size < 1 and config.group_size != -1:
        raise wrong("group_size", "-1 or a positive integer", config.group_size, source)
    words = rule_of(config.method, config.format).pack_dtype or _PACK_DTYPE
    if config.pack_dtype != words:
        raise wrong("pack_dtype", words, config.pack_dtype, source)
    if config.desc_act and config.method is METHOD.AWQ:
        raise wrong("desc_act", "false for awq", True, source)
    return replace(config, desc_act=False) if config.group_size == -1 else config


def _producer(meta: Any) -> str:
    quantizer = meta.get("quantizer") if isinstance(meta, Mapping) else None
    entries = [quantizer] if isinstance(quantizer, str) else quantizer
    return ", ".join(str(entry) for entry in entries) if isinstance(entries, (list, tuple)) else ""


def _rule_of(producer: str) -> ZeroRule:
    named = any(entry.partition(":")[0] == _WORD_WISE_PRODUCER for entry in producer.split(", "))
    return ZeroRule.WORD_WISE if named else ZeroRule.PER_FIELD


def _zeros_rule(forced: ZeroRule | str | None, producer: str, source: str) -> ZeroRule:
    try:
        return _rule_of(producer) if forced is None else ZeroRule(forced)
    except ValueError:
        raise wrong("zeros_rule", " or ".join(rule.value for rule in ZeroRule), forced, source) from None


def _ignored(settings: Mapping[str, Any], own: tuple[str, ...]) -> tuple[str, ...]:
    known = {name for spellings in SPELLINGS.values() for name in spellings} | QUANTIZER_ONLY | {*own, "dialect"}
    foreign = (key for key, value in settings.items() if key not in known and value is not None)
    return tuple(sorted(key for key in foreign if not re.match(r"offload|vram", key)))


def _notes(config: QuantConfig) -> list[str]:
    notes = []
    if config.defaults_used:
        notes.append(f"{config.source}: not stated, so taken as {', '.join(config.defaults_used)}")
    if config.ignored:
        notes.append(f"{config.source}: keys without meaning here were ignored: {', '.join(config.ignored)}")
    if config.format is FORMAT.GPTQ and not config.sym and not _trusted(config.producer):
        notes.append(
            f"{config.source}: asymmetric gptq files are reliable from {_WORD_WISE_PRODUCER} {_TRUSTED_ASYM} on, "
            f"this one says {config.producer or 'nothing about its writer'}; its zero points may be off by one"
        )
    return notes


def _trusted(producer: str) -> bool:
    for entry in producer.split(", "):
        name, _, version = entry.partition(":")
        try:
            if name == _WORD_WISE_PRODUCER and Version(version) >= _TRUSTED_ASYM:
                return True
        except InvalidVersion:
            continue
    return False


def _layer_text(config: QuantConfig | None) -> str:
    if config is None:
        return "dense"
    return ", ".join(f"{key} {getattr(config, key)}" for key in _PER_LAYER)
