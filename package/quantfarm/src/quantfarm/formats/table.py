"""FORMATS: one row per readable layout. A row names its reader and writer; they are imported on first use.

Neither torch nor numpy is imported here, so the selector and the command line can ask what exists without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.errors import UnknownFormat
from quantfarm.formats.format_row import FormatRow

__all__ = ["FORMATS", "RULES", "FormatRow", "LoaderRule", "find", "known_lines", "rows_of", "rule_of", "usual_format"]


_AFFINE_FACTS = "quantfarm.formats.settings.affine:facts"
_FP8_SCALES = ("weight_scale_inv", "weight_scale", "scale")
_FP8_KEYS = (
    *("weight_scale_method", "weight_block_size", "weight_scale_semantics", "weight_global_scale_semantics"),
    *("fmt", "activation_scheme", "scale_fmt", "ignored_layers", "kv_cache_scheme", "dialect_notes"),
)
_QZEROS = ("qweight", "qzeros", "scales")

_NATIVE = ("B", "s", "workspace")
"""Tensors of files in the old layout of the Marlin kernel itself: known, so that they are refused by name."""


def _gptq(name: FORMAT, bits: tuple[int, ...], block: int = 1) -> FormatRow:
    return FormatRow(
        format=name,
        methods=(METHOD.GPTQ,),
        bits=bits,
        reader="quantfarm.formats.gptq:read",
        writer="quantfarm.formats.gptq:write",
        facts=_AFFINE_FACTS,
        markers=("qweight",),
        tensors=_QZEROS,
        optional=("g_idx", "bias"),
        k_multiple=block,
        n_multiple=block,
    )


def _awq(name: FORMAT, module: str, multiples: tuple[int, int], points: tuple[str, str]) -> FormatRow:
    """``points``: the tensor of zero points, and another layout's name for it.

    A module that has both is refused by the reader, not read by halves.
    """
    return FormatRow(
        format=name,
        methods=(METHOD.AWQ,),
        bits=(4,),
        reader=f"quantfarm.formats.{module}:read",
        writer=f"quantfarm.formats.{module}:write",
        facts=_AFFINE_FACTS,
        markers=("qweight",),
        tensors=("qweight", points[0], "scales"),
        optional=tuple(part for part in ("bias", points[1]) if part),
        k_multiple=multiples[0],
        n_multiple=multiples[1],
        whole_groups=True,
    )


def _labelled_marlin(row: FormatRow, bits: tuple[int, ...]) -> FormatRow:
    """Return a row for tensors of another format under the legacy label (formats, section 7), which none should get."""
    return replace(
        row,
        format=FORMAT.MARLIN,
        bits=bits,
        writer="",
        markers=(*row.markers, _NATIVE[0]),
        optional=(*row.optional, *_NATIVE),
    )


_V1 = _gptq(FORMAT.GPTQ, (2, 3, 4, 8))
_GEMM = _awq(FORMAT.GEMM, "awq", (1, 8), ("qzeros", ""))


def _fp4(name: FORMAT, codes: tuple[str, ...], whole: tuple[str, ...]) -> FormatRow:
    """``whole``: the names of the scale over all, the second of which marks a packed module by itself."""
    return FormatRow(
        format=name,
        methods=(METHOD.FP8,),
        bits=(4,),
        reader="quantfarm.formats.fp4:read",
        writer="quantfarm.formats.fp4:write",
        facts="quantfarm.formats.settings.fp8:facts",
        markers=("weight_packed", *whole[1:]),
        tensors=("weight_scale",),
        optional=(*codes, *whole, "input_global_scale", "input_scale", "bias"),
        settings="quantfarm.formats.settings.fp8:settings",
        keys=_FP8_KEYS,
    )


FORMATS: tuple[FormatRow, ...] = (
    _V1,
    _gptq(FORMAT.GPTQ_V2, (2, 3, 4, 8)),
    _gptq(FORMAT.GPTQ_P, (2, 3, 4, 5, 6, 7, 8), block=32),
    _labelled_marlin(_V1, (4, 8)),
    _GEMM,
    _awq(FORMAT.GEMV, "awq_gemv", (8, 1), ("qzeros", "scaled_zeros")),
    _awq(FORMAT.GEMV_FAST, "awq_gemv", (64, 4), ("qzeros", "scaled_zeros")),
    _awq(FORMAT.LLM_AWQ, "awq_gemv", (64, 4), ("scaled_zeros", "qzeros")),
    _labelled_marlin(_GEMM, (4,)),
    FormatRow(
        format=FORMAT.PAROQUANT,
        methods=(METHOD.PARO,),
        bits=(4,),
        reader="quantfarm.formats.paroquant:read",
        writer="quantfarm.formats.paroquant:write",
        facts="quantfarm.formats.settings.paroquant:facts",
        markers=("qweight",),
        tensors=("qweight", "scales", "theta", "pairs", "channel_scales"),
        optional=("qzeros", "bias"),
        settings="quantfarm.formats.settings.paroquant:settings",
        keys=("krot",),
    ),
    FormatRow(
        format=FORMAT.EXL3,
        methods=(METHOD.EXL3,),
        bits=(1, 2, 3, 4, 5, 6, 7, 8),
        reader="quantfarm.formats.exl3:read",
        writer="quantfarm.formats.exl3:write",
        facts="quantfarm.formats.settings.exl3:facts",
        markers=("trellis",),
        tensors=("trellis",),
        # The reader refuses ``scale``, which only the earliest files have, so it has to see it.
        optional=("suh", "svh", "su", "sv", "mcg", "mul1", "bias", "scale"),
        settings="quantfarm.formats.settings.exl3:settings",
        keys=("bits", "head_bits", "out_scales", "codebook", "tensor_storage", "calibration", "version"),
    ),
    FormatRow(
        format=FORMAT.QQQ,
        methods=(METHOD.QQQ,),
        bits=(4,),
        reader="quantfarm.formats.qqq:read",
        writer="quantfarm.formats.qqq:write",
        facts="quantfarm.formats.settings.qqq:facts",
        markers=("B", "s_channel"),
        tensors=("B", "s_channel"),
        optional=("s_group", "bias"),
        settings="quantfarm.formats.settings.qqq:settings",
    ),
    FormatRow(
        format=FORMAT.FP8,
        methods=(METHOD.FP8,),
        bits=(8,),
        reader="quantfarm.formats.fp8:read",
        writer="quantfarm.formats.fp8:write",
        facts="quantfarm.formats.settings.fp8:facts",
        markers=_FP8_SCALES,
        tensors=("weight",),
        optional=(*_FP8_SCALES, "input_scale", "bias"),
        settings="quantfarm.formats.settings.fp8:settings",
        keys=_FP8_KEYS,
    ),
    _fp4(FORMAT.MXFP4, ("weight_packed",), ()),
    _fp4(FORMAT.NVFP4, ("weight_packed", "weight"), ("weight_global_scale", "weight_scale_2")),
    FormatRow(
        format=FORMAT.GPTQ_V2,
        methods=(METHOD.GPTQ,),
        bits=(4, 8),
        reader="quantfarm.formats.pack_quantized:read",
        writer="quantfarm.formats.pack_quantized:write",
        facts="quantfarm.formats.settings.compressed_tensors:facts",
        markers=("weight_packed",),
        tensors=("weight_packed", "weight_scale", "weight_shape"),
        optional=("weight_zero_point", "weight_g_idx", "bias"),
        settings="quantfarm.formats.settings.compressed_tensors:settings",
        keys=("dialect_notes",),
        dialect="compressed-tensors",
    ),
    FormatRow(
        format=FORMAT.GGUF,
        methods=(METHOD.GGUF,),
        bits=(1, 2, 3, 4, 5, 6, 8, 16, 32),
        reader="quantfarm.formats.gguf:read",
        writer="quantfarm.formats.gguf:write",
        facts="quantfarm.formats.settings.gguf:facts",
        markers=("qweight",),
        tensors=("qweight",),
        optional=("bias",),
        settings="quantfarm.formats.settings.gguf:settings",
    ),
    FormatRow(
        format=FORMAT.VPTQ,
        methods=(METHOD.VPTQ,),
        bits=(1, 2, 3, 4, 5, 6, 7, 8),
        reader="quantfarm.formats.vptq:read",
        writer="quantfarm.formats.vptq:write",
        facts="quantfarm.formats.settings.vptq:facts",
        markers=("centroids.weight", "indices"),
        tensors=("centroids.weight", "indices"),
        optional=(
            *("res_centroids.weight", "res_indices", "outlier_centroids.weight", "outlier_indices"),
            *("perm", "weight_scale", "weight_bias", "bias"),
        ),
        settings="quantfarm.formats.settings.vptq:settings",
        layers="quantfarm.formats.settings.vptq:for_module",
        keys=(
            *("config_for_layers", "shared_layer_config", "in_features", "out_features", "vector_lens"),
            *("num_centroids", "num_res_centroids", "group_num", "outlier_size", "indices_as_float"),
            *("enable_norm", "enable_perm", "is_indice_packed", "bias", "vector_quant_dim"),
        ),
    ),
    FormatRow(
        format=FORMAT.BITSANDBYTES,
        methods=(METHOD.BITSANDBYTES,),
        bits=(4, 8),
        reader="quantfarm.formats.bitsandbytes:read",
        writer="quantfarm.formats.bitsandbytes:write",
        facts="quantfarm.formats.settings.bitsandbytes:facts",
        markers=("weight.absmax", "weight_absmax", "SCB", "weight_scb"),
        tensors=("weight",),
        optional=(
            *("weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map"),
            *("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"),
            *("weight_absmax", "weight_quant_map", "weight_nested_absmax", "weight_nested_quant_map"),
            *("weight_quant_state", "SCB", "weight_scb", "weight_format", "bias"),
        ),
        settings="quantfarm.formats.settings.bitsandbytes:settings",
        keys=(
            *("load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit", "bnb_4bit_quant_type"),
            *("bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "llm_int8_threshold"),
            *("llm_int8_skip_modules", "llm_int8_has_fp16_weight", "llm_int8_enable_fp32_cpu_offload"),
            *("block_size", "compress_statistics"),
        ),
    ),
)
"""Every layout this version reads, in the order in which messages list them."""


@dataclass(frozen=True, kw_only=True)
class LoaderRule:
    """What holds for a format before any backend is compared, whether or not this version has a reader for it.

    Attributes:
        format: the format it is about.
        method: the method it is about; None means every one that has the format.
        code_type: the named type inside the format, such as the ggml type ``q2_0``; empty means every one.
        allowed: the only backends that may be asked for by name; empty means any that reads the format. Engines take
            a whole model over and are not bound by it.
        automatic: the backends that an automatic choice tries, in this order; empty means those with a number.
        forced_dtype: the activation dtype that the format demands; empty means none.
        pack_dtype: the dtype of its stored words where nobody states one; empty means int32.
    """

    format: FORMAT
    method: METHOD | None = None
    code_type: str = ""
    allowed: tuple[BACKEND, ...] = ()
    automatic: tuple[BACKEND, ...] = ()
    forced_dtype: str = ""
    pack_dtype: str = ""


RULES: tuple[LoaderRule, ...] = (
    LoaderRule(format=FORMAT.MARLIN, allowed=(BACKEND.MARLIN, BACKEND.MLX)),
    LoaderRule(format=FORMAT.BITBLAS, method=METHOD.GPTQ, allowed=(BACKEND.GPTQ_BITBLAS, BACKEND.MLX)),
    LoaderRule(format=FORMAT.BITBLAS, method=METHOD.AWQ, allowed=(BACKEND.AWQ_BITBLAS, BACKEND.MLX)),
    LoaderRule(
        format=FORMAT.EXL3,
        allowed=(BACKEND.EXL3_EXLLAMA_V3, BACKEND.EXL3_TORCH, BACKEND.MLX),
        automatic=(BACKEND.EXL3_EXLLAMA_V3, BACKEND.EXL3_TORCH),
        pack_dtype="int16",
    ),
    LoaderRule(format=FORMAT.BITSANDBYTES, allowed=(BACKEND.BITSANDBYTES, BACKEND.MLX)),
    LoaderRule(
        format=FORMAT.GGUF,
        code_type="q1_0",
        allowed=(BACKEND.GGUF_TORCH, BACKEND.GGUF_TRITON, BACKEND.MLX),
    ),
    LoaderRule(format=FORMAT.GGUF, code_type="q2_0", allowed=(BACKEND.GGUF_TORCH, BACKEND.MLX)),
    LoaderRule(format=FORMAT.GEMV_FAST, forced_dtype="float16", pack_dtype="int16"),
    LoaderRule(format=FORMAT.LLM_AWQ, forced_dtype="float16", pack_dtype="int16"),
)
"""The special cases of the loader, one row each. They act as reasons; there is no second selector."""


UNREADABLE: Mapping[FORMAT, str] = {
    FORMAT.BITBLAS: "its bytes are arranged by the library bitblas for one version and one target, and this version "
    "has no adapter to that library",
    FORMAT.NF12_AD: "its layout (tensor names, tiles, escape codes) is not public, and none is guessed",
}
"""Formats that have a name and no reader, with the reason."""


@cache
def rule_of(method: METHOD, format: FORMAT, code_type: str = "") -> LoaderRule:  # noqa: A002 - see ``find``
    """Return the rule of a pair and the type inside the format; one that demands nothing where there is none."""
    for rule in RULES:
        if rule.format is format and rule.method in (None, method) and rule.code_type in ("", code_type):
            return rule
    return LoaderRule(format=format)


def find(method: METHOD, format: FORMAT, dialect: str = "") -> FormatRow:  # noqa: A002 - the one word for it
    """Return the row of a pair; raise UnknownFormat, which lists the pairs that this version reads.

    A dialect that a pair has no row for is read by the row of the usual names.
    """
    rows = [row for row in FORMATS if row.format is format and method in row.methods]
    for row in rows:
        if row.dialect == dialect:
            return row
    if rows:
        return rows[0]
    why = UNREADABLE.get(format, "no reader for this pair")
    raise UnknownFormat(
        f"cannot read method {method.value} with format {format.value}: {why}",
        lines=known_lines(),
        remedy="use a checkpoint in one of these formats",
    )


def usual_format(method: METHOD) -> FORMAT | None:
    """Return the format that settings of a method mean when they name none; None for a method without a reader."""
    return next((row.format for row in FORMATS if method in row.methods), None)


def rows_of(method: METHOD) -> tuple[FormatRow, ...]:
    """Return every row of a method."""
    return tuple(row for row in FORMATS if method in row.methods)


def known_lines() -> tuple[str, ...]:
    """Return one line per method with its readable formats, as error messages print them."""
    methods = dict.fromkeys(method for row in FORMATS for method in row.methods)
    return tuple(
        f"this version reads {method.value}: {', '.join(dict.fromkeys(row.format.value for row in rows_of(method)))}"
        for method in methods
    )
