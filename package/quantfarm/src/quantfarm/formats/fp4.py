"""MXFP4 and NVFP4: 4-bit floats (E2M1) with a scale for every 32 or 16 inputs (formats, section 12).

MXFP4 has powers of two as scales (e8m0). NVFP4 has e4m3 scales and one fp32 scale over all, which divides in files of
compressed-tensors (``weight_global_scale``) and multiplies in those of modelopt (``weight_scale_2``).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme, WeightKind
from quantfarm.errors import InexactConversion
from quantfarm.formats import shapes
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.fp8 import bad_scales, block_amax
from quantfarm.formats.packing_floats import e2m1_pairs, encode_e2m1, pack_nibbles
from quantfarm.formats.settings.fp8 import GROUPS, refused_whole
from quantfarm.formats.shapes import Expected, Side
from quantfarm.formats.weights.floats import NarrowFloats

_CODES = ("weight_packed", "weight")
_WHOLE = ("weight_global_scale", "weight_scale_2")
_SCALE_DTYPES = {
    FORMAT.MXFP4: (torch.uint8, torch.float8_e8m0fnu),
    FORMAT.NVFP4: (torch.float8_e4m3fn,),
}
_LARGEST_CODE, _LARGEST_SCALE = 6.0, 448.0


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
        tensors: by suffix: weight_packed (or weight) uint8 [N, K/2]; weight_scale [N, K/32] as bytes or e8m0 (MXFP4)
            or [N, K/16] e4m3 (NVFP4); for NVFP4 weight_global_scale or weight_scale_2, one fp32; optionally bias [N],
            and input_global_scale or input_scale, which are kept.
        config: the settings of this module (``QuantConfig.for_module``).
        module: its name, for messages.
        k: inputs that the model has; without it they follow from the codes.
        n: outputs that the model has; without it they follow from the codes.

    Raises:
        TensorMismatch: shapes, dtypes or values do not fit; lists every problem with both numbers.
        ConfigError: nothing says whether weight_global_scale multiplies or divides.
    """
    needs_whole = config.format is FORMAT.NVFP4
    codes = [name for name in _CODES if name in tensors]
    whole = [name for name in _WHOLE if name in tensors]
    lines = shapes.missing(tensors, ("weight_scale",))
    if len(codes) != 1:
        lines.append(shapes.line("weight_packed", "tensor", f"one of {', '.join(_CODES)}", ", ".join(codes) or "none"))
    if len(whole) != needs_whole:
        needed = f"one of {', '.join(_WHOLE)}" if needs_whole else "none beside mxfp4 scales"
        lines.append(shapes.line(_WHOLE[0], "tensor", needed, ", ".join(whole) or "none"))
    shapes.refuse(module, lines, config.source)
    shapes.refuse(module, shapes.flat(tensors, codes), config.source)
    n = tensors[codes[0]].shape[0] if n is None else n
    k = 2 * tensors[codes[0]].shape[1] if k is None else k
    shapes.refuse(module, _problems(tensors, codes[0], whole, config.format, (n, k)), config.source)
    scale = tensors["weight_scale"]
    values = scale.view(torch.float8_e8m0fnu) if scale.dtype is torch.uint8 else scale
    bad = bad_scales("weight_scale", values, zero=True)
    shapes.refuse(module, bad + [line for name in whole for line in bad_scales(name, tensors[name])], config.source)
    divides = bool(whole) and _whole_divides(whole[0], config, module)
    source = {suffix: tensor for suffix, tensor in tensors.items() if suffix != "bias"}
    return _weight(source, (codes[0], *whole), config.format, whole_divides=divides, bias=tensors.get("bias"))


def write(weight: NarrowFloats, config: QuantConfig, *, force: bool = False) -> dict[str, torch.Tensor]:  # noqa: ARG001 - there is one exact form
    """Return the tensors of a module as they were read or packed.

    Raises:
        InexactConversion: the settings ask for the other direction of the scale over all, which would round it again.
    """
    wanted, held = config.details.get("weight_global_scale_semantics"), "divide" if weight.whole_divides else "multiply"
    if weight.whole is not None and wanted not in (None, held):
        raise InexactConversion(f"cannot write nvfp4: weight_global_scale_semantics: needs {held}, got {wanted}")
    return dict(weight.source) | ({} if weight.bias is None else {"bias": weight.bias})


