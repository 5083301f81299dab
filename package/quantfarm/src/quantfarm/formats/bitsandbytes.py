"""bitsandbytes: tensors of a checkpoint <-> TableCodes and RowCodes (formats, section 17).

Two spellings of the same tensors are read: upstream's, with dots (``weight.absmax``), and the peer's, with underscores
(``weight_absmax``). What a layer holds decides how it is read; settings that say something else are named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme, WeightKind
from quantfarm.errors import InexactConversion
from quantfarm.formats import shapes
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.settings.bitsandbytes import BLOCK_SIZE, BLOCK_SIZES, ROW_TYPE, TABLE_TYPES
from quantfarm.formats.shapes import Expected, Side
from quantfarm.formats.weights.base import Weight
from quantfarm.formats.weights.row_codes import RowCodes
from quantfarm.formats.weights.table_codes import Nested, TableCodes

_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_TWELFTHS = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
_FP4 = (*(value / 12 for value in _TWELFTHS), 0.0, *(-value / 12 for value in _TWELFTHS[1:]))
TABLES: Mapping[str, tuple[float, ...]] = {"nf4": _NF4, "fp4": _FP4}
"""The value of each code. NF4 in the digits that give the fp32 numbers; FP4 code 8 is a positive zero."""

_STATE = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4", "weight_quant_state")
_PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_NESTED_BLOCK = 256
_STORAGE = (torch.uint8, torch.int8, torch.float16, torch.bfloat16, torch.float32)
_SAME_TABLE = 1e-6
_FLOAT = (torch.float32,)


def read(
    tensors: Mapping[str, torch.Tensor],
    config: QuantConfig,
    *,
    module: str,
    k: int | None = None,
    n: int | None = None,
) -> Weight:
    """Read one module.

    Args:
        tensors: by suffix, in either spelling. 4 bits: weight, any dtype, ceil(N*K/2) bytes; absmax [blocks] fp32, or
            uint8 with nested_absmax and nested_quant_map; optionally quant_map [16] and the bytes of a JSON object.
            int8: weight [N, K] and SCB or weight_scb [N]; optionally weight_format. Both: optionally bias [N].
        config: the settings of this module.
        module: its name, for messages.
        k: inputs that the model has; without it they follow from the JSON object or the int8 shape.
        n: outputs that the model has; likewise.

    Raises:
        TensorMismatch: shapes, dtypes, the JSON object or the table do not fit; lists every problem with both numbers.
    """
    shapes.refuse(module, shapes.missing(tensors, ("weight",)), config.source)
    scales = _row_scales(tensors)
    if scales is not None:
        return _read_rows(tensors, config, scales, module, (n, k))
    return _read_table(tensors, config, module, (n, k))


def write(weight: Weight, config: QuantConfig, *, force: bool = False) -> dict[str, torch.Tensor]:  # noqa: ARG001
    """Write one module under the names it was read or packed with, bit for bit; the inverse of ``read``.

    Raises:
        InexactConversion: the weight is of another format; its values would have to be rounded again.
    """
    if not isinstance(weight, (TableCodes, RowCodes)):
        raise InexactConversion(
            f"cannot write {config.format.value}: the weight is stored as {weight.format.value}, and rounding it "
            "again would change it\nuse the packer on the float weight"
        )
    return dict(weight.source) | ({} if weight.bias is None else {"bias": weight.bias})


def _read_rows(
    tensors: Mapping[str, torch.Tensor], config: QuantConfig, scales: str, module: str, sizes: tuple[int | None, ...]
) -> RowCodes:
    weight = tensors["weight"]
    shapes.refuse(module, shapes.flat(tensors, ("weight",)), config.source)
    n, k = (stored if size is None else size for size, stored in zip(sizes, weight.shape, strict=True))
    rows = Side(counts="rows", needed=n, because=f"N={n}")
    columns = Side(counts="columns", needed=k, because=f"K={k}")
    each = Side(counts="entries", needed=n, because=f"N={n}")
    expected = (
        Expected(name="weight", sides=(rows, columns), dtypes=(torch.int8,)),
        Expected(name=scales, sides=(each,), dtypes=_FLOAT),
        Expected(name="bias", sides=(each,), dtypes=shapes.FLOATS, optional=True),
    )
    lines = shapes.problems(_squeezed(tensors, scales), expected)
    layout = tensors.get("weight_format")
    if layout is not None and layout.numel() == 1 and int(layout) != 0:
        lines.append(shapes.line("weight_format", "value", "0 (rows as they are)", int(layout)))
    shapes.refuse(module, lines or _unfit_values(tensors), config.source)
    return RowCodes(
        **_common(tensors, config, ROW_TYPE, module),
        scheme=Scheme(bits=8, group_size=-1, sym=True),
        k=k,
        n=n,
        row_codes=weight,
        row_scales=tensors[scales],
    )


def _unfit_values(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Return a line for each float tensor with values that are not finite; codes may be stored as floats, too."""
    return shapes.not_finite(tensors, [n for n, t in tensors.items() if n != "weight" and t.is_floating_point()])


