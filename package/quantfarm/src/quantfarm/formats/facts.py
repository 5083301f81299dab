"""What a file's header tells of a layer, without its bytes: shapes and dtypes in, the layer's K, N and scheme out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quantfarm.declare.scheme import Scheme


@dataclass(frozen=True, kw_only=True)
class TensorFact:
    """One tensor of a header: dtype in the spelling of safetensors (``F16``, ``I32``, ``F8_E4M3``) and shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LayerFacts:
    """One quantized layer: inputs, outputs, scheme, and the named type inside the format, if it has any.

    ``k`` and ``n`` are 0 where a header does not tell them, as of flat codes whose shape stands in a tensor's bytes.
    """

    k: int
    n: int
    scheme: Scheme
    code_type: str = ""


def modules_of(names: Iterable[str], markers: Iterable[str], suffixes: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group tensor names by packed module: module to suffix to name.

    A module is packed when it has a tensor whose suffix is a marker. Suffixes may hold dots
    (``weight.absmax``); the longest one that fits is taken.
    """
    every = list(names)
    modules: dict[str, dict[str, str]] = {}
    for name in every:
        for marker in markers:
            if name.endswith(f".{marker}"):
                modules.setdefault(name[: -len(marker) - 1], {})
    known = sorted({*markers, *suffixes}, key=len, reverse=True)
    for name in every:
        for suffix in known:
            module = name[: -len(suffix) - 1]
            if name.endswith(f".{suffix}") and module in modules:
                modules[module][suffix] = name
                break
        else:
            module, _, suffix = name.rpartition(".")
            if module in modules:
                modules[module][suffix] = name
    return modules


def facts_of(tensors: Mapping[str, Mapping[str, object]]) -> dict[str, TensorFact]:
    """Read the entries of a safetensors header (``dtype``, ``shape``) by name."""
    return {
        name: TensorFact(dtype=str(entry["dtype"]), shape=tuple(entry["shape"]))  # type: ignore[arg-type]
        for name, entry in tensors.items()
    }
