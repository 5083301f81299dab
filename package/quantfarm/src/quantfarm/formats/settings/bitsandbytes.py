"""bitsandbytes: its settings in the spellings of transformers and of the peer, and its layers by their headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantfarm.declare.scheme import Scheme, WeightKind
from quantfarm.errors import ConfigError
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.dialects import boolean, integer, text, wrong
from quantfarm.formats.facts import LayerFacts, TensorFact

BLOCK_SIZE = 64
"""Elements that share an absmax where neither settings nor tensors say it."""

BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
TABLE_TYPES = ("nf4", "fp4")
ROW_TYPE = "int8"
_FORMAT_KEYS = ("format", "checkpoint_format")
_KEPT = (
    *("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype"),
    *("bnb_4bit_quant_storage", "llm_int8_threshold", "llm_int8_skip_modules", "llm_int8_has_fp16_weight"),
    *("llm_int8_enable_fp32_cpu_offload", "block_size", "compress_statistics"),
)


def settings(raw: Mapping[str, Any], stated: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """Return width, block size, type of code, the modules that stay dense, and the method's own keys as details.

    The tensors decide what each layer is; this is what the checkpoint claims. transformers leaves the output head
    dense unless a list of exceptions replaces its own.

    Raises:
        ConfigError: two keys contradict each other, no width is stated, or a value has no meaning.
    """
    bits = _bits(raw, stated, source)
    code_type = _code_type(raw, bits, source)
    size = integer("block_size", raw.get("block_size") or BLOCK_SIZE, source)
    if size not in BLOCK_SIZES:
        raise wrong("block_size", f"one of {', '.join(map(str, BLOCK_SIZES))}", size, source)
    _nested(raw, source)
    if stated.get("desc_act"):
        raise wrong("desc_act", "false for bitsandbytes", True, source)
    found: dict[str, Any] = {
        "bits": bits,
        "group_size": size if bits == 4 else -1,
        "sym": True,
        "code_type": code_type,
        "details": {key: raw[key] for key in _KEPT if raw.get(key) is not None} | {"format": code_type},
    }
    return found | _dense(raw, stated, source)


def facts(tensors: Mapping[str, TensorFact], config: QuantConfig) -> LayerFacts:
    """Return what a header tells: K and N of an int8 layer; 0 for both of a flat 4-bit one, whose shape is in bytes."""
    weight = tensors["weight"]
    if weight.dtype == "I8" and len(weight.shape) == 2:
        n, k = weight.shape
        return LayerFacts(k=k, n=n, scheme=Scheme(bits=8, group_size=-1, sym=True), code_type=ROW_TYPE)
    state = next((name for name in tensors if "bitsandbytes__" in name), "")
    named = state.rpartition("__")[2] or config.code_type
    size = config.group_size if config.bits == 4 else BLOCK_SIZE
    scheme = Scheme(weight_kind=WeightKind.TABLE, bits=4, group_size=size, sym=True)
    return LayerFacts(k=0, n=0, scheme=scheme, code_type=named)


def _bits(raw: Mapping[str, Any], stated: Mapping[str, Any], source: str) -> int:
    claims = {f"bits={stated['bits']}": stated["bits"]} if stated.get("bits") is not None else {}
    for key, width in (("load_in_4bit", 4), ("load_in_8bit", 8)):
        if raw.get(key) is not None and boolean(key, raw[key], source):
            claims[f"{key}=true"] = width
    for key in _FORMAT_KEYS:
        named = _named_type(raw, key)
        if named:
            claims[f"{key}={named}"] = 8 if named == ROW_TYPE else 4
    if not claims:
        raise wrong("bits, load_in_4bit or load_in_8bit", "a width", None, source)
    _agree(claims, "the width", source)
    bits = next(iter(claims.values()))
    if bits not in (4, 8):
        raise wrong("bits", "4 or 8 for bitsandbytes", bits, source)
    return int(bits)


def _code_type(raw: Mapping[str, Any], bits: int, source: str) -> str:
    if bits == 8:
        return ROW_TYPE
    keys = (*_FORMAT_KEYS, "bnb_4bit_quant_type")
    claims = {f"{key}={named}": named for key in keys if (named := _named_type(raw, key))}
    given = raw.get("bnb_4bit_quant_type")
    if given is not None and text("bnb_4bit_quant_type", given, source) not in TABLE_TYPES:
        raise wrong("bnb_4bit_quant_type", " or ".join(TABLE_TYPES), given, source)
    _agree(claims, "the type of code", source)
    # transformers' own default; the tensors carry their type and decide.
    return next(iter(claims.values()), "fp4")


def _named_type(raw: Mapping[str, Any], key: str) -> str:
    named = str(raw.get(key) or "").strip().lower().removeprefix("torch.")
    return named if named in (*TABLE_TYPES, ROW_TYPE) else ""


def _nested(raw: Mapping[str, Any], source: str) -> None:
    keys = ("compress_statistics", "bnb_4bit_use_double_quant")
    claims = {f"{key}={raw[key]}": boolean(key, raw[key], source) for key in keys if raw.get(key) is not None}
    _agree(claims, "nested statistics", source)


def _dense(raw: Mapping[str, Any], stated: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the modules that stay dense, and whether the output head is packed, where the settings say so."""
    given = raw.get("llm_int8_skip_modules")
    if given is None:
        return {}
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise wrong("llm_int8_skip_modules", "a list of module names", given, source)
    every = dict.fromkeys((*stated.get("modules_to_not_convert", ()), *names))
    return {"modules_to_not_convert": tuple(every), "lm_head": stated.get("lm_head", True)}


def _agree(claims: Mapping[str, Any], what: str, source: str) -> None:
    if len(set(claims.values())) > 1:
        raise ConfigError(
            f"cannot read {source}: keys contradict each other about {what}",
            lines=tuple(f"got {claim}" for claim in claims),
            remedy=f"keep the right one of them in {source}",
        )
