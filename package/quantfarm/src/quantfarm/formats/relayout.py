"""relayout(weight, target): the stored tensors of the same weight in another format, exact or refused."""

from __future__ import annotations

from dataclasses import replace

import torch

from quantfarm.declare.scheme import Scheme
from quantfarm.errors import InexactConversion
from quantfarm.formats.config import QuantConfig
from quantfarm.formats.ggml_affine import to_affine
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.formats.table import find
from quantfarm.formats.weights.base import Weight
from quantfarm.formats.weights.ggml import GgmlWeight


def relayout(weight: Weight, target: QuantConfig, *, force: bool = False) -> tuple[dict[str, torch.Tensor], Scheme]:
    """Return the tensors of ``weight`` as ``target.format`` stores them, and the scheme they have there.

    The codes, scales and zero points stay what they are; only their places change.

    Raises:
        InexactConversion: the weight has no exact form in the format; says what stands against it.
    """
    affine = as_affine(weight, force=force)
    row = find(target.method, target.format)
    if affine.scheme.bits not in row.bits:
        widths = ", ".join(map(str, row.bits))
        raise InexactConversion(f"cannot write {target.format.value}: bits: needs {widths}, got {affine.scheme.bits}")
    scheme = affine.scheme
    mine = replace(target, bits=scheme.bits, group_size=scheme.group_size, sym=scheme.sym, desc_act=scheme.act_order)
    tensors: dict[str, torch.Tensor] = row.write()(affine, mine, force=force)
    return tensors, scheme


def as_affine(weight: Weight, *, force: bool = False) -> QuantTensor:
    """Return a weight as affine integer codes.

    Args:
        weight: any.
        force: take the nearest zero point where a block has none; its values change then.

    Raises:
        InexactConversion: its codes are of another kind, or a block has no integer zero point.
    """
    if isinstance(weight, QuantTensor):
        return weight
    if isinstance(weight, GgmlWeight):
        return to_affine(weight, force=force)
    kind = weight.scheme.weight_kind.value
    raise InexactConversion(
        f"cannot convert {weight.format.value} exactly: needs affine integer codes, got {kind}"
        "\nround the decoded values again: pass requantize"
    )
