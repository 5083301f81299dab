"""GPTQ, GPTQ_V2 and GPTQ_P: tensors of a checkpoint <-> QuantTensor (formats, sections 1 to 3).

2, 4 and 8 bits: codes packed down the rows, zero points across columns; 3 bits: one continuous stream of 32 codes in
3 words. In all four widths the stored qweight is the canonical stream of ``QuantTensor.codes`` as it is. GPTQ_P lays
the bits of 32 codes into planes, which turn into the stream and back exactly. GPTQ stores zero points minus one, the
other two store them true. The legacy label MARLIN has the tensors of GPTQ.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme
from quantfarm.errors import InexactConversion
from quantfarm.formats import shapes, stored_codes, zeros
from quantfarm.formats.config import QuantConfig, ZeroRule
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.formats.settings.affine import refuse_native
from quantfarm.formats.shapes import Expected, Side
from quantfarm.formats.table import find

_MATRICES = ("qweight", "qzeros", "scales")
_WORD = 32


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
        tensors: by suffix: qweight [ceil(K*bits/32), N] int32, qzeros [G, ceil(N*bits/32)] int32,
            scales [G, N] fp16, bf16 or fp32, and optionally g_idx [K], bias [N].
        config: the settings of this module (``QuantConfig.for_module``).
        module: its name, for messages.
        k: inputs that the model has; without it they follow from g_idx or qweight.
        n: outputs that the model has; without it they follow from qweight.

    Raises:
        TensorMismatch: shapes, dtypes or group indices do not fit; lists every problem with both numbers.
    """
    refuse_native(tensors, module)
    shapes.refuse(module, shapes.missing(tensors, _MATRICES), config.source)
    shapes.refuse(module, shapes.flat(tensors, _MATRICES), config.source)
    k = _inputs(tensors, config.bits) if k is None else k
    n = tensors["qweight"].shape[1] if n is None else n
    lines = shapes.problems(tensors, _expected(config, k, n))
    lines += [shapes.line(name, side, f"a multiple of {d}", size) for name, side, d, size in _sides(config, k, n)]
    if config.desc_act and "g_idx" not in tensors:
        lines.append(shapes.line("g_idx", "tensor", f"[{k}] (desc_act is true)", "none"))
    shapes.refuse(module, lines, config.source)

    shapes.refuse(module, shapes.not_finite(tensors, ("scales", "bias")), config.source)

    layout = stored_codes.layout_of(config.method, config.format)
    groups = tensors["scales"].shape[0]
    g_idx, notes = _group_index(tensors.get("g_idx"), config, groups, module)
    points, zero_notes = _zero_points(tensors["qzeros"], config, n)
    return QuantTensor(
        method=METHOD.GPTQ,
        format=config.format,
        scheme=Scheme(
            bits=config.bits,
            group_size=config.group_size,
            sym=zeros.symmetric(points, config.bits),
            act_order=g_idx is not None,
        ),
        k=k,
        n=n,
        codes=stored_codes.to_stream(tensors["qweight"], layout, bits=config.bits, k=k),
        scales=tensors["scales"],
        zeros=points,
        g_idx=g_idx,
        bias=tensors.get("bias"),
        source={name: tensor for name, tensor in tensors.items() if name != "qweight"},
        codes_to_source=stored_codes.way_back(layout, bits=config.bits, k=k),
        notes=tuple(f"{module}: {note}" for note in (*notes, *zero_notes)),
    )


def write(tensor: QuantTensor, config: QuantConfig, *, force: bool = False) -> dict[str, torch.Tensor]:
    """Write one module as ``config.format`` says; the inverse of ``read``.

    GPTQ zero points are stored by ``config.zeros_rule``; settings that do not name a word-wise writer store per field.

    Raises:
        InexactConversion: an asymmetric tensor has a zero point of 0, which readers of GPTQ decode in different ways
            (``force`` writes it all the same), a zero point is no integer or does not fit into a field, or the layout
            has no such width or shape.
        ValueError: the codes are held by a kernel's layout.
    """
    codes, bits = tensor.held_codes(), tensor.scheme.bits
    shapes.refuse_writing(config.format, _obstacles(tensor, config))
    tensor = zeros.with_integers(tensor, rounded=force)
    zeros.check_range(tensor.zeros, bits)
    layout = stored_codes.layout_of(config.method, config.format)
    if layout is FORMAT.GPTQ:
        if not force:
            _refuse_zero_of_zero(tensor)
        words = zeros.to_v1(tensor.zeros, bits, word_wise=config.zeros_rule is ZeroRule.WORD_WISE)
    else:
        words = zeros.to_words(tensor.zeros, bits, layout)
    written = {
        **stored_codes.way_back(layout, bits=bits, k=tensor.k)(codes),
        "qzeros": words,
        "scales": tensor.scales,
        **_index(tensor),
    }
    return written | ({} if tensor.bias is None else {"bias": tensor.bias})


def _inputs(tensors: Mapping[str, torch.Tensor], bits: int) -> int:
    g_idx = tensors.get("g_idx")
    return tensors["qweight"].shape[0] * _WORD // bits if g_idx is None else g_idx.numel()


