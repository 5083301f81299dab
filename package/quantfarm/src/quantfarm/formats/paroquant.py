"""ParoQuant: tensors of a checkpoint <-> RotatedWeight (formats, section 15).

Codes, zero points and scales lie as in AWQ GEMM. Beside them are the angles, the pairs and the channel scales of the
transform that the input passes first. The stored zero points decide; a file without them means the middle of the
range, which settings that say asymmetric contradict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import InexactConversion
from quantfarm.formats import awq, shapes
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packer import quantize_rtn, to_quant_tensor
from quantfarm.formats.packing import AWQ_PER_WORD
from quantfarm.formats.shapes import Expected, Side
from quantfarm.formats.weights.rotated import RotatedWeight, turned, turns_of

_MATRICES = ("qweight", "scales", "theta", "pairs", "channel_scales")
_EIGHTS = -0x77777778
"""The word 0x88888888: zero point 8 in every field."""


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """The transform of the input as it is stored.

    Attributes:
        theta: fp16 [krot, K/2], angles in radians.
        pairs: int16 [krot, K], inputs that are turned together, counted from the start of their group.
        channel_scales: fp16 [1, K].
    """

    theta: torch.Tensor
    pairs: torch.Tensor
    channel_scales: torch.Tensor

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the three by suffix."""
        return {"theta": self.theta, "pairs": self.pairs, "channel_scales": self.channel_scales}


