"""Dialects of the quantization settings: many spellings in, one spelling out.

``canonical`` returns only what a settings mapping states, under the one name each fact has here. Null counts as
not stated. Two spellings of one fact must agree; defaults are no business of this file (see ``config.parse``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantfarm.declare.names import FORMAT, METHOD, BadType, UnknownName, normalize_format, normalize_method
from quantfarm.errors import ConfigError, UnknownFormat
from quantfarm.formats.table import known_lines

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "method": ("method", "quant_method"),
    "format": ("format", "checkpoint_format", "version"),
    "bits": ("bits", "w_bit"),
    "group_size": ("group_size", "q_group_size"),
    "sym": ("sym", "zero_point"),
    "desc_act": ("desc_act",),
    "lm_head": ("lm_head",),
    "pack_dtype": ("pack_dtype",),
    "modules_to_not_convert": ("modules_to_not_convert",),
    "dynamic": ("dynamic",),
    "zeros_rule": ("zeros_rule",),
    "meta": ("meta",),
}
"""Canonical key -> the keys that state it. ``zero_point`` states the opposite of ``sym``."""

QUANTIZER_ONLY = frozenset(
    {
        *("static_groups", "true_sequential", "damp_percent", "damp_auto_increment", "mse", "act_group_aware"),
        *("gptaq", "foem", "hessian", "fallback", "is_marlin_format", "backend", "adapter"),
    }
)
"""Known keys that tell how weights were made, or that are judged apart; they carry nothing a reader needs."""

COMPRESSED_TENSORS = "compressed-tensors"
"""The dialect whose settings describe groups of layers, and the name of its tensors in ``FormatRow.dialect``."""

INNER_TYPES: Mapping[METHOD, tuple[FORMAT, tuple[str, ...]]] = {
    METHOD.FP8: (
        FORMAT.FP8,
        ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    ),
    METHOD.BITSANDBYTES: (FORMAT.BITSANDBYTES, ("nf4", "fp4", "int8")),
}
"""Method to its format and the type names that its settings put in place of the format's name."""

_AWQ_ONLY = ("zero_point", "w_bit", "q_group_size")
_AWQ_LAYOUTS = {f.value for f in (FORMAT.GEMM, FORMAT.GEMV, FORMAT.GEMV_FAST, FORMAT.LLM_AWQ)}


