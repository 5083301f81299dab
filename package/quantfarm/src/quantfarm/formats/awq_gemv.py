"""AWQ GEMV, GEMV_FAST and LLM_AWQ: tensors of a checkpoint <-> QuantTensor (formats, sections 5 and 6).

Codes are 4 bits, groups are consecutive inputs. Scales and zero points are padded along the groups to ``8 * zw`` of
them; the padding is written as 0. GEMV has words along K in natural order, and zero points as integers. The other two
have words of a tile of 4 outputs by 64 inputs, and ``-(scale * zero)`` as floats, which become ``QuantTensor.offsets``
as they are; they differ in the name of that tensor only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme
from quantfarm.formats import shapes, stored_codes, zeros
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packing import pack_columns, unpack_columns
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.formats.shapes import Expected, Side
from quantfarm.formats.table import find

_BITS = 4
_PER_WORD = 8
_WIDE_GROUP = 128
_PADDING = {32: 4, 64: 2}
"""Group size below 128 -> the number that the words of zero points are rounded up to; other sizes do not exist."""


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """How one of the formats lies: the tensor of zero points, its foreign name, divisors and dtype of the words."""

    points: str
    other: str
    word: torch.dtype
    k_multiple: int
    n_multiple: int


def _layout(name: FORMAT) -> _Layout:
    row, fast = find(METHOD.AWQ, name), name is not FORMAT.GEMV
    points, other = ("scaled_zeros", "qzeros") if name is FORMAT.LLM_AWQ else ("qzeros", "scaled_zeros")
    word = torch.int16 if fast else torch.int32
    return _Layout(points=points, other=other, word=word, k_multiple=row.k_multiple, n_multiple=row.n_multiple)


def read(
    tensors: Mapping[str, torch.Tensor],
    config: QuantConfig,
    *,
    module: str,
    k: int | None = None,
    n: int | None = None,
) -> QuantTensor:
    """Read one module.

    Args:
        tensors: by suffix. GEMV: qweight [N, K/8] int32, qzeros [N, zw] int32, scales [N, 8*zw]. GEMV_FAST and LLM_AWQ:
            qweight [N/4, K] int16, scales and qzeros (LLM_AWQ: scaled_zeros) [8*zw, N]. Scales and the floats of
            zero points are fp16, bf16 or fp32. Optionally bias [N].
        config: the settings of this module (``QuantConfig.for_module``).
        module: its name, for messages.
        k: inputs that the model has; without it they follow from qweight.
        n: outputs that the model has; without it they follow from qweight.

    Raises:
        TensorMismatch: shapes, dtypes or values do not fit, or zero points are there under both names; lists every
            problem with both numbers.
    """
    layout, name = _layout(config.format), config.format
    needed = ("qweight", layout.points, "scales")
    shapes.refuse(module, [*shapes.missing(tensors, needed), *_two_names(tensors, layout)], config.source)
    shapes.refuse(module, shapes.flat(tensors, needed), config.source)
    rows, columns = tensors["qweight"].shape
    gemv = name is FORMAT.GEMV
    k = (columns * _PER_WORD if gemv else columns) if k is None else k
    n = (rows if gemv else rows * layout.n_multiple) if n is None else n
    shapes.refuse(module, _problems(tensors, config, k, n), config.source)
    floats = ("scales", "bias") if gemv else ("scales", layout.points, "bias")
    shapes.refuse(module, shapes.not_finite(tensors, floats), config.source)

    groups = k // _size(config, k)
    by_group = _unpadded(tensors, layout, gemv=gemv)
    scales, points = (part[:groups] for part in by_group)
    tensor = QuantTensor(
        method=METHOD.AWQ,
        format=name,
        scheme=Scheme(bits=_BITS, group_size=config.group_size, sym=_symmetric(scales, points, gemv=gemv)),
        k=k,
        n=n,
        codes=stored_codes.to_stream(tensors["qweight"], name, bits=_BITS, k=k),
        scales=scales,
        zeros=points if gemv else torch.zeros(groups, n, dtype=torch.int32, device=scales.device),
        g_idx=None,
        bias=tensors.get("bias"),
        source={key: tensor for key, tensor in tensors.items() if key != "qweight"},
        codes_to_source=stored_codes.way_back(name, bits=_BITS, k=k),
        offsets=None if gemv else points,
    )
    notes = _notes(tensor, config, padding=[part[groups:] for part in by_group])
    return replace(tensor, notes=tuple(f"{module}: {note}" for note in notes))


def write(tensor: QuantTensor, config: QuantConfig, *, force: bool = False) -> dict[str, torch.Tensor]:
    """Write one module as ``config.format`` says; the inverse of ``read``, with padding of 0.

    Raises:
        InexactConversion: the tensor has what the layout can not hold: another code width, a group index, a group size
            or a shape without a place, zero points that are no integers (GEMV) or whose product with the scale is
            rounded (GEMV_FAST, LLM_AWQ). ``force`` allows the rounding that other writers of the two do.
        ValueError: the codes are held by a kernel's layout.
    """
    codes, layout = tensor.held_codes(), _layout(config.format)
    shapes.refuse_writing(config.format, _obstacles(tensor, layout))
    padded = _PER_WORD * _zero_words(tensor.k, tensor.group_size)
    written = dict(stored_codes.way_back(config.format, bits=_BITS, k=tensor.k)(codes))
    if config.format is FORMAT.GEMV:
        tensor = zeros.with_integers(tensor, rounded=force)
        zeros.check_range(tensor.zeros, _BITS)
        written["qzeros"] = pack_columns(_padded(tensor.zeros, padded).t(), _BITS)
        written["scales"] = _padded(tensor.scales, padded).t().contiguous()
    else:
        tensor = zeros.with_offsets(tensor, rounded=force)
        assert tensor.offsets is not None
        written["scales"] = _padded(tensor.scales, padded)
        written[layout.points] = _padded(tensor.offsets, padded)
    return written | ({} if tensor.bias is None else {"bias": tensor.bias})


def _size(config: QuantConfig, k: int) -> int:
    return k if config.group_size == -1 else config.group_size


def _multiple(size: int) -> int:
    """Return what the words of zero points are rounded up to; 0 for a group size that the layouts do not have."""
    return 1 if size >= _WIDE_GROUP else _PADDING.get(size, 0)


def _zero_words(k: int, size: int) -> int:
    """Return zw, the words of zero points of one output (formats, section 5)."""
    multiple = _multiple(size)
    words = math.ceil(k // size / _PER_WORD)
    return math.ceil(words / multiple) * multiple


def _padded(values: torch.Tensor, groups: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, 0, 0, groups - values.shape[0]))


def _unpadded(tensors: Mapping[str, torch.Tensor], layout: _Layout, *, gemv: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scales and zero points (or offsets) as [8*zw, N], padding included."""
    scales, points = tensors["scales"], tensors[layout.points]
    if not gemv:
        return scales, points
    unpacked = unpack_columns(points, _BITS, points.shape[1] * _PER_WORD)
    return scales.t().contiguous(), unpacked.t().to(torch.int32).contiguous()


