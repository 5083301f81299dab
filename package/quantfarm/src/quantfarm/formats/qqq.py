"""QQQ: tensors of a checkpoint <-> QQQWeight (formats, section 9).

The words lie in the tiles of a tensor core, the scales in the order in which its threads read them. The reader turns
the words into the K-major canonical stream and keeps the scales beside it; the way back is exact.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme
from quantfarm.errors import InexactConversion
from quantfarm.formats import shapes
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packing import pack_codes
from quantfarm.formats.packing_tiles import GROUPED, PER_CHANNEL, permuted, unpermuted
from quantfarm.formats.shapes import Expected, Side
from quantfarm.formats.weights.qqq import BITS, GROUP, STEP, ZERO, QQQWeight, codes_of, words_of

_MATRICES = ("B", "s_channel")
_ROWS, _COLUMNS = 16, 64
_TOP = 127


def read(
    tensors: Mapping[str, torch.Tensor],
    config: QuantConfig,
    *,
    module: str,
    k: int | None = None,
    n: int | None = None,
) -> QQQWeight:
    """Read one module.

    Args:
        tensors: by suffix: B int32 [K/16, N*2], s_channel fp32 [1, N], s_group fp16 [K/128, N], empty or absent where
            outputs alone have scales, and optionally bias [N].
        config: the settings of this module (``QuantConfig.for_module``).
        module: its name, for messages.
        k: inputs that the model has; without it they follow from B.
        n: outputs that the model has; without it they follow from B.

    Raises:
        TensorMismatch: shapes or dtypes do not fit, or scales are not finite; lists every problem with both numbers.
    """
    shapes.refuse(module, shapes.missing(tensors, _MATRICES), config.source)
    shapes.refuse(module, shapes.flat(tensors, _MATRICES), config.source)
    rows, columns = tensors["B"].shape
    k = rows * _ROWS if k is None else k
    n = columns // 2 if n is None else n
    shapes.refuse(module, _problems(tensors, config, k, n), config.source)
    grouped = config.group_size != -1
    return QQQWeight(
        method=METHOD.QQQ,
        format=FORMAT.QQQ,
        scheme=Scheme(bits=BITS, group_size=config.group_size, sym=True),
        k=k,
        n=n,
        bias=tensors.get("bias"),
        source={name: tensor for name, tensor in tensors.items() if name not in ("B", "bias")},
        codes=codes_of(tensors["B"], grouped=grouped),
        channel_scales=unpermuted(tensors["s_channel"], PER_CHANNEL).view(n),
        group_scales=unpermuted(tensors["s_group"], GROUPED) if grouped else None,
    )


def write(weight: QQQWeight, config: QuantConfig, *, force: bool = False) -> dict[str, torch.Tensor]:
    """Write one module; the inverse of ``read``, bit for bit.

    Raises:
        InexactConversion: a weight of another kind. ``force`` changes nothing in that.
        ValueError: the codes are held by a kernel's layout.
    """
    del force
    if not isinstance(weight, QQQWeight):
        raise InexactConversion(
            f"cannot write {config.format.value}: needs 8-bit weights in two levels, got {type(weight).__name__}"
        )
    written = {**weight.packed(), **weight.source}
    return written | ({} if weight.bias is None else {"bias": weight.bias})


def from_floats(weight: torch.Tensor, config: QuantConfig, *, bias: torch.Tensor | None = None) -> QQQWeight:
    """Round a dense weight to the nearest codes.

    With groups, the fine scale of a group is ``2 amax / 15`` and q is rounded by it; the scale of an output is the one
    at which the largest ``8 s_fine`` becomes 127, and s_group, their ratio, is stored as fp16. Without groups, one
    scale ``2 amax / 15`` serves an output, and s_channel is a sixteenth of it (formats, section 9).

    Args:
        weight: [N, K], any float dtype; computed in fp32.
        config: group_size 128 or -1.
        bias: [N], kept as it is.

    Raises:
        InexactConversion: weights that are not finite, or sizes that the tiles do not divide.
    """
    n, k = weight.shape
    grouped = config.group_size != -1
    wide = weight.detach().to(torch.float32)
    _refuse_floats(wide, config, GROUP if grouped else _ROWS)
    groups = wide.view(n, -1, GROUP if grouped else k)
    fine = 2 * groups.abs().amax(2) / 15
    fine = torch.where(fine == 0, torch.ones_like(fine), fine)
    q = torch.round(groups / fine.unsqueeze(2)).clamp_(-8, 7).view(n, k)
    codes = pack_codes((q + ZERO).to(torch.uint8).t().contiguous(), BITS)
    channel = fine.amax(1) * ZERO / _TOP if grouped else fine.view(n) / STEP
    stored = {
        "B": words_of(codes, k, grouped=grouped),
        "s_channel": permuted(channel.view(1, n), PER_CHANNEL),
        "s_group": permuted((fine / channel.unsqueeze(1)).t().contiguous().to(torch.float16), GROUPED)
        if grouped
        else torch.empty(0, dtype=torch.float16, device=wide.device),
    }
    return read(stored | ({} if bias is None else {"bias": bias}), config, module="weight", k=k, n=n)


def _refuse_floats(weight: torch.Tensor, config: QuantConfig, unit: int) -> None:
    """Raise InexactConversion for a weight [N, K] that the layout can not hold; K must be a multiple of ``unit``."""
    n, k = weight.shape
    bad = int((~torch.isfinite(weight)).sum())
    checks = {
        f"K: needs a multiple of {unit}, got {k}": bool(k % unit),
        f"N: needs a multiple of {_COLUMNS}, got {n}": bool(n % _COLUMNS),
        f"weights: needs finite ones, got {bad} that are not": bool(bad),
    }
    causes = [text for text, holds in checks.items() if holds]
    if causes:
        what = f"cannot write {config.format.value}: the layout can not hold it"
        raise InexactConversion("\n  ".join([what, *causes]))


def _problems(tensors: Mapping[str, torch.Tensor], config: QuantConfig, k: int, n: int) -> list[str]:
    grouped = config.group_size != -1
    rows = Side(counts="rows", needed=-(-k // _ROWS), because=f"K={k} in tiles of {_ROWS}")
    words = Side(counts="columns", needed=n * 2, because=f"N={n}, {BITS} bits")
    one = Side(counts="rows", needed=1, because="one scale an output")
    outputs = Side(counts="columns", needed=n, because=f"N={n}")
    groups = Side(counts="groups", needed=-(-k // GROUP), because=f"K={k}, group_size={GROUP}")
    entries = Side(counts="entries", needed=n, because=f"N={n}")
    expected = [
        Expected(name="B", sides=(rows, words), dtypes=shapes.WORDS),
        Expected(name="s_channel", sides=(one, outputs), dtypes=(torch.float32,)),
        Expected(name="bias", sides=(entries,), dtypes=shapes.FLOATS, optional=True),
    ]
    if grouped:
        expected.append(Expected(name="s_group", sides=(groups, outputs), dtypes=(torch.float16,)))
    lines = shapes.problems(tensors, expected)
    held = 0 if "s_group" not in tensors else tensors["s_group"].numel()
    if not grouped and held:
        lines.append(shapes.line("s_group", "entries", "0 (group_size=-1)", held))
    if k % (GROUP if grouped else _ROWS):
        lines.append(shapes.line("B", "inputs", f"a multiple of {GROUP if grouped else _ROWS}", k))
    if n % _COLUMNS:
        lines.append(shapes.line("B", "outputs", f"a multiple of {_COLUMNS}", n))
    for name in ("s_channel", "s_group"):
        bad = 0 if name not in tensors else int((~torch.isfinite(tensors[name])).sum())
        if bad:
            lines.append(shapes.line(name, "values", "finite ones", f"{bad} that are not"))
    return lines
