"""FormatRow: what one layout on disk is, and the names of the functions that read, write and describe it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import UnknownFormat


@dataclass(frozen=True, kw_only=True)
class FormatRow:
    """One layout on disk. Functions are named as ``module:function`` and imported on first use.

    Attributes:
        format: its name.
        methods: the methods whose weights lie like this.
        bits: code widths that the layout holds.
        reader: ``read(tensors, config, *, module, k, n) -> Weight``; see ``gptq.read``.
        writer: ``write(weight, config, *, force) -> tensors``, its inverse; empty where nothing can be written.
        packer: ``pack(weight, config) -> Weight`` from floats [N, K] by rounding; empty where that is a search.
        facts: ``facts(tensors, config) -> LayerFacts`` from shapes and dtypes alone; its module imports no torch.
        markers: suffixes of which a packed module has at least one, and a dense module none.
        tensors: suffixes that every packed module must have.
        optional: suffixes that a packed module may have.
        settings: ``settings(raw, stated, source) -> fields of QuantConfig`` for keys of the method's own; empty where
            it has none. Its module imports no torch.
        layers: ``for_module(details, name, source) -> fields of QuantConfig`` where layers have settings of their own,
            None for a layer that they leave out, which is dense; empty where all layers share them. No torch either.
        keys: those keys.
        type_key: the key in which settings name the type inside the format, such as ``bits`` for a ggml type.
        usual: settings of a new checkpoint where nobody states them.
        dialect: other tensor names for the same pair, such as ``compressed-tensors``; empty for the usual ones.
        k_multiple, n_multiple: what the layout needs of inputs and outputs.
        whole_groups: whether the groups must divide the inputs.
        pads_k: whether rows are padded to whole blocks, so that the tensors do not tell the inputs.
    """

    format: FORMAT
    methods: tuple[METHOD, ...]
    bits: tuple[int, ...]
    reader: str
    writer: str
    facts: str
    markers: tuple[str, ...]
    tensors: tuple[str, ...]
    optional: tuple[str, ...]
    packer: str = ""
    settings: str = ""
    layers: str = ""
    keys: tuple[str, ...] = ()
    type_key: str = ""
    usual: Mapping[str, Any] = field(default_factory=dict)
    dialect: str = ""
    k_multiple: int = 1
    n_multiple: int = 1
    whole_groups: bool = False
    pads_k: bool = False

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Every suffix that a packed module may have."""
        return (*self.tensors, *self.optional)

    def read(self) -> Callable[..., Any]:
        """Import and return the reader."""
        return _imported(self.reader)

    def write(self) -> Callable[..., Any]:
        """Import and return the writer; raise UnknownFormat where the layout has none."""
        if not self.writer:
            raise UnknownFormat(f"cannot write {self.format.value}: no writer for it", remedy="choose another format")
        return _imported(self.writer)

    def pack(self) -> Callable[..., Any]:
        """Import and return the packer; raise UnknownFormat where weights can not be rounded into the layout."""
        if not self.packer:
            raise UnknownFormat(
                f"cannot round weights to {self.format.value}: its codes come from a search, not from rounding"
            )
        return _imported(self.packer)

    def describe(self) -> Callable[..., Any]:
        """Import and return the function that reads a layer's facts from a header."""
        return _imported(self.facts)

    def own_settings(self) -> Callable[..., Mapping[str, Any]]:
        """Import and return the function that reads the method's own keys; one that reads nothing without such."""
        return _imported(self.settings) if self.settings else lambda *_: {}

    def layer_settings(self) -> Callable[..., Mapping[str, Any] | None]:
        """Import and return the function that gives one layer's own settings; one that changes nothing without such."""
        return _imported(self.layers) if self.layers else lambda *_: {}


def _imported(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
