"""FORMATS: one row per readable layout. A row names its reader and writer; they are imported on first use.

Neither torch nor numpy is imported here, so the selector and the command line can ask what exists without them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from quantfarm.declare.names import BACKEND, FORMAT, METHOD
from quantfarm.errors import UnknownFormat


@dataclass(frozen=True, kw_only=True)
class FormatRow:
    """One layout on disk.

    Attributes:
        format: its name.
        methods: the methods whose weights lie like this.
        bits: code widths that the layout holds.
        reader, writer: ``module:function``; see ``gptq.read`` and ``gptq.write`` for the two signatures.
        tensors: suffixes that every module must have.
        optional: suffixes that a module may have.
    """

    format: FORMAT
    methods: tuple[METHOD, ...]
    bits: tuple[int, ...]
    reader: str
    writer: str
    tensors: tuple[str, ...]
    optional: tuple[str, ...]

    def read(self) -> Callable[..., Any]:
        """Import and return the reader."""
        return _imported(self.reader)

    def write(self) -> Callable[..., Any]:
        """Import and return the writer."""
        return _imported(self.writer)


def _gptq(name: FORMAT) -> FormatRow:
    return FormatRow(
        format=name,
        methods=(METHOD.GPTQ,),
        bits=(2, 3, 4, 8),
        reader="quantfarm.formats.gptq:read",
        writer="quantfarm.formats.gptq:write",
        tensors=("qweight", "qzeros", "scales"),
        optional=("g_idx", "bias"),
    )


FORMATS: tuple[FormatRow, ...] = (
    _gptq(FORMAT.GPTQ),
    _gptq(FORMAT.GPTQ_V2),
    FormatRow(
        format=FORMAT.GEMM,
        methods=(METHOD.AWQ,),
        bits=(4,),
        reader="quantfarm.formats.awq:read",
        writer="quantfarm.formats.awq:write",
        tensors=("qweight", "qzeros", "scales"),
        optional=("bias",),
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


@cache
def rule_of(method: METHOD, format: FORMAT, code_type: str = "") -> LoaderRule:  # noqa: A002 - see ``find``
    """Return the rule of a pair and the type inside the format; one that demands nothing where there is none."""
    for rule in RULES:
        if rule.format is format and rule.method in (None, method) and rule.code_type in ("", code_type):
            return rule
    return LoaderRule(format=format)


def find(method: METHOD, format: FORMAT) -> FormatRow:  # noqa: A002 - the one word for it in this project
    """Return the row of a pair; raise UnknownFormat, which lists the pairs that this version reads."""
    for row in FORMATS:
        if row.format is format and method in row.methods:
            return row
    raise UnknownFormat(
        f"cannot read method {method.value} with format {format.value}: no reader for this pair",
        lines=known_lines(),
        remedy="use a checkpoint in one of these formats",
    )


def known_lines() -> tuple[str, ...]:
    """Return one line per method with its readable formats, as error messages print them."""
    methods = dict.fromkeys(method for row in FORMATS for method in row.methods)
    return tuple(
        f"this version reads {method.value}: {', '.join(row.format.value for row in FORMATS if method in row.methods)}"
        for method in methods
    )


def _imported(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