def _read_table(
    tensors: Mapping[str, torch.Tensor], config: QuantConfig, module: str, sizes: tuple[int | None, ...]
) -> TableCodes:
    parts = {part: tensors.get(_suffix(tensors, part)) for part in _PARTS}
    state, lines = _state(tensors)
    shapes.refuse(module, lines, config.source)
    n, k = (size or said for size, said in zip(sizes, state.get("shape") or (0, 0), strict=True))
    code_type = str(state.get("quant_type") or config.code_type)
    block = int(state.get("blocksize") or (config.group_size if config.bits == 4 else BLOCK_SIZE))
    nested = Nested(
        block_size=int(state.get("nested_blocksize") or _NESTED_BLOCK), offset=float(state.get("nested_offset") or 0.0)
    )
    lines = _state_problems(tensors, state, (n, k), code_type, block)
    shapes.refuse(module, lines, config.source)
    lines = _part_problems(tensors, (n, k), block, nested) or _unfit_values(tensors)
    if not math.isfinite(nested.offset):
        lines.append(shapes.line("quant_state", "nested_offset", "a finite number", nested.offset))
    shapes.refuse(module, lines, config.source)
    table = torch.tensor(TABLES[code_type], dtype=torch.float32, device=tensors["weight"].device)
    shapes.refuse(module, _table_problems(parts["quant_map"], table, code_type), config.source)
    absmax = parts["absmax"]
    assert absmax is not None
    return TableCodes(
        **_common(tensors, config, code_type, module),
        scheme=Scheme(weight_kind=WeightKind.TABLE, bits=4, group_size=block, sym=True),
        k=k,
        n=n,
        block_size=block,
        table=table,
        stored_codes=tensors["weight"],
        stored_absmax=absmax,
        nested=nested if absmax.dtype == torch.uint8 else None,
        nested_table=parts["nested_quant_map"],
        nested_absmax=parts["nested_absmax"],
    )


def _common(tensors: Mapping[str, torch.Tensor], config: QuantConfig, code_type: str, module: str) -> dict[str, Any]:
    notes: tuple[str, ...] = ()
    if config.code_type and config.code_type != code_type:
        notes = (f"{module}: the settings say {config.code_type}, the tensors are {code_type}; the tensors decide",)
    return {
        "method": METHOD.BITSANDBYTES,
        "format": FORMAT.BITSANDBYTES,
        "bias": tensors.get("bias"),
        "source": {name: tensor for name, tensor in tensors.items() if name != "bias"},
        "code_type": code_type,
        "notes": notes,
    }


def _row_scales(tensors: Mapping[str, torch.Tensor]) -> str | None:
    return next((name for name in ("SCB", "weight_scb") if name in tensors), None)


