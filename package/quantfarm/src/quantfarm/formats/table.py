"""FORMATS: one row per readable layout. A row names its reader and writer; they are imported on first use.

Neither torch nor numpy is imported here, so the selector and the command line can ask what exists without them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
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
        allowed: loader rule: the only backends for this format; empty means any that reads it.
        forced_dtype: loader rule: the activation dtype the format demands; empty means none.
    """

    format: FORMAT
    methods: tuple[METHOD, ...]
    bits: tuple[int, ...]
    reader: str
    writer: str
    tensors: tuple[str, ...]
    optional: tuple[str, ...]
    allowed: tuple[BACKEND, ...] = field(default=())
    forced_dtype: str = ""

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
