"""pack-quantized of compressed-tensors: affine integers, packed along K for every output (formats, section 18).

Codes and zero points are stored as signed value + 2^(bits-1), low bits first in int32 words, so the stored fields are
the unsigned codes and zero points of the canonical form. Rows of words are its columns: only a transposition lies
between the two.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme
from quantfarm.errors import InexactConversion
from quantfarm.formats import shapes, zeros
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.packing import pack_codes, unpack_codes
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.formats.shapes import Expected, Side

_MATRICES = ("weight_packed",)
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
        tensors: by suffix: weight_packed [N, ceil(K*bits/32)] int32, weight_scale [N, G] (or [1] for one scale over
            all) fp16, bf16 or fp32, weight_shape [2] that holds N and K, and optionally weight_zero_point
            [ceil(N*bits/32), G] int32, weight_g_idx [K], bias [N].
        config: the settings of this module (``QuantConfig.for_module``).
        module: its name, for messages.
        k: inputs that the model has; without it they follow from weight_shape.
        n: outputs that the model has; without it they follow from weight_packed.

    Raises:
        TensorMismatch: shapes, dtypes or group indices do not fit; lists every problem with both numbers.
    """
    shapes.refuse(module, shapes.missing(tensors, ("weight_packed", "weight_scale", "weight_shape")), config.source)
    shapes.refuse(module, shapes.flat(tensors, _MATRICES), config.source)
    said = tensors["weight_shape"].reshape(-1).tolist()
    n = tensors["weight_packed"].shape[0] if n is None else n
    k = int(said[-1]) if k is None else k
    lines = _problems(tensors, config, n, k)
    if said != [n, k]:
        lines.append(shapes.line("weight_shape", "values", [n, k], said))
    index, order_lines = _order(tensors.get("weight_g_idx"), config, k)
    shapes.refuse(module, lines + order_lines, config.source)
    scale, stored_zeros = tensors["weight_scale"], tensors.get("weight_zero_point")
    scales = scale.reshape(1, 1).expand(1, n) if scale.numel() == 1 else scale.t()
    points = torch.full(scales.shape, 1 << (config.bits - 1), dtype=torch.int32, device=scale.device)
    if stored_zeros is not None:
        points = unpack_codes(stored_zeros, config.bits, n).t().to(torch.int32).contiguous()
    sym = zeros.symmetric(points, config.bits)
    return QuantTensor(
        method=METHOD.GPTQ,
        format=FORMAT.GPTQ_V2,
        scheme=Scheme(bits=config.bits, group_size=config.group_size, sym=sym, act_order=index is not None),
        k=k,
        n=n,
        codes=tensors["weight_packed"].t().contiguous(),
        scales=scales.contiguous(),
        zeros=points,
        g_idx=index,
        bias=tensors.get("bias"),
        source={name: tensor for name, tensor in tensors.items() if name not in ("weight_packed", "bias")},
        codes_to_source=codes_to_source,
        notes=() if sym or not config.sym else (zeros.symmetry_note(points, config.bits),),
    )


def write(tensor: QuantTensor, config: QuantConfig, *, force: bool = False) -> dict[str, torch.Tensor]:  # noqa: ARG001 - there is one exact form
    """Return the tensors of a module.

    Raises:
        InexactConversion: offsets instead of integer zero points, or a zero point that does not fit into a field.
    """
    if tensor.offsets is not None:
        raise InexactConversion("cannot write pack-quantized: needs integer zero points, got offsets")
    bits = config.bits
    zeros.check_range(tensor.zeros, bits)
    written = {
        **codes_to_source(tensor.held_codes()),
        "weight_scale": tensor.scales.t().contiguous(),
        "weight_shape": torch.tensor([tensor.n, tensor.k]),
    }
    if not config.sym:
        written["weight_zero_point"] = pack_codes(tensor.zeros.t().to(torch.uint8), bits)
    if tensor.g_idx is not None or config.desc_act:
        written["weight_g_idx"] = tensor.group_of_inputs().to(torch.int32)
    kept = {name: t for name, t in tensor.source.items() if name in written}
    return written | kept | ({} if tensor.bias is None else {"bias": tensor.bias})


def codes_to_source(codes: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Return the stored form of canonical codes: the words of an output side by side."""
    return {"weight_packed": codes.t().contiguous()}


def _order(stored: torch.Tensor | None, config: QuantConfig, k: int) -> tuple[torch.Tensor | None, list[str]]:
    """Return the group of each input where it is not its position; -1 everywhere means that nothing was ordered."""
    if stored is None or stored.shape != (k,) or config.group_size == -1 or bool((stored == -1).all()):
        return None, []
    groups = -(-k // config.group_size)
    low, high = int(stored.min()), int(stored.max())
    if low < 0 or high >= groups:
        return None, [shapes.line("weight_g_idx", "values", f"0 to {groups - 1}", f"{low} to {high}")]
    index = stored.to(torch.int32)
    plain = torch.arange(k, dtype=torch.int32, device=index.device) // config.group_size
    return (None if bool((index == plain).all()) else index), []


def _problems(tensors: Mapping[str, torch.Tensor], config: QuantConfig, n: int, k: int) -> list[str]:
    size = k if config.group_size == -1 else config.group_size
    groups = Side(counts="groups", needed=-(-k // size), because=f"K={k}, group_size={config.group_size}")
    rows = Side(counts="rows", needed=n, because=f"N={n}")
    words = Side(counts="columns", needed=-(-k * config.bits // _WORD), because=f"K={k}, {config.bits} bits")
    zero_words = Side(counts="rows", needed=-(-n * config.bits // _WORD), because=f"N={n}, {config.bits} bits")
    inputs = Side(counts="entries", needed=k, because=f"K={k}")
    entries = Side(counts="entries", needed=n, because=f"N={n}")
    scale = Expected(name="weight_scale", sides=(rows, groups), dtypes=shapes.FLOATS)
    single = tensors["weight_scale"].numel() == 1 and config.group_size == -1
    expected = [
        Expected(name="weight_packed", sides=(rows, words), dtypes=shapes.WORDS),
        Expected(name="weight_zero_point", sides=(zero_words, groups), dtypes=shapes.WORDS, optional=config.sym),
        Expected(name="weight_g_idx", sides=(inputs,), dtypes=shapes.INDICES, optional=not config.desc_act),
        Expected(name="bias", sides=(entries,), dtypes=shapes.FLOATS, optional=True),
    ]
    return shapes.problems(tensors, expected if single else [scale, *expected])