def no_rotation(k: int, group_size: int, rounds: int) -> Rotation:
    """Return the transform of ``k`` inputs that changes nothing: neighbours as pairs, no angle, scales of one."""
    size = k if group_size == -1 else group_size
    return Rotation(
        theta=torch.zeros(rounds, k // 2, dtype=torch.float16),
        pairs=(torch.arange(k) % size).to(torch.int16).repeat(rounds, 1),
        channel_scales=torch.ones(1, k, dtype=torch.float16),
    )


def read(
    tensors: Mapping[str, torch.Tensor],
    config: QuantConfig,
    *,
    module: str,
    k: int | None = None,
    n: int | None = None,
) -> RotatedWeight:
    """Read one module.

    Args:
        tensors: by suffix: qweight [K, N/8] int32, scales [K/group_size, N], theta [krot, K/2], pairs [krot, K]
            int16, channel_scales [1, K], and optionally qzeros [K/group_size, N/8] int32 and bias [N].
        config: the settings of this module (``QuantConfig.for_module``).
        module: its name, for messages.
        k: inputs that the model has; without it they follow from qweight.
        n: outputs that the model has; without it they follow from qweight.

    Raises:
        TensorMismatch: shapes, dtypes or values do not fit: pairs that leave their group or name an input twice in a
            round, angles or scales that are not finite. Lists every problem with both numbers.
    """
    shapes.refuse(module, shapes.missing(tensors, _MATRICES), config.source)
    shapes.refuse(module, shapes.flat(tensors, _MATRICES), config.source)
    rows, words = tensors["qweight"].shape
    k = rows if k is None else k
    n = words * AWQ_PER_WORD if n is None else n
    shapes.refuse(module, _problems(tensors, config, k, n), config.source)
    size = k if config.group_size == -1 else config.group_size
    shapes.refuse(module, _values(tensors, size), config.source)

    given = {name: tensors[name] for name in ("qweight", "qzeros", "scales") if name in tensors}
    if "qzeros" not in given:
        given["qzeros"] = given["qweight"].new_full((k // size, n // AWQ_PER_WORD), _EIGHTS)
    plain = replace(config, method=METHOD.AWQ, format=FORMAT.GEMM, details={})
    inner = awq.read(given, plain, module=module, k=k, n=n)
    scales = tensors["channel_scales"].to(torch.float32).view(-1)
    return RotatedWeight(
        method=METHOD.PARO,
        format=FORMAT.PAROQUANT,
        scheme=inner.scheme,
        k=k,
        n=n,
        bias=tensors.get("bias"),
        source={name: tensor for name, tensor in tensors.items() if name not in ("qweight", "bias")},
        notes=inner.notes,
        inner=replace(inner, source={}, notes=()),
        channel_scales=scales,
        identity=not bool(tensors["theta"].any()) and bool((scales == 1).all()),
        turns=turns_of(tensors["theta"], tensors["pairs"], size),
    )


def write(weight: RotatedWeight, config: QuantConfig, *, force: bool = False) -> dict[str, torch.Tensor]:
    """Write one module; the inverse of ``read``, bit for bit.

    Raises:
        InexactConversion: a weight of another kind, which has no rotation to store. ``force`` changes nothing in that.
        ValueError: the codes are held by a kernel's layout.
    """
    del force
    if not isinstance(weight, RotatedWeight):
        raise InexactConversion(
            f"cannot write {config.format.value}: needs a weight with a rotation, got {type(weight).__name__}"
        )
    written = {**weight.packed(), **weight.source}
    return written | ({} if weight.bias is None else {"bias": weight.bias})


def from_floats(
    weight: torch.Tensor,
    config: QuantConfig,
    *,
    rotation: Rotation | None = None,
    bias: torch.Tensor | None = None,
) -> RotatedWeight:
    """Round a dense weight to the nearest codes behind a given transform.

    With R the rotation and s the channel scales, ``y = x W^T`` is ``(x s R) (W s^-1 R)^T``, since R is orthogonal: so
    the rows of W are divided by s, turned as an input would be, and rounded with symmetric zero points.

    Args:
        weight: [N, K], any float dtype; computed in fp32.
        config: group_size, and ``krot`` in its details for the transform that changes nothing.
        rotation: the transform; None for the one that changes nothing.
        bias: [N], kept as it is.

    Raises:
        InexactConversion: weights that are not finite, or a number of outputs that 8 does not divide.
        TensorMismatch: a transform that does not fit the weight.
    """
    n, k = weight.shape
    if n % AWQ_PER_WORD:
        raise InexactConversion(f"cannot write {config.format.value}: needs N a multiple of {AWQ_PER_WORD}, got {n}")
    size = k if config.group_size == -1 else config.group_size
    rotation = rotation or no_rotation(k, size, int(config.details["krot"]))
    shapes.refuse("weight", shapes.problems(rotation.tensors(), _transform(config, k)), config.source)
    shapes.refuse("weight", _values(rotation.tensors(), size), config.source)
    scaled = weight.detach().to(torch.float32) / rotation.channel_scales.to(torch.float32)
    straight = turned(scaled, turns_of(rotation.theta, rotation.pairs, size))
    plain = replace(config, method=METHOD.AWQ, format=FORMAT.GEMM, details={}, sym=True)
    rounded = quantize_rtn(straight, bits=config.bits, group_size=config.group_size, sym=True)
    stored = awq.write(to_quant_tensor(rounded, plain, bias=bias), plain)
    return read({**stored, **rotation.tensors()}, replace(config, sym=True), module="weight", k=k, n=n)


def _problems(tensors: Mapping[str, torch.Tensor], config: QuantConfig, k: int, n: int) -> list[str]:
    size = k if config.group_size == -1 else config.group_size
    groups = Side(counts="groups", needed=-(-k // size), because=f"K={k}, group_size={config.group_size}")
    words = Side(counts="columns", needed=-(-n // AWQ_PER_WORD), because=f"N={n}, {config.bits} bits")
    columns = Side(counts="columns", needed=n, because=f"N={n}")
    rows = Side(counts="rows", needed=k, because=f"K={k}")
    entries = Side(counts="entries", needed=n, because=f"N={n}")
    lines = shapes.problems(
        tensors,
        (
            Expected(name="qweight", sides=(rows, words), dtypes=shapes.WORDS),
            Expected(name="qzeros", sides=(groups, words), dtypes=shapes.WORDS, optional=config.sym),
            Expected(name="scales", sides=(groups, columns), dtypes=shapes.FLOATS),
            Expected(name="bias", sides=(entries,), dtypes=shapes.FLOATS, optional=True),
            *_transform(config, k),
        ),
    )
    if k % size or size % 2:
        lines.append(shapes.line("qweight", "rows", f"a multiple of an even group_size, {size} here", k))
    if n % AWQ_PER_WORD:
        lines.append(shapes.line("scales", "columns", f"a multiple of {AWQ_PER_WORD}", n))
    return lines


def _transform(config: QuantConfig, k: int) -> tuple[Expected, ...]:
    """Return what the three tensors of the transform of ``k`` inputs must be."""
    stated = int(config.details["krot"])
    rounds = Side(counts="rounds", needed=stated, because=f"krot={stated}")
    halves = Side(counts="columns", needed=k // 2, because=f"K={k}, in pairs")
    inputs = Side(counts="columns", needed=k, because=f"K={k}")
    return (
        Expected(name="theta", sides=(rounds, halves), dtypes=shapes.FLOATS),
        Expected(name="pairs", sides=(rounds, inputs), dtypes=(torch.int16,)),
        Expected(
            name="channel_scales",
            sides=(Side(counts="rows", needed=1, because="one scale an input"), inputs),
            dtypes=shapes.FLOATS,
        ),
    )


def _values(tensors: Mapping[str, torch.Tensor], size: int) -> list[str]:
    """Return one line per tensor with values that no transform or scale has."""
    lines = []
    for name in ("scales", "theta", "channel_scales"):
        bad = 0 if name not in tensors else int((~torch.isfinite(tensors[name])).sum())
        if bad:
            lines.append(shapes.line(name, "values", "finite ones", f"{bad} that are not"))
    pairs = tensors["pairs"].to(torch.int64).view(tensors["pairs"].shape[0], -1, size)
    outside = int(((pairs < 0) | (pairs >= size)).sum())
    if outside:
        lines.append(shapes.line("pairs", "values", f"0 to {size - 1}, inside a group", f"{outside} outside"))
    elif wrong := int((pairs.sort(dim=2).values != torch.arange(size, device=pairs.device)).any(2).sum()):
        lines.append(shapes.line("pairs", "values", "each input once a round", f"{wrong} groups where one comes twice"))
    return lines
