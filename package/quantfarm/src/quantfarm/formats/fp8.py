"""FP8: 8-bit float weights with a scale for the tensor, for a row or for a block (formats, section 11).

The codes stay what they are. The scale is called ``weight_scale_inv``, ``weight_scale`` (compressed-tensors) or
``scale`` (DeepSeek V4); whether it multiplies or divides is no matter of values, see ``settings/fp8.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme, WeightKind
from quantfarm.errors import InexactConversion
from quantfarm.formats import shapes
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packing_floats import FLOAT8, float8_table
from quantfarm.formats.settings.fp8 import refused_direction
from quantfarm.formats.shapes import Expected, Side
from quantfarm.formats.weights.floats import NarrowFloats

SCALE_NAMES = ("weight_scale_inv", "weight_scale", "scale")
_UNCLEAR = "weight_scale_inv"
_SCALE_DTYPES = (*shapes.FLOATS, torch.float8_e8m0fnu)
_NAMES = {dtype: name for name, dtype in FLOAT8.items()}

Shape = tuple[int, ...]
Block = tuple[int, int]


def read(
    tensors: Mapping[str, torch.Tensor],
    config: QuantConfig,
    *,
    module: str,
    k: int | None = None,
    n: int | None = None,
) -> NarrowFloats:
    """Read one module.

    Args:
        tensors: by suffix: weight [N, K] of a float8 dtype; one of weight_scale_inv, weight_scale or scale, of shape
            [], [1] or [1, 1] (tensor), [N] or [N, 1] (row), [ceil(N/br), ceil(K/bc)] or the same with a side of 1
            after each (block), fp32, fp16, bf16 or e8m0; optionally bias [N] and input_scale, which is kept.
        config: the settings of this module (``QuantConfig.for_module``).
        module: its name, for messages.
        k: inputs that the model has; without it they follow from the weight.
        n: outputs that the model has; without it they follow from the weight.

    Raises:
        TensorMismatch: shapes, dtypes or values do not fit; lists every problem with both numbers.
        ConfigError: nothing says whether the scale multiplies or divides.
    """
    found = [name for name in SCALE_NAMES if name in tensors]
    lines = shapes.missing(tensors, ("weight",))
    if len(found) != 1:
        lines.append(shapes.line("scale", "tensor", f"one of {', '.join(SCALE_NAMES)}", ", ".join(found) or "none"))
    shapes.refuse(module, lines, config.source)
    shapes.refuse(module, shapes.flat(tensors, ("weight",)), config.source)
    weight, (name,) = tensors["weight"], found
    n = weight.shape[0] if n is None else n
    k = weight.shape[1] if k is None else k
    block, problem = _block_of(tensors[name], name, config, (n, k))
    shapes.refuse(module, [*_problems(tensors, name, config, (n, k)), *problem], config.source)
    divides = _divides(name, config, module)
    shapes.refuse(module, _bad_values(weight, name, tensors[name]), config.source)
    source = {suffix: tensor for suffix, tensor in tensors.items() if suffix != "bias"}
    return _weight(source, name, block, divides=divides, bias=tensors.get("bias"))


def write(weight: NarrowFloats, config: QuantConfig, *, force: bool = False) -> dict[str, torch.Tensor]:  # noqa: ARG001 - there is one exact form
    """Return the tensors of a module as they were read or packed.

    Raises:
        InexactConversion: the settings ask for the other direction of the scale, which would round it again.
    """
    wanted, held = config.details.get("weight_scale_semantics"), "inverse" if weight.divides else "multiply"
    if wanted not in (None, held):
        raise InexactConversion(f"cannot write fp8: weight_scale_semantics: needs {held}, got {wanted}")
    return dict(weight.source) | ({} if weight.bias is None else {"bias": weight.bias})


def pack(weight: torch.Tensor, config: QuantConfig, *, bias: torch.Tensor | None = None) -> NarrowFloats:
    """Round a weight [N, K] of any float dtype to the nearest float8, with the scales of ``config.details``.

    With a the largest magnitude of a block and m that of the dtype, a divisor is m / a and a multiplier a / m, 1 where
    a is 0; codes are cast half to even after clamping to m. Blocks at the edges may be partial.

    Raises:
        InexactConversion: the weight has values that are not finite, or the dtype only has powers of two.
    """
    w = weight.detach().to(torch.float32)
    kind = FLOAT8[config.code_type or "float8_e4m3fn"]
    if not bool(torch.isfinite(w).all()):
        raise InexactConversion(f"cannot quantize: needs finite weights, got {int((~torch.isfinite(w)).sum())} others")
    if kind is torch.float8_e8m0fnu:
        raise InexactConversion("cannot quantize: float8_e8m0fnu has neither signs nor zero, it can only be read")
    divides = config.details.get("weight_scale_semantics", "inverse") == "inverse"
    n, k = w.shape
    size: Sequence[int] = config.details.get("weight_block_size") or ()
    method = config.details.get("weight_scale_method", "block" if size else "row")
    block: Block = {"tensor": (n, k), "row": (1, k)}.get(method) or (size[0], size[1])
    amax, largest = block_amax(w, block), torch.finfo(kind).max
    stored = largest / amax if divides else amax / largest
    stored = torch.where(amax == 0, torch.ones_like(stored), stored)
    spread = stored.repeat_interleave(block[0], 0)[:n].repeat_interleave(block[1], 1)[:, :k]
    codes = (w * spread if divides else w / spread).clamp(-largest, largest).to(kind)
    shape: Shape = {"tensor": (), "row": (n,)}.get(method, tuple(stored.shape))
    source = {"weight": codes, "weight_scale_inv": stored.reshape(shape)}
    return _weight(source, "weight_scale_inv", block, divides=divides, bias=bias)


def block_amax(w: torch.Tensor, block: Block) -> torch.Tensor:
    """Return the largest magnitude of every block of [N, K], fp32 [ceil(N/br), ceil(K/bc)]."""
    (n, k), (br, bc) = w.shape, block
    padded = torch.nn.functional.pad(w.abs(), (0, -k % bc, 0, -n % br))
    return padded.view(-(-n // br), br, -(-k // bc), bc).amax((1, 3))


def _weight(
    source: Mapping[str, torch.Tensor], name: str, block: Block, *, divides: bool, bias: torch.Tensor | None
) -> NarrowFloats:
    codes = source["weight"]
    n, k = codes.shape
    kind = _NAMES[codes.dtype]
    return NarrowFloats(
        method=METHOD.FP8,
        format=FORMAT.FP8,
        scheme=Scheme(weight_kind=WeightKind.FLOAT, bits=8, group_size=-1, sym=True),
        k=k,
        n=n,
        bias=bias,
        source=source,
        code_type=kind,
        codes=codes,
        table=float8_table(kind).to(codes.device),
        scales=source[name].reshape(-(-n // block[0]), -(-k // block[1])),
        block=block,
        divides=divides,
    )


def _divides(name: str, config: QuantConfig, module: str) -> bool:
    said = config.details.get("weight_scale_semantics")
    if said is None and name == _UNCLEAR:
        raise refused_direction(module, config.source)
    return said == "inverse"


def _block_of(scale: torch.Tensor, name: str, config: QuantConfig, sizes: Block) -> tuple[Block, list[str]]:
    """Return (rows, columns) of a block by the shape of the scale, or the line that lists the accepted shapes."""
    n, k = sizes
    accepted: dict[str, tuple[Block, tuple[Shape, ...]]] = {
        "tensor": (sizes, ((), (1,), (1, 1))),
        "row": ((1, k), ((n,), (n, 1))),
    }
    size: Sequence[int] = config.details.get("weight_block_size") or ()
    if size:
        br, bc = size
        rows, columns = -(-n // br), -(-k // bc)
        accepted["block"] = ((br, bc), ((rows, columns), (rows, 1, columns, 1)))
    only = config.details.get("weight_scale_method")
    asked = {method: entry for method, entry in accepted.items() if only in (None, method)}
    for block, known in asked.values():
        if tuple(scale.shape) in known:
            return block, []
    size_text = f" {'x'.join(map(str, size))}"
    listed = [
        f"{' or '.join(str(list(shape)) for shape in known)} ({method}{size_text if method == 'block' else ''})"
        for method, (_, known) in asked.items()
    ]
    hint = "" if size else "; blocks need weight_block_size"
    return sizes, [shapes.line(name, "shape", f"{', '.join(listed)} for N={n}, K={k}{hint}", list(scale.shape))]


def _problems(tensors: Mapping[str, torch.Tensor], name: str, config: QuantConfig, sizes: Block) -> Sequence[str]:
    n, k = sizes
    dtypes = (FLOAT8[config.code_type],) if config.code_type else tuple(FLOAT8.values())
    rows, columns = Side(counts="rows", needed=n, because=f"N={n}"), Side(counts="columns", needed=k, because=f"K={k}")
    entries = Side(counts="entries", needed=n, because=f"N={n}")
    lines = shapes.problems(
        tensors,
        (
            Expected(name="weight", sides=(rows, columns), dtypes=dtypes),
            Expected(name="bias", sides=(entries,), dtypes=shapes.FLOATS, optional=True),
        ),
    )
    return [*lines, *shapes.wrong_dtypes(tensors, {name: _SCALE_DTYPES, "input_scale": shapes.FLOATS})]


def _bad_values(weight: torch.Tensor, name: str, scale: torch.Tensor) -> list[str]:
    """Return a line for codes that are no number and one for scales that are none or zero: such a block is lost."""
    lines = []
    table = float8_table(_NAMES[weight.dtype])
    bad = [code for code in range(256) if not bool(torch.isfinite(table[code]))]
    stored = weight.view(torch.uint8)
    if lost := sum(int((stored == code).sum()) for code in bad):
        lines.append(shapes.line("weight", "values", "finite numbers", f"{lost} codes that are NaN or infinite"))
    return lines + bad_scales(name, scale)


def bad_scales(name: str, scale: torch.Tensor, *, zero: bool = False) -> list[str]:
    """Return a line when scales are not finite, or are zero unless ``zero`` allows it."""
    wide = scale.to(torch.float32)
    lost = int((~torch.isfinite(wide)).sum())
    none = 0 if zero else int((wide == 0).sum())
    found = [
        text for count, text in ((lost, f"{lost} that are NaN or infinite"), (none, f"{none} that are 0")) if count
    ]
    needed = "finite numbers" if zero else "finite numbers other than 0"
    return [shapes.line(name, "values", needed, f"{' and '.join(found)} of {scale.numel()}")] if found else []
