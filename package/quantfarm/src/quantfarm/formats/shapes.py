"""Shape and dtype checks of checkpoint tensors: every problem of a module in one error, with both numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from quantfarm.declare.names import FORMAT
from quantfarm.errors import InexactConversion, TensorMismatch

WORDS = (torch.int32,)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
INDICES = (torch.int32, torch.int64)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a tensor: what it counts, how many there must be, and from what the number follows."""

    counts: str
    needed: int
    because: str


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One tensor of a module: suffix, sides, possible dtypes, and whether it may be absent."""

    name: str
    sides: tuple[Side, ...]
    dtypes: tuple[torch.dtype, ...]
    optional: bool = False


def problems(tensors: Mapping[str, torch.Tensor], expected: Sequence[Expected]) -> list[str]:
    """Return one line per thing that is not as expected; empty when the tensors fit."""
    return [line for entry in expected for line in _lines(tensors.get(entry.name), entry)]


def line(name: str, what: str, needs: object, got: object) -> str:
    """Return the line of an error for one property of one tensor."""
    return f"{name:<14} {what}: needs {needs}, got {got}"


def refuse(module: str, lines: Sequence[str], source: str) -> None:
    """Raise TensorMismatch with every line, or return when there is none."""
    if lines:
        raise TensorMismatch(
            f"cannot load {module}: tensors do not match the settings",
            lines=lines,
            remedy=f"the file is padded or the settings are of another checkpoint; compare {source or 'the settings'} "
            "with the tensor list",
        )


def missing(tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> list[str]:
    """Return one line per tensor that a layout can not do without, so that K and N can be taken from the rest."""
    return [line(name, "tensor", "one", "none") for name in names if name not in tensors]


def flat(tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> list[str]:
    """Return one line per matrix that does not have two sides."""
    return [line(name, "shape", "2 sides", list(tensors[name].shape)) for name in names if tensors[name].dim() != 2]


def not_finite(tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> list[str]:
    """Return one line per tensor of floats that holds NaN or infinity: it would spread over whole outputs."""
    counts = {name: int((~torch.isfinite(tensors[name])).sum()) for name in names if name in tensors}
    return [
        line(name, "values", "finite ones", f"{count} that are not (NaN or infinity)")
        for name, count in counts.items()
        if count
    ]


def refuse_writing(name: FORMAT, lines: Sequence[str]) -> None:
    """Raise InexactConversion with every line on what a layout can not hold, or return when there is none."""
    if lines:
        raise InexactConversion("\n  ".join([f"cannot write {name.value}: the layout can not hold it", *lines]))


def _lines(tensor: torch.Tensor | None, entry: Expected) -> Iterator[str]:
    if tensor is None:
        if not entry.optional:
            yield line(entry.name, "tensor", [side.needed for side in entry.sides], "none")
        return
    if tensor.dtype not in entry.dtypes:
        yield line(entry.name, "dtype", _names(entry.dtypes), _names((tensor.dtype,)))
    if tensor.dim() != len(entry.sides):
        yield line(entry.name, "shape", [side.needed for side in entry.sides], list(tensor.shape))
        return
    for side, got in zip(entry.sides, tensor.shape, strict=True):
        if side.needed != got:
            yield line(entry.name, side.counts, f"{side.needed} ({side.because})", got)


def wrong_dtypes(tensors: Mapping[str, torch.Tensor], dtypes: Mapping[str, Sequence[torch.dtype]]) -> list[str]:
    """Return one line per tensor that is there and has none of its dtypes."""
    return [
        line(name, "dtype", _names(known), _names((tensors[name].dtype,)))
        for name, known in dtypes.items()
        if name in tensors and tensors[name].dtype not in known
    ]


def _names(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
