"""EXL3: tensors of a checkpoint <-> TrellisWeight (formats, section 13).

The stored words are kept as they are. There is no packer from floats: the symbols of a trellis come from a search over
all paths, not from rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import InexactConversion
from quantfarm.formats import shapes
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packing_codebooks import TILE, unpack_signs
from quantfarm.formats.settings.exl3 import MULTIPLIERS, Codebook, multiplier_of, scheme, storage_of
from quantfarm.formats.shapes import Expected, Side
from quantfarm.formats.weights.base import Weight
from quantfarm.formats.weights.trellis import BLOCK, TrellisWeight

_TILE_WORDS = [TILE * bits for bits in range(1, 9)]
_SHORTS = (torch.int16,)
_MARKS = (Codebook.MCG, Codebook.MUL1)
_MARK_TYPES = (torch.int32, torch.uint32)
_WORD = 1 << 32


def read(
    tensors: Mapping[str, torch.Tensor],
    config: QuantConfig,
    *,
    module: str,
    k: int | None = None,
    n: int | None = None,
) -> TrellisWeight:
    """Read one module.

    Args:
        tensors: by suffix: trellis [K/16, N/16, 16*b] int16, suh [K] and svh [N] floats (or su [K/16], sv [N/16] int16,
            packed signs), mcg or mul1 [] where that codebook made the file, and optionally bias [N].
        config: the settings of the checkpoint; what they say about this module must hold.
        module: its name.
        k: inputs that the model has; without it they follow from the trellis.
        n: outputs that the model has; without it they follow from the trellis.

    Raises:
        TensorMismatch: shapes, dtypes, codebook marks or settings do not fit, or a scale is not finite; lists every
            problem with both numbers. Files of the earliest writers, which have a tensor ``scale``, are refused.
    """
    shapes.refuse(module, shapes.missing(tensors, ("trellis",)), config.source)
    trellis = tensors["trellis"]
    if trellis.dim() != 3:
        line = shapes.line("trellis", "shape", "3 sides [K/16, N/16, 16 * bits]", list(trellis.shape))
        shapes.refuse(module, [line], config.source)
    k = trellis.shape[0] * TILE if k is None else k
    n = trellis.shape[1] * TILE if n is None else n
    details = config.details
    lines = [
        *_shape_lines(tensors, k, n),
        *_mark_lines(tensors, details, module),
        *_storage_lines(tensors, details, module),
    ]
    shapes.refuse(module, lines, config.source)
    scales = [_scales(tensors, *names) for names in (("suh", "su"), ("svh", "sv"))]
    shapes.refuse(module, [*_not_finite("suh", scales[0]), *_not_finite("svh", scales[1])], config.source)
    return TrellisWeight(
        method=METHOD.EXL3,
        format=FORMAT.EXL3,
        scheme=scheme(trellis.shape[2] // TILE),
        k=k,
        n=n,
        bias=tensors.get("bias"),
        source={name: tensor for name, tensor in tensors.items() if name != "bias"},
        trellis=trellis,
        input_scales=scales[0],
        output_scales=scales[1],
        codebook=_codebook(tensors),
    )


def write(weight: Weight, config: QuantConfig, *, force: bool = False) -> dict[str, torch.Tensor]:
    """Write a module that was read as EXL3: the stored tensors, bit for bit.

    Raises:
        InexactConversion: the weight has no trellis; ``force`` changes nothing in that.
    """
    del config, force
    if not isinstance(weight, TrellisWeight):
        raise InexactConversion(
            f"cannot write {FORMAT.EXL3.value}: the symbols of a trellis come from a search, not from rounding\n"
            f"  weight: needs one read from {FORMAT.EXL3.value}, got {weight.format.value}"
        )
    return dict(weight.source) | ({} if weight.bias is None else {"bias": weight.bias})


def _codebook(tensors: Mapping[str, torch.Tensor]) -> Codebook:
    return next((mark for mark in _MARKS if mark.value in tensors), Codebook.THREE_INST)


def _scales(tensors: Mapping[str, torch.Tensor], plain: str, packed: str) -> torch.Tensor:
    return tensors[plain] if plain in tensors else unpack_signs(tensors[packed])


def _shape_lines(tensors: Mapping[str, torch.Tensor], k: int, n: int) -> Iterator[str]:
    """Check what is there against K and N; the words of a tile must be those of one width."""
    words = tensors["trellis"].shape[2]
    if words not in _TILE_WORDS:
        yield shapes.line("trellis", "words a tile", f"one of {', '.join(map(str, _TILE_WORDS))}", words)
    tile = Side(counts="words a tile", needed=words, because="its own width")
    expected = [
        Expected(name="trellis", sides=(_side("K", k, TILE), _side("N", n, TILE), tile), dtypes=_SHORTS),
        Expected(name="bias", sides=(_side("N", n),), dtypes=shapes.FLOATS, optional=True),
        *(Expected(name=mark.value, sides=(), dtypes=_MARK_TYPES, optional=True) for mark in _MARKS),
    ]
    for plain, packed, name, size in (("suh", "su", "K", k), ("svh", "sv", "N", n)):
        if size % BLOCK:
            yield shapes.line("trellis", name, f"a multiple of {BLOCK}", size)
        if (plain in tensors) is (packed in tensors):
            yield shapes.line(plain, "tensor", f"one of {plain} and {packed}", "both" if plain in tensors else "none")
        expected += [
            Expected(name=plain, sides=(_side(name, size),), dtypes=shapes.FLOATS, optional=True),
            Expected(name=packed, sides=(_side(name, size, TILE),), dtypes=_SHORTS, optional=True),
        ]
    yield from shapes.problems(tensors, expected)
    if "scale" in tensors:
        yield shapes.line("scale", "tensor", "none", "one: files of the earliest writers have to be made again")
    yield from (shapes.line(name, "values", "some", "none (meta tensor)") for name, t in tensors.items() if t.is_meta)


def _side(name: str, size: int, unit: int = 1) -> Side:
    return Side(counts="entries" if unit == 1 else "tiles", needed=-(-size // unit), because=f"{name}={size}")


def _mark_lines(tensors: Mapping[str, torch.Tensor], details: Mapping[str, Any], module: str) -> Iterator[str]:
    """Check that marks, their values and the settings name one and the same codebook."""
    found = [mark for mark in _MARKS if mark.value in tensors]
    if len(found) > 1:
        yield shapes.line("mcg, mul1", "tensor", "at most one of the two", "both")
        return
    for mark in found:
        value = tensors[mark.value]
        if value.dim() == 0 and not value.is_meta and int(value) % _WORD != MULTIPLIERS[mark]:
            yield shapes.line(mark.value, "value", f"{MULTIPLIERS[mark]:#x}", f"{int(value) % _WORD:#x}")
    codebook, stated = _codebook(tensors), details.get("codebook")
    if stated is not None and stated != codebook.value:
        yield shapes.line(stated, "codebook", f"{stated} (the settings)", f"{codebook.value} (the tensors)")
    multiplier = multiplier_of(details, module)
    if multiplier and (codebook is not Codebook.MCG or int(multiplier) % _WORD != MULTIPLIERS[Codebook.MCG]):
        needs = f"{MULTIPLIERS[Codebook.MCG]:#x} and a tensor mcg"
        yield shapes.line("mcg", "mcg_multiplier", needs, f"{int(multiplier) % _WORD:#x} with {codebook.value}")


def _storage_lines(tensors: Mapping[str, torch.Tensor], details: Mapping[str, Any], module: str) -> Iterator[str]:
    """Check the tensors against the list in the settings, where it has them."""
    for name, stated in storage_of(details, module).items():
        if name not in tensors:
            yield shapes.line(name, "tensor", f"one (tensor_storage of {module})", "none")
            continue
        shape, dtype = list(tensors[name].shape), str(tensors[name].dtype).removeprefix("torch.")
        if "shape" in stated and list(stated["shape"]) != shape:
            yield shapes.line(name, "shape", f"{list(stated['shape'])} (tensor_storage)", shape)
        if "dtype" in stated and str(stated["dtype"]).removeprefix("torch.") != dtype:
            yield shapes.line(name, "dtype", f"{stated['dtype']} (tensor_storage)", dtype)


def _not_finite(name: str, scales: torch.Tensor) -> list[str]:
    bad = int((~torch.isfinite(scales)).sum())
    return [shapes.line(name, "values", "finite numbers", f"{bad} that are not")] if bad else []
