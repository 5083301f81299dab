"""The path through bitsandbytes: the package's decoder against our own, bounded panels, kinds that are refused."""

from __future__ import annotations

import pytest
import torch
from layer_cases import CPU, Shape, weight

from quantfarm.declare.reason import Reason
from quantfarm.formats.bitsandbytes_packer import from_floats
from quantfarm.formats.config import parse
from quantfarm.formats.weights.base import Weight

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")

from quantfarm.kernels.bnb_blocks import backend


def packed(n: int, k: int, kind: str, block: int = 64, *, nested: bool = False) -> Weight:
    """Round a random weight."""
    raw = {"method": "bitsandbytes", "bits": 8 if kind == "int8" else 4, "format": kind, "block_size": block}
    source = torch.Generator().manual_seed(n)
    return from_floats(torch.randn(n, k, generator=source), parse(raw, source="s"), nested=nested)


@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8"])
@pytest.mark.parametrize("block", [32, 64, 1024, 4096])
@pytest.mark.parametrize(("n", "k"), [(8, 64), (5, 51), (1, 1), (37, 129)])
def test_the_package_gives_the_rows_bit_for_bit(kind: str, block: int, n: int, k: int) -> None:
    """Rows of any panel, odd sizes, blocks across rows, nested absmax: the same fp32 numbers as our own decoder."""
    tensor = packed(n, k, kind, block, nested=kind == "nf4")
    prepared = backend.prepare(tensor, CPU)
    for start, stop in ((0, n), (n // 2, n), (0, max(n // 3, 1))):
        assert torch.equal(prepared.rows(start, stop), tensor.decoded(start, stop))


@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_one_hot_rows_are_one_rounding_of_the_weight(kind: str, dtype: torch.dtype) -> None:
    """X = identity gives the decoded weight, cast once."""
    tensor = packed(20, 48, kind)
    before = backend.calls()
    out = backend.run(backend.prepare(tensor, CPU), torch.eye(48, dtype=dtype), None)
    assert torch.equal(out, tensor.decoded().t().to(dtype))
    assert backend.calls() == before + 1


def test_panels_of_a_large_layer_are_small() -> None:
    """B3: rows decoded together are far below 64 MiB for K = 28672, whatever the block."""
    tensor = packed(64, 28672, "nf4", 4096)
    seen: list[int] = []
    prepared = backend.prepare(tensor, CPU)

    def rows(start: int, stop: int) -> torch.Tensor:
        panel = prepared.rows(start, stop)
        seen.append(panel.untyped_storage().nbytes())
        return panel

    backend.run(backend.Prepared(weight=tensor, rows=rows), torch.ones(2, 28672), None)
    assert len(seen) > 1
    assert max(seen) < 8 << 20


def test_other_kinds_and_devices_are_refused() -> None:
    """An affine weight, a weight elsewhere, and canonical codes that do not exist are errors."""
    with pytest.raises(ValueError, match="needs table codes or 8-bit rows, got QuantTensor"):
        backend.prepare(weight(Shape()), CPU)
    tensor = packed(4, 8, "nf4")
    with pytest.raises(ValueError, match="needs device meta, got cpu"):
        backend.prepare(tensor, torch.device("meta"))
    with pytest.raises(TypeError, match="has no canonical codes"):
        backend.restore(backend.prepare(tensor, CPU))


def test_a_missing_package_is_a_reason() -> None:
    """R67: without the package the record is refused by its name and floor, before anything is imported."""
    from quantfarm.declare.registry import KERNELS
    from quantfarm.select.check_install import install_reasons
    from quantfarm.select.host import Host
    from quantfarm.select.request import Request

    spec = next(spec for spec in KERNELS if spec.kernel == "bnb_blocks")
    tensor = packed(4, 8, "nf4")
    request = Request(method=tensor.method, format=tensor.format, scheme=tensor.scheme)
    host = Host(platform="linux", machine="x86_64", devices=(), versions={"torch": "2.13.0"})
    assert Reason("package_absent", "bitsandbytes >= 0.49.0", "none") in list(install_reasons(spec, request, host))