def _expected(config: QuantConfig, k: int, n: int) -> tuple[Expected, ...]:
    size = k if config.group_size == -1 else config.group_size
    groups = Side(counts="groups", needed=-(-k // size), because=f"K={k}, group_size={config.group_size}")
    columns = Side(counts="columns", needed=n, because=f"N={n}")
    rows = Side(counts="rows", needed=-(-k * config.bits // _WORD), because=f"K={k}, {config.bits} bits")
    zero_words = Side(counts="columns", needed=-(-n * config.bits // _WORD), because=f"N={n}, {config.bits} bits")
    inputs = Side(counts="entries", needed=k, because=f"K={k}")
    entries = Side(counts="entries", needed=n, because=f"N={n}")
    return (
        Expected(name="qweight", sides=(rows, columns), dtypes=shapes.WORDS),
        Expected(name="qzeros", sides=(groups, zero_words), dtypes=shapes.WORDS),
        Expected(name="scales", sides=(groups, columns), dtypes=shapes.FLOATS),
        Expected(name="g_idx", sides=(inputs,), dtypes=shapes.INDICES, optional=True),
        Expected(name="bias", sides=(entries,), dtypes=shapes.FLOATS, optional=True),
    )


def _sides(config: QuantConfig, k: int, n: int) -> list[tuple[str, str, int, int]]:
    """Return (tensor, side, needed divisor, size) of what the format can not hold: GPTQ_P takes 32 codes at a time."""
    row = find(config.method, config.format)
    both = (("qweight", "K", row.k_multiple, k), ("qzeros", "N", row.n_multiple, n))
    return [side for side in both if side[3] % side[2]]


def _obstacles(tensor: QuantTensor, config: QuantConfig) -> list[str]:
    """Return what of the tensor the format can not hold, a line each."""
    held, bits = find(config.method, config.format).bits, tensor.scheme.bits
    lines = [] if bits in held else [f"bits: needs one of {', '.join(map(str, held))}, got {bits}"]
    sides = _sides(config, tensor.k, tensor.n)
    return [*lines, *(f"{side}: needs a multiple of {divisor}, got {size}" for _, side, divisor, size in sides)]


def _group_index(
    stored: torch.Tensor | None, config: QuantConfig, groups: int, module: str
) -> tuple[torch.Tensor | None, list[str]]:
    """Return the index when it says more than ``k // group_size``; negative entries count from the last group."""
    if stored is None:
        return None, []
    index = stored.to(torch.int32)
    index = torch.where(index < 0, index + groups, index)
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= groups:
        found = f"{int(stored.min())} to {int(stored.max())}"
        shapes.refuse(module, [shapes.line("g_idx", "values", f"{-groups} to {groups - 1}", found)], config.source)
    if groups > 1 and low == high:
        # Such an index was made and never filled; taking it at its word would scale every input by one group.
        needs = f"the group of each input, 0 to {groups - 1}"
        shapes.refuse(module, [shapes.line("g_idx", "values", needs, f"{low} everywhere")], config.source)
    plain = torch.arange(index.numel(), dtype=torch.int32, device=index.device) // config.group_size
    if groups == 1 or bool((index == plain).all()):
        return None, []
    if config.desc_act:
        return index, []
    return index, ["desc_act is false, but g_idx is not k // group_size; the stored g_idx is used"]


def _zero_points(words: torch.Tensor, config: QuantConfig, n: int) -> tuple[torch.Tensor, list[str]]:
    bits, notes = config.bits, []
    layout = stored_codes.layout_of(config.method, config.format)
    if layout is FORMAT.GPTQ:
        word_wise = config.zeros_rule is ZeroRule.WORD_WISE
        points, differing = zeros.from_v1(words, bits, n, word_wise=word_wise)
        if differing:
            notes.append(
                f"{differing} zero points differ between the per-field and the word-wise reading of gptq; "
                f"the {config.zeros_rule.value} rule was used (setting zeros_rule)"
            )
        middle = 1 << (bits - 1)
        if config.sym and bool((points == middle + 1).all()):
            notes.append(
                f"the settings say {config.format.value}, but the symmetric zero points are stored as in gptq_v2 "
                f"({middle} instead of {middle - 1}); read as {middle}"
            )
            points = torch.full_like(points, middle)
    else:
        points = zeros.from_words(words, bits, n, layout)
        middle = 1 << (bits - 1)
        if config.sym and bool((points == middle - 1).all()):
            notes.append(
                f"the settings say {config.format.value}, but the symmetric zero points are stored as in gptq "
                f"({middle - 1} instead of {middle}); read as {middle}"
            )
            points = torch.full_like(points, middle)
    if config.sym and not zeros.symmetric(points, bits):
        notes.append(zeros.symmetry_note(points, bits))
    return points, notes


def _refuse_zero_of_zero(tensor: QuantTensor) -> None:
    count = int((tensor.zeros == 0).sum())
    if count:
        raise InexactConversion(
            f"cannot write gptq: {count} zero points are 0, and readers of gptq decode a stored 0 - 1 in different "
            'ways\nuse format="gptq_v2", or force it'
        )


def _index(tensor: QuantTensor) -> dict[str, torch.Tensor]:
    """Return g_idx as it was stored (or left out), or made from the groups for a tensor of another origin."""
    if tensor.method is METHOD.GPTQ and "qzeros" in tensor.source:
        return {"g_idx": tensor.source["g_idx"]} if "g_idx" in tensor.source else {}
    return {"g_idx": tensor.group_of_inputs().to(torch.int32)}