def _symmetric(scales: torch.Tensor, points: torch.Tensor, *, gemv: bool) -> bool:
    """Say whether every zero point is 8; the product of a float with 8 is exact unless it overflows."""
    if gemv:
        return zeros.symmetric(points, _BITS)
    middle = 1 << (_BITS - 1)
    return bool((points.to(torch.float32) == -(scales.to(torch.float32) * middle)).all())


def _notes(tensor: QuantTensor, config: QuantConfig, padding: list[torch.Tensor]) -> list[str]:
    """Tell what the product ignores: settings that say symmetric over other zero points, and a filled padding."""
    notes = []
    if config.sym and not tensor.scheme.sym:
        if tensor.offsets is None:
            notes.append(zeros.symmetry_note(tensor.zeros, _BITS))
        else:
            notes.append("the settings say symmetric, but not every stored offset is -8 * scale; the offsets decide")
    filled = sum(int(torch.count_nonzero(part)) for part in padding)
    if filled:
        notes.append(f"{filled} values behind the last group are not 0; no input belongs to them, so they are kept")
    return notes


def _two_names(tensors: Mapping[str, torch.Tensor], layout: _Layout) -> list[str]:
    if not {layout.points, layout.other} <= tensors.keys():
        return []
    return [shapes.line(layout.other, "tensor", f"none beside {layout.points}", "both, and they may differ")]


def _problems(tensors: Mapping[str, torch.Tensor], config: QuantConfig, k: int, n: int) -> list[str]:
    layout, gemv, size = _layout(config.format), config.format is FORMAT.GEMV, _size(config, k)
    lines = _group_lines(k, size)
    for name, side, value, multiple in (("qweight", "K", k, layout.k_multiple), ("qweight", "N", n, layout.n_multiple)):
        if value % multiple:
            lines.append(shapes.line(name, side, f"a multiple of {multiple}", value))
    if lines:
        return lines
    words, because = _zero_words(k, size), f"K={k}, group_size={config.group_size}"
    groups = Side(counts="groups", needed=words * _PER_WORD, because=f"{because}, padded")
    packed = Side(counts="columns", needed=words, because=because)
    outputs, inputs = Side(counts="outputs", needed=n, because=f"N={n}"), f"K={k}, {_BITS} bits"
    if gemv:
        code_sides = (outputs, Side(counts="columns", needed=k // _PER_WORD, because=inputs))
        scale_sides, point_sides = (outputs, groups), (outputs, packed)
    else:
        fours = Side(counts="rows", needed=n // layout.n_multiple, because=f"N={n}")
        code_sides = (fours, Side(counts="columns", needed=k, because=inputs))
        scale_sides = point_sides = (groups, outputs)
    entries = Side(counts="entries", needed=n, because=f"N={n}")
    return shapes.problems(
        tensors,
        (
            Expected(name="qweight", sides=code_sides, dtypes=(layout.word,)),
            Expected(name=layout.points, sides=point_sides, dtypes=shapes.WORDS if gemv else shapes.FLOATS),
            Expected(name="scales", sides=scale_sides, dtypes=shapes.FLOATS),
            Expected(name="bias", sides=(entries,), dtypes=shapes.FLOATS, optional=True),
        ),
    )


def _group_lines(k: int, size: int) -> list[str]:
    """Return what is wrong with the group size: the width of the zero points has a rule for some sizes only."""
    sizes = f"{', '.join(map(str, _PADDING))} or at least {_WIDE_GROUP}"
    lines = [] if _multiple(size) else [shapes.line("scales", "group_size", sizes, size)]
    return lines if k % size == 0 else [*lines, shapes.line("qweight", "K", f"a multiple of group_size={size}", k)]


def _obstacles(tensor: QuantTensor, layout: _Layout) -> list[str]:
    checks = {
        f"bits: needs {_BITS}, got {tensor.scheme.bits}": tensor.scheme.bits != _BITS,
        "g_idx: needs k // group_size, got another order": tensor.g_idx is not None,
        f"K: needs a multiple of {layout.k_multiple}, got {tensor.k}": bool(tensor.k % layout.k_multiple),
        f"N: needs a multiple of {layout.n_multiple}, got {tensor.n}": bool(tensor.n % layout.n_multiple),
    }
    lines = [text for text, holds in checks.items() if holds]
    return [*lines, *(" ".join(line.split()) for line in _group_lines(tensor.k, tensor.group_size))]
