"""Layers for the tests of runtime and kernels: random weights, every usable backend, the float64 answer."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.registry import implemented_records
from quantfarm.declare.scheme import Scheme
from quantfarm.declare.spec import ArtifactKind, KernelSpec
from quantfarm.formats.packing import pack_codes, unpack_codes
from quantfarm.formats.quant_tensor import QuantTensor
from quantfarm.runtime.artifacts import load_library
from quantfarm.runtime.linear import QuantLinear

# Workers share the cores: threads that wait for each other by spinning would make every product slower, not faster.
torch.set_num_threads(1)

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What to draw: sizes, code width, group size, order, dtype of the stored scales."""

    k: int = 256
    n: int = 64
    bits: int = 4
    group_size: int = 64
    sym: bool = False
    act_order: bool = False
    scale_dtype: torch.dtype = torch.float16
    seed: int = 0


def weight(shape: Shape, bias: torch.Tensor | None = None) -> QuantTensor:
    """Draw a weight in canonical form; zero points reach from 0 to 2^bits and every bit of the words is in use."""
    source = torch.Generator().manual_seed(shape.seed)
    size = shape.k if shape.group_size == -1 else shape.group_size
    groups = -(-shape.k // size)
    codes = torch.randint(0, 2**shape.bits, (shape.k, shape.n), generator=source, dtype=torch.uint8)
    scales = (torch.rand(groups, shape.n, generator=source) * 0.01 + 0.005).to(shape.scale_dtype)
    zeros = torch.randint(0, 2**shape.bits + 1, (groups, shape.n), generator=source, dtype=torch.int32)
    if shape.sym:
        zeros.fill_(2 ** (shape.bits - 1))
    g_idx = None
    if shape.act_order:
        g_idx = (torch.arange(shape.k) // size)[torch.randperm(shape.k, generator=source)].to(torch.int32)
    scheme = Scheme(bits=shape.bits, group_size=shape.group_size, sym=shape.sym, act_order=shape.act_order)
    tensors = {"qweight": pack_codes(codes, shape.bits), "qzeros": zeros, "scales": scales}
    tensors |= {} if g_idx is None else {"g_idx": g_idx}
    tensors |= {} if bias is None else {"bias": bias}
    return read(tensors, scheme=scheme, k=shape.k)


def read(tensors: Mapping[str, torch.Tensor], *, scheme: Scheme, k: int) -> QuantTensor:
    """Stand in for a reader: qzeros hold the true zero points one by one."""
    return QuantTensor(
        method=METHOD.GPTQ,
        format=FORMAT.GPTQ_V2,
        scheme=scheme,
        k=k,
        n=tensors["scales"].shape[1],
        codes=tensors["qweight"],
        scales=tensors["scales"],
        zeros=tensors["qzeros"],
        g_idx=tensors.get("g_idx"),
        bias=tensors.get("bias"),
        source={name: t for name, t in tensors.items() if name != "qweight"},
        codes_to_source=as_qweight,
    )


def as_qweight(codes: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Name the codes as the checkpoint does."""
    return {"qweight": codes}


def dense(tensor: QuantTensor) -> torch.Tensor:
    """Return W^T [K, N] in float64 by its definition."""
    assert tensor.codes is not None
    groups = tensor.group_of_inputs()
    codes = unpack_codes(tensor.codes, tensor.scheme.bits, tensor.k).double()
    return (codes - tensor.zeros.double()[groups]) * tensor.scales.double()[groups]


def records(*, training: bool | None = None) -> list[Any]:
    """Return one record per kernel of affine codes whose code is present here, as parameters with its name as id."""
    import pytest

    found = {}
    for spec in implemented_records():
        if spec.method not in (METHOD.GPTQ, METHOD.AWQ):
            continue
        present = spec.artifact.kind is ArtifactKind.NONE or load_library(spec.artifact.library).status == "loaded"
        if present and (training is None or spec.features.training is training):
            found.setdefault(spec.kernel, pytest.param(spec, id=spec.kernel))
    return list(found.values())


def backend_of(spec: KernelSpec) -> Any:
    """Import the backend of a record by its folder's name, as the loader does."""
    return importlib.import_module(f"quantfarm.kernels.{spec.kernel}.backend")


def layer(spec: KernelSpec, shape: Shape | None = None, bias: torch.Tensor | None = None) -> QuantLinear:
    """Build a layer over a drawn weight."""
    shape = shape or Shape()
    tensor = weight(shape, bias)
    reader = partial(read, scheme=tensor.scheme, k=tensor.k)
    return QuantLinear(copied(tensor), backend_of(spec), spec, name="model.fc", read=reader)


def copied(tensor: QuantTensor) -> QuantTensor:
    """Return a weight whose tensors are its own."""
    source = {name: t.clone() for name, t in tensor.source.items()}
    assert tensor.codes is not None
    return replace(
        tensor,
        codes=tensor.codes.clone(),
        scales=source["scales"],
        zeros=source["qzeros"],
        g_idx=source.get("g_idx"),
        bias=source.get("bias"),
        source=source,
    )


def dtypes_of(spec: KernelSpec) -> list[torch.dtype]:
    """Return the activation dtypes of a record."""
    return [getattr(torch, name) for name in spec.activations]


def verdict(spec: KernelSpec, actual: torch.Tensor, x: torch.Tensor, w: torch.Tensor, bias: Any = None) -> None:
    """Hold the record's own tolerance against float64: e <= 1.25 e0 + floor, and e <= cap where rounding averages."""
    assert actual.dtype == x.dtype
    added = 0.0 if bias is None else bias.double()
    expected = x.double() @ w + added
    plain = (x.float() @ w.to(x.dtype).float() + (0.0 if bias is None else bias.float())).to(x.dtype)
    e, e0 = error(actual, expected), error(plain, expected)
    dtype = str(x.dtype).removeprefix("torch.")
    assert e <= 1.25 * e0 + spec.tolerance.floor[dtype], f"e {e:.3g}, e0 {e0:.3g}"
    assert actual.numel() < 256 or e <= spec.tolerance.cap[dtype], f"e {e:.3g}"


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative Frobenius error."""
    return float((actual.double() - expected).norm() / expected.norm().clamp_min(1e-300))
