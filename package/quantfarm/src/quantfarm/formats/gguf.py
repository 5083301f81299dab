"""GGUF blocks in safetensors: qweight of a checkpoint <-> GgmlWeight (formats, section 10).

A module has ``qweight``, uint8 [N, blocks * size], rows in output order and K padded with zeros to whole blocks, and
perhaps ``bias``. The stored bytes are the weight; nothing is repacked.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quantfarm.declare import ggml
from quantfarm.declare.ggml import GgmlType
from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.errors import InexactConversion
from quantfarm.formats import shapes
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.ggml_packers import quantize
from quantfarm.formats.settings.gguf import scheme_of, unknown_type, whole_rows
from quantfarm.formats.shapes import Expected, Side
from quantfarm.formats.weights.base import Weight
from quantfarm.formats.weights.ggml import GgmlWeight
from quantfarm.formats.weights.ggml_iq import book_of
from quantfarm.formats.weights.ggml_legacy import half

_BYTES = (torch.uint8,)


def read(
    tensors: Mapping[str, torch.Tensor],
    config: QuantConfig,
    *,
    module: str,
    k: int | None = None,
    n: int | None = None,
) -> GgmlWeight:
    """Read one module.

    Args:
        tensors: by suffix: qweight uint8 [N, blocks * size], and optionally bias [N].
        config: the settings of this module; ``code_type`` names its type. One that means two types (``q1_0``,
            ``q2_0``) is told apart by the bytes of a row.
        module: its name, for messages.
        k: inputs that the model has; without it, all values of the stored blocks.
        n: outputs that the model has; without it they follow from qweight.

    Raises:
        UnknownFormat: the type is not known.
        TensorMismatch: shapes or dtypes do not fit the type, a row fits both types of a name or none, or a block's
            scale is not finite; lists every problem with both numbers.
    """
    types = ggml.named(config.code_type)
    if not types:
        raise unknown_type(config.code_type, config.source)
    shapes.refuse(module, shapes.missing(tensors, ("qweight",)), config.source)
    shapes.refuse(module, shapes.flat(tensors, ("qweight",)), config.source)
    n = tensors["qweight"].shape[0] if n is None else n
    row_bytes = tensors["qweight"].shape[1]
    entry = whole_rows(config, row_bytes) if k is None else _of_bytes(types, k, row_bytes)
    k = row_bytes // entry.size * entry.block if k is None else k
    lines = shapes.problems(tensors, _expected(types, entry, k, n))
    if not lines and len(fits := ggml.fitting(types, k, row_bytes)) > 1:
        names = " or ".join(ggml.block_name(each) for each in fits)
        lines.append(shapes.line("qweight", "type", names, f"{entry.name}, and {row_bytes} bytes for K={k} fit both"))
    shapes.refuse(module, lines or _unfit_scales(tensors["qweight"], entry), config.source)
    return GgmlWeight(
        method=METHOD.GGUF,
        format=FORMAT.GGUF,
        scheme=scheme_of(entry),
        k=k,
        n=n,
        bias=tensors.get("bias"),
        source={"qweight": tensors["qweight"]},
        code_type=entry.name,
        type=entry,
        book=book_of(entry.name, tensors["qweight"].device),
    )


def write(weight: Weight, config: QuantConfig, *, force: bool = False) -> dict[str, torch.Tensor]:
    """Write one module: the stored bytes as they are; the inverse of ``read``.

    Raises:
        InexactConversion: the weight has other codes than ``config.code_type``; ``force`` rounds its values.
        UnknownFormat: it would have to be rounded to a type that has no packer.
    """
    wanted = ggml.named(config.code_type)
    if isinstance(weight, GgmlWeight) and (weight.type in wanted or not wanted):
        packed = weight.source["qweight"]
    elif force:
        from quantfarm.formats.ggml_packers import quantize

        packed = quantize(weight.decoded(), config.code_type)
    else:
        held = weight.code_type or f"{weight.method.value} {weight.format.value}"
        raise InexactConversion(
            f"cannot write {config.code_type}: the weight holds {held}, whose values would be rounded again\n"
            "keep its format, or force it"
        )
    return {"qweight": packed} | ({} if weight.bias is None else {"bias": weight.bias})


def pack(weight: torch.Tensor, config: QuantConfig) -> GgmlWeight:
    """Round a weight [N, K] to the blocks of ``config.code_type``.

    Raises:
        InexactConversion, UnknownFormat: see ``ggml_packers.quantize``.
    """
    return read({"qweight": quantize(weight, config.code_type)}, config, module="weight", k=weight.shape[1])


def _of_bytes(types: tuple[GgmlType, ...], k: int, row_bytes: int) -> GgmlType:
    """Return the type that fits, or the first, whose sizes the checks then compare."""
    return next(iter(ggml.fitting(types, k, row_bytes)), types[0])


def _expected(types: tuple[GgmlType, ...], entry: GgmlType, k: int, n: int) -> tuple[Expected, ...]:
    rows = Side(counts="rows", needed=n, because=f"N={n}")
    others = "".join(f"; {other} would need {other.bytes_of(k)}" for other in types if other is not entry)
    row_bytes = Side(counts="bytes per row", needed=entry.bytes_of(k), because=f"K={k}, {entry}{others}")
    entries = Side(counts="entries", needed=n, because=f"N={n}")
    return (
        Expected(name="qweight", sides=(rows, row_bytes), dtypes=_BYTES),
        Expected(name="bias", sides=(entries,), dtypes=shapes.FLOATS, optional=True),
    )


def _unfit_scales(qweight: torch.Tensor, entry: GgmlType) -> list[str]:
    """Return a line where fp16 scales are infinite or no number: such blocks decode to nothing usable."""
    blocks = qweight.reshape(-1, entry.size)
    bad = sum(int((~torch.isfinite(half(blocks, at))).sum()) for at in entry.halves)
    return [shapes.line("qweight", "scales", "finite fp16 numbers", f"{bad} that are not finite")] if bad else []