def _squeezed(tensors: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """Read scales [N, 1] as [N]."""
    return {**tensors, name: tensors[name].squeeze(-1) if tensors[name].dim() == 2 else tensors[name]}


def _suffix(tensors: Mapping[str, torch.Tensor], part: str) -> str:
    return f"weight.{part}" if f"weight.{part}" in tensors else f"weight_{part}"


def _state(tensors: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any], list[str]]:
    """Return the JSON object, empty where there is none, and what is wrong with it."""
    name = next((name for name in _STATE if name in tensors), None)
    if name is None:
        return {}, []
    try:
        state = json.loads(bytes(tensors[name].to(torch.uint8).flatten().tolist()).decode())
        shape = state.get("shape") or ()
        usable = isinstance(state, dict) and len(shape) in (0, 2) and all(isinstance(side, int) for side in shape)
    except (ValueError, AttributeError, TypeError) as error:
        return {}, [shapes.line(name, "bytes", "a JSON object", f"{type(error).__name__}: {error}")]
    if not usable:
        return {}, [shapes.line(name, "shape", "[N, K]", state.get("shape"))]
    named = name.rpartition("__")[2] if "__" in name else ""
    said = state.get("quant_type")
    if named and said != named:
        return state, [shapes.line(name, "quant_type", named, said)]
    return state, []


def _state_problems(
    tensors: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
    sizes: tuple[int, int],
    code_type: str,
    block: int,
) -> list[str]:
    lines = []
    if not all(sizes):
        lines.append(shapes.line("quant_state", "tensor", "one with the shape [N, K]", "none"))
    if state.get("shape") and tuple(state["shape"]) != sizes:
        lines.append(shapes.line("quant_state", "shape", list(sizes), state["shape"]))
    if code_type not in TABLE_TYPES:
        lines.append(shapes.line("quant_state", "quant_type", " or ".join(TABLE_TYPES), code_type or "none"))
    if block not in BLOCK_SIZES:
        lines.append(shapes.line("quant_state", "blocksize", f"one of {', '.join(map(str, BLOCK_SIZES))}", block))
    absmax = tensors.get(_suffix(tensors, "absmax"))
    if absmax is not None and absmax.dtype == torch.uint8 and state.get("nested_offset") is None:
        lines.append(shapes.line("quant_state", "nested_offset", "a number", "none"))
    return lines


def _part_problems(
    tensors: Mapping[str, torch.Tensor], sizes: tuple[int, int], block: int, nested: Nested
) -> list[str]:
    """Return what is wrong with bytes, scales and tables; the codes may have any shape that holds their bytes."""
    count = math.prod(sizes)
    lines = []
    weight = tensors["weight"]
    found = weight.numel() * weight.element_size()
    if found != -(-count // 2):
        lines.append(shapes.line("weight", "bytes", f"{-(-count // 2)} (N*K={count})", found))
    if weight.dtype not in _STORAGE:
        lines.append(shapes.line("weight", "dtype", "uint8, or a type it is stored as", str(weight.dtype)[6:]))
    absmax = _suffix(tensors, "absmax")
    blocks = -(-count // block)
    coded = absmax in tensors and tensors[absmax].dtype == torch.uint8
    entries = Side(counts="blocks", needed=blocks, because=f"N*K={count}, blocks of {block}")
    outer = Side(counts="blocks", needed=-(-blocks // nested.block_size), because=f"{blocks} in blocks of blocks")
    values = Side(counts="values", needed=16, because="4 bits")
    nested_values = Side(counts="values", needed=256, because="8 bits")
    each = Side(counts="entries", needed=sizes[0], because=f"N={sizes[0]}")
    expected = [
        Expected(name=absmax, sides=(entries,), dtypes=(torch.float32, torch.uint8)),
        Expected(name=_suffix(tensors, "quant_map"), sides=(values,), dtypes=shapes.FLOATS, optional=True),
        Expected(name="bias", sides=(each,), dtypes=shapes.FLOATS, optional=True),
    ]
    if coded:
        expected += [
            Expected(name=_suffix(tensors, "nested_absmax"), sides=(outer,), dtypes=_FLOAT),
            Expected(name=_suffix(tensors, "nested_quant_map"), sides=(nested_values,), dtypes=_FLOAT),
        ]
    return lines + shapes.problems(tensors, expected)


def _table_problems(stored: torch.Tensor | None, table: torch.Tensor, code_type: str) -> list[str]:
    """Return a line when the stored table is not that of the type; libraries decode by the type alone."""
    if stored is None:
        return []
    far = (stored.to(torch.float32) - table).abs().nan_to_num(nan=1.0)
    if float(far.max()) <= _SAME_TABLE:
        return []
    code = int(far.argmax())
    return [shapes.line("quant_map", f"code {code}", f"{float(table[code]):.7g} ({code_type})", float(stored[code]))]