def translated(settings: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return settings whose structure is another project's in this project's keys; all others as they are.

    Raises:
        ConfigError, UnknownFormat: the other project's settings describe what nothing here reads.
    """
    if str(settings.get("quant_method")).lower() == COMPRESSED_TENSORS:
        from quantfarm.formats.settings.compressed_tensors import translate

        return translate(settings, source)
    return settings


def canonical(settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the stated facts under their canonical keys.

    Raises:
        ConfigError: two spellings disagree, or a value has the wrong type; names ``source``, keys and values.
        UnknownFormat: the method or format is no known name.
    """
    if settings.get("is_marlin_format"):
        raise ConfigError(
            f"cannot read {source}: weights in the layout of a kernel",
            lines=("is_marlin_format: needs false, got true",),
            remedy="use the checkpoint in its original gptq format",
        )
    stated: dict[str, Any] = {}
    for key, spellings in SPELLINGS.items():
        names = [name for name in spellings if settings.get(name) is not None and _counts(name, stated)]
        values = {name: _value(key, name, _outer(key, settings[name], stated), source) for name in names}
        if name_clash := _clash(values):
            raise _contradiction(source, settings, name_clash)
        if values:
            stated[key] = next(iter(values.values()))
        elif key == "method" and (inferred := _inferred_method(settings)):
            stated[key] = inferred
    if stated.get("method") is METHOD.AWQ and settings.get("backend") == FORMAT.LLM_AWQ.value:
        stated["format"] = FORMAT.LLM_AWQ
    return stated


def _counts(name: str, stated: Mapping[str, Any]) -> bool:
    """Only AWQ names its layout in ``version``; elsewhere the key is a number of something else."""
    return name != "version" or stated.get("method") is METHOD.AWQ


def _inferred_method(settings: Mapping[str, Any]) -> METHOD | None:
    layout = str(settings.get("version") or settings.get("format") or settings.get("checkpoint_format")).lower()
    if any(settings.get(key) is not None for key in _AWQ_ONLY) or layout in _AWQ_LAYOUTS:
        return METHOD.AWQ
    return None


def _clash(values: Mapping[str, Any]) -> tuple[str, str] | None:
    names = list(values)
    for other in names[1:]:
        if values[other] != values[names[0]]:
            return names[0], other
    return None


def _contradiction(source: str, settings: Mapping[str, Any], names: tuple[str, str]) -> ConfigError:
    first, second = names
    return ConfigError(
        f"cannot read {source}: {first} and {second} contradict each other",
        lines=(f"{first}: got {settings[first]!r}", f"{second}: got {settings[second]!r}"),
        remedy=f"keep the right one of the two in {source}",
    )


def _outer(key: str, value: Any, stated: Mapping[str, Any]) -> Any:
    """Return the format where a method's settings name a type inside it instead."""
    inner = INNER_TYPES.get(stated.get("method")) if key == "format" else None  # type: ignore[arg-type]
    return inner[0].value if inner and str(value).lower().removeprefix("torch.") in inner[1] else value


def _value(key: str, name: str, value: Any, source: str) -> Any:
    if key == "method":
        return _named(normalize_method, key, name, value, source)
    if key == "format":
        return _named(normalize_format, key, name, value, source)
    if key == "bits" and isinstance(value, (str, float)):
        return _width(value)
    if key in ("bits", "group_size"):
        return integer(name, value, source)
    if key == "sym":
        return boolean(name, value, source) is not (name == "zero_point")
    if key in ("desc_act", "lm_head"):
        return boolean(name, value, source)
    if key in ("pack_dtype", "zeros_rule"):
        return text(name, value, source)
    return _container(name, value, source)


def _named(normalize: Callable[[object], Any], key: str, name: str, value: Any, source: str) -> Any:
    try:
        return normalize(value)
    except (UnknownName, BadType):
        raise _unknown(key, name, value, source) from None


def _unknown(key: str, name: str, value: Any, source: str) -> UnknownFormat:
    return UnknownFormat(
        f"cannot read {source}: unknown {key}",
        lines=(f"{name}: got {value!r}", *known_lines()),
        remedy="use a checkpoint in one of these formats",
    )


def wrong(name: str, needs: str, value: Any, source: str) -> ConfigError:
    """Return the error for one key with its needed and its found value."""
    return ConfigError(
        f"cannot read {source}: a setting has no usable value",
        lines=(f"{name}: needs {needs}, got {value!r}",),
        remedy=f"correct {name} in {source}",
    )


def integer(name: str, value: Any, source: str) -> int:
    """Read an integer: int, whole float or a string of either; raise ConfigError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        number = float(value) if isinstance(value, (str, float)) else None
    except ValueError:
        number = None
    if number is None or not number.is_integer():
        raise wrong(name, "an integer", value, source)
    return int(number)


def boolean(name: str, value: Any, source: str) -> bool:
    """Read a boolean: true, false or these words as a string; raise ConfigError."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise wrong(name, "true or false", value, source)


def text(name: str, value: Any, source: str) -> str:
    """Read a name without its ``torch.`` prefix, in lower case; raise ConfigError."""
    if not isinstance(value, str):
        raise wrong(name, "a string", value, source)
    return value.strip().lower().removeprefix("torch.")


def _width(value: str | float) -> int | str | float:
    """Read a width that may be a name (``q4_k_m``) or a mean (4.25): the method's own settings say what it means."""
    try:
        number = float(value)
    except ValueError:
        return str(value).strip().lower()
    return int(number) if number.is_integer() else number


def _container(name: str, value: Any, source: str) -> Any:
    if name == "modules_to_not_convert":
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) for n in names):
            raise wrong(name, "a list of module names", value, source)
        return tuple(names)
    if not isinstance(value, Mapping):
        raise wrong(name, "an object", value, source)
    return dict(value)
