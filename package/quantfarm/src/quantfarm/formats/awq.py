"""AWQ GEMM: tensors of a checkpoint <-> QuantTensor (formats, section 4).

Codes and zero points are 4 bits, packed across columns in the order 0, 2, 4, 6, 1, 3, 5, 7. Zero points are true
ones, groups are consecutive inputs. The reader turns the words into the K-major canonical stream; the way back is
exact. The legacy label MARLIN has the same tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme
from quantfarm.formats import shapes, stored_codes, zeros
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packing import AWQ_PER_WORD, pack_awq, unpack_awq
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.formats.settings.affine import refuse_native
from quantfarm.formats.shapes import Expected, Side

_MATRICES = ("qweight", "qzeros", "scales")
_BITS = 4


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
        tensors: by suffix: qweight [K, N/8] int32, qzeros [K/group_size, N/8] int32, scales [K/group_size, N] fp16,
            bf16 or fp32, and optionally bias [N].
        config: the settings of this module (``QuantConfig.for_module``).
        module: its name, for messages.
        k: inputs that the model has; without it they follow from qweight.
        n: outputs that the model has; without it they follow from qweight.

    Raises:
        TensorMismatch: shapes or dtypes do not fit; lists every problem with both numbers.
    """
    refuse_native(tensors, module)
    shapes.refuse(module, shapes.missing(tensors, _MATRICES), config.source)
    shapes.refuse(module, shapes.flat(tensors, _MATRICES), config.source)
    rows, words = tensors["qweight"].shape
    k = rows if k is None else k
    n = words * AWQ_PER_WORD if n is None else n
    shapes.refuse(module, _problems(tensors, config, k, n), config.source)
    shapes.refuse(module, shapes.not_finite(tensors, ("scales", "bias")), config.source)

    points = unpack_awq(tensors["qzeros"]).to(torch.int32)
    notes = [] if zeros.symmetric(points, _BITS) or not config.sym else [zeros.symmetry_note(points, _BITS)]
    return QuantTensor(
        method=METHOD.AWQ,
        format=config.format,
        scheme=Scheme(bits=_BITS, group_size=config.group_size, sym=zeros.symmetric(points, _BITS)),
        k=k,
        n=n,
        codes=stored_codes.to_stream(tensors["qweight"], FORMAT.GEMM, bits=_BITS, k=k),
        scales=tensors["scales"],
        zeros=points,
        g_idx=None,
        bias=tensors.get("bias"),
        source={name: tensor for name, tensor in tensors.items() if name != "qweight"},
        codes_to_source=stored_codes.way_back(FORMAT.GEMM, bits=_BITS, k=k),
        notes=tuple(f"{module}: {note}" for note in notes),
    )


def write(tensor: QuantTensor, config: QuantConfig, *, force: bool = False) -> dict[str, torch.Tensor]:
    """Write one module as AWQ GEMM, or under the label MARLIN, as ``config.format`` says; the inverse of ``read``.

    Raises:
        InexactConversion: the tensor has what the layout can not hold: another code width, a group index, a short
            last group, a number of outputs that 8 does not divide, zero points that are no integers. Of these,
            ``force`` takes zero points back that the writer of another format had rounded.
        ValueError: the codes are held by a kernel's layout.
    """
    codes = tensor.held_codes()
    shapes.refuse_writing(config.format, _obstacles(tensor))
    tensor = zeros.with_integers(tensor, rounded=force)
    zeros.check_range(tensor.zeros, _BITS)
    written = {
        **stored_codes.way_back(FORMAT.GEMM, bits=_BITS, k=tensor.k)(codes),
        "qzeros": pack_awq(tensor.zeros.to(torch.uint8)),
        "scales": tensor.scales,
    }
    return written | ({} if tensor.bias is None else {"bias": tensor.bias})


def _problems(tensors: Mapping[str, torch.Tensor], config: QuantConfig, k: int, n: int) -> list[str]:
    size = k if config.group_size == -1 else config.group_size
    groups = Side(counts="groups", needed=-(-k // size), because=f"K={k}, group_size={config.group_size}")
    words = Side(counts="columns", needed=-(-n // AWQ_PER_WORD), because=f"N={n}, {_BITS} bits")
    columns = Side(counts="columns", needed=n, because=f"N={n}")
    rows = Side(counts="rows", needed=k, because=f"K={k}")
    entries = Side(counts="entries", needed=n, because=f"N={n}")
    lines = shapes.problems(
        tensors,
        (
            Expected(name="qweight", sides=(rows, words), dtypes=shapes.WORDS),
            Expected(name="qzeros", sides=(groups, words), dtypes=shapes.WORDS),
            Expected(name="scales", sides=(groups, columns), dtypes=shapes.FLOATS),
            Expected(name="bias", sides=(entries,), dtypes=shapes.FLOATS, optional=True),
        ),
    )
    if k % size:
        lines.append(shapes.line("qweight", "rows", f"a multiple of group_size={size}", k))
    if n % AWQ_PER_WORD:
        lines.append(shapes.line("scales", "columns", f"a multiple of {AWQ_PER_WORD}", n))
    return lines


def _obstacles(tensor: QuantTensor) -> list[str]:
    checks = {
        f"bits: needs {_BITS}, got {tensor.scheme.bits}": tensor.scheme.bits != _BITS,
        "g_idx: needs k // group_size, got another order": tensor.g_idx is not None,
        f"K: needs a multiple of group_size={tensor.group_size}, got {tensor.k}": bool(tensor.k % tensor.group_size),
        f"N: needs a multiple of {AWQ_PER_WORD}, got {tensor.n}": bool(tensor.n % AWQ_PER_WORD),
    }
    return [text for text, holds in checks.items() if holds]