def pack(weight: torch.Tensor, config: QuantConfig, *, bias: torch.Tensor | None = None) -> NarrowFloats:
    """Round a weight [N, K] to the nearest E2M1 codes; K is a multiple of the format's group.

    MXFP4: the scale of a group is 2^(floor(log2 amax) - 2), so its largest code is 4 or 6. NVFP4: the global divisor is
    448 * 6 / amax of the tensor, a group's scale is its amax / 6 times that, rounded to e4m3; codes are rounded with
    the scales as stored.

    Raises:
        InexactConversion: values that are not finite, or a K that the groups do not divide.
    """
    group, w = GROUPS[config.format], weight.detach().to(torch.float32)
    k = w.shape[1]
    if k % group or not bool(torch.isfinite(w).all()):
        raise InexactConversion(
            f"cannot quantize: needs finite weights and K a multiple of {group}, got K={k} and "
            f"{int((~torch.isfinite(w)).sum())} values that are not finite"
        )
    amax, form = block_amax(w, (1, group)), config.format
    divides = form is FORMAT.NVFP4 and config.details.get("weight_global_scale_semantics", "divide") == "divide"
    parts, effective = _powers_of_two(amax) if form is FORMAT.MXFP4 else _two_levels(amax, divides=divides)
    spread = effective.repeat_interleave(group, 1)
    # A group whose scale is 0 decodes to 0 whatever its codes are.
    codes = encode_e2m1(torch.where(spread > 0, w / spread, 0.0))
    names = ("weight_packed", *(name for name in _WHOLE if name in parts))
    return _weight({"weight_packed": pack_nibbles(codes), **parts}, names, form, whole_divides=divides, bias=bias)


def _powers_of_two(amax: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the scales of MXFP4 as stored and as fp32; ``frexp`` gives the floor of log2 plus one."""
    exponent = torch.frexp(amax).exponent - 3
    stored = torch.where(amax > 0, (exponent + 127).clamp(0, 254), 0).to(torch.uint8)
    return {"weight_scale": stored}, stored.view(torch.float8_e8m0fnu).to(torch.float32)


def _two_levels(amax: torch.Tensor, *, divides: bool) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the scales of NVFP4 as stored and as fp32."""
    largest = amax.max()
    whole = torch.where(largest > 0, _LARGEST_SCALE * _LARGEST_CODE / largest, 1.0).reshape(1)
    whole = whole if divides else 1 / whole
    wanted = amax / _LARGEST_CODE
    narrow = (wanted * whole if divides else wanted / whole).clamp_max(_LARGEST_SCALE).to(torch.float8_e4m3fn)
    effective = narrow.to(torch.float32)
    parts = {"weight_scale": narrow, "weight_global_scale": whole}
    return parts, effective / whole if divides else effective * whole


def _weight(
    source: Mapping[str, torch.Tensor],
    names: tuple[str, ...],
    form: FORMAT,
    *,
    whole_divides: bool,
    bias: torch.Tensor | None,
) -> NarrowFloats:
    """Build the weight; ``names`` are the tensor of codes and, for NVFP4, that of the scale over all."""
    codes, group = source[names[0]], GROUPS[form]
    scale = source["weight_scale"]
    n, k = codes.shape[0], 2 * codes.shape[1]
    return NarrowFloats(
        method=METHOD.FP8,
        format=form,
        scheme=Scheme(weight_kind=WeightKind.FLOAT, bits=4, group_size=group, sym=True),
        k=k,
        n=n,
        bias=bias,
        source=source,
        codes=codes,
        table=e2m1_pairs().to(codes.device),
        scales=scale.view(torch.float8_e8m0fnu) if scale.dtype is torch.uint8 else scale,
        block=(1, group),
        whole=source[names[1]] if len(names) > 1 else None,
        whole_divides=whole_divides,
    )


def _whole_divides(name: str, config: QuantConfig, module: str) -> bool:
    if name != "weight_global_scale":
        return False
    said = config.details.get("weight_global_scale_semantics")
    if said is None:
        raise refused_whole(module, config.source)
    return bool(said == "divide")


def _problems(
    tensors: Mapping[str, torch.Tensor], codes: str, whole: list[str], form: FORMAT, sizes: tuple[int, int]
) -> list[str]:
    (n, k), group = sizes, GROUPS[form]
    rows = Side(counts="rows", needed=n, because=f"N={n}")
    packed = Side(counts="columns", needed=-(-k // 2), because=f"K={k}, two codes a byte")
    groups = Side(counts="groups", needed=-(-k // group), because=f"K={k}, {form.value} has groups of {group}")
    entries = Side(counts="entries", needed=n, because=f"N={n}")
    lines = shapes.problems(
        tensors,
        (
            Expected(name=codes, sides=(rows, packed), dtypes=(torch.uint8,)),
            Expected(name="weight_scale", sides=(rows, groups), dtypes=_SCALE_DTYPES[form]),
            Expected(name="bias", sides=(entries,), dtypes=shapes.FLOATS, optional=True),
        ),
    )
    if k % group:
        lines.append(shapes.line(codes, "columns", f"K a multiple of {group} ({form.value})", f"K={k}"))
    lines += [
        shapes.line(name, "shape", "one number", list(tensors[name].shape))
        for name in whole
        if tensors[name].numel() != 1
    ]
    kept = ("input_global_scale", "input_scale")
    return lines + shapes.wrong_dtypes(tensors, dict.fromkeys((*whole, *kept), shapes.FLOATS))
