"""Settings and header facts of ggml blocks in safetensors: ``bits`` names a block type (formats, section 10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantfarm.declare import ggml
from quantfarm.declare.ggml import GgmlType
from quantfarm.declare.scheme import Scheme, WeightKind
from quantfarm.errors import TensorMismatch, UnknownFormat
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.facts import LayerFacts, TensorFact

TYPE_OF_WIDTH: Mapping[int, str] = {
    1: "q1_0",
    2: "q2_0",
    3: "q3_k",
    4: "q4_0",
    5: "q5_k",
    6: "q6_k",
    8: "q8_0",
    16: "f16",
    32: "f32",
}
"""The type that a plain width means. A width of 4 says Q4_0, not Q4_K, because the one writer of such files means
that; the two have the same number of bytes, so the bytes can not tell. Its other widths are taken over as well; the
widths that it does not have (3, 16, 32) are the types that llama.cpp falls back to."""


def settings(_raw: Mapping[str, Any], stated: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Read ``bits``, a name such as ``q4_k_m`` or a width, into the type and its nominal width.

    The type is that of every module whose own is not known: a ``dynamic`` rule may give another name for some modules,
    and a file that states a type for each tensor sets ``code_type`` of the settings that it passes for each module.
    ``details`` keep the spelling of the file. Blocks are bytes and have groups of their own, so that a group size and
    a dtype of packed words mean nothing, whatever the file says.

    Raises:
        UnknownFormat: nothing here decodes a type of that name or width; lists the known ones.
    """
    plain = {"group_size": -1, "pack_dtype": "int32"}
    if "bits" not in stated:
        return plain
    written = stated["bits"]
    name = TYPE_OF_WIDTH.get(written, "") if isinstance(written, int) else str(written)
    types = ggml.named(name)
    if not types:
        raise unknown_type(written, source)
    code_type = types[0].name if len(types) > 1 else ggml.block_name(types[0])
    return plain | {"bits": types[0].bits, "code_type": code_type, "details": {"bits": written}}


def facts(tensors: Mapping[str, TensorFact], config: QuantConfig) -> LayerFacts:
    """Return K (padded to whole blocks), N and the scheme of a layer from the shape of qweight.

    Raises:
        TensorMismatch: the bytes of a row are no whole blocks, or say nothing about which of two block sizes it is.
    """
    n, row_bytes = tensors["qweight"].shape
    entry = whole_rows(config, row_bytes)
    return LayerFacts(k=row_bytes // entry.size * entry.block, n=n, scheme=scheme_of(entry), code_type=entry.name)


def whole_rows(config: QuantConfig, row_bytes: int) -> GgmlType:
    """Return the type whose blocks fill a row of this many bytes, where nothing else says how many values it has."""
    types = ggml.named(config.code_type)
    whole = [entry for entry in types if row_bytes % entry.size == 0]
    if len(whole) == 1:
        return whole[0]
    needs = " or ".join(str(entry.size) for entry in types)
    names = " or ".join(ggml.block_name(entry) for entry in types)
    raise TensorMismatch(
        f"cannot read a tensor of type {config.code_type}: its bytes do not say how many values a row has",
        lines=(f"qweight        bytes per row: needs a multiple of {needs}, of one of them only, got {row_bytes}",),
        remedy=f'state the type with its block in {config.source or "the settings"}: "bits": {names}',
    )


def scheme_of(entry: GgmlType) -> Scheme:
    """Return what the codes of a type mean: its nominal width, and how many values share a scale."""
    kind = WeightKind.INT if entry.bits <= 8 else WeightKind.FLOAT
    return Scheme(weight_kind=kind, bits=entry.bits, group_size=entry.group, sym=entry.sym)


def unknown_type(name: object, source: str) -> UnknownFormat:
    """Return the error for a type that nothing here decodes."""
    return UnknownFormat(
        f"cannot read {source}: unknown ggml type",
        lines=(f"bits: got {name!r}", f"this version reads gguf: {', '.join(ggml.NAMES)}"),
        remedy="use a checkpoint in one of these types",
    )
