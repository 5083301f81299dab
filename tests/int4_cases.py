"""Weights, inputs and the float64 answer for the tests of the native int4 kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from quantfarm.kernels.int4_panel.backend import to_panels

MIDPOINT = 8
CAPS = {torch.float16: 5e-4, torch.bfloat16: 2e-3, torch.float32: 2e-6}
FLOORS = {torch.float16: 1e-4, torch.bfloat16: 5e-4, torch.float32: 1e-6}
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Weight:
    """One weight: canonical words [K/8, N], scales and zero points [G, N], the group of each input."""

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    group: torch.Tensor
    order: torch.Tensor | None
    group_size: int

    @property
    def k(self) -> int:
        """Inputs."""
        return self.words.shape[0] * 8

    @property
    def n(self) -> int:
        """Outputs."""
        return self.words.shape[1]

    def dense(self) -> torch.Tensor:
        """Return W^T [K, N] in float64, one code at a time by its definition."""
        codes = torch.empty(self.k, self.n, dtype=torch.float64)
        for i in range(self.k):
            codes[i] = ((self.words[i // 8] >> (4 * (i % 8))) & 15).double()
        return (codes - self.zeros.double()[self.group]) * self.scales.double()[self.group]


def make_weight(
    k: int,
    n: int,
    group_size: int = 128,
    *,
    sym: bool = False,
    act_order: bool = False,
    scale_dtype: torch.dtype = torch.float16,
    seed: int = 0,
) -> Weight:
    """Return random words with all 32 bits in use, log-normal scales and zero points from 0 to 16."""
    source = torch.Generator().manual_seed(seed)
    size = k if group_size == -1 else group_size
    words = torch.randint(-(2**31), 2**31, (k // 8, n), generator=source).to(torch.int32)
    scales = (torch.randn(k // size, n, generator=source) * 0.4 - 5).exp().to(scale_dtype)
    zeros = torch.randint(0, 17, (k // size, n), generator=source, dtype=torch.int32)
    if sym:
        zeros.fill_(MIDPOINT)
    else:
        zeros[0, 0], zeros[-1, -1] = 0, 16
    group = torch.arange(k) // size
    order = None
    if act_order:
        group = group[torch.randperm(k, generator=source)]
        order = torch.argsort(group, stable=True).to(torch.int32)
    return Weight(words, scales, zeros, group, order, group_size)


def multiply(ops: Any, weight: Weight, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Pack and multiply with the operators under test."""
    packed = ops.int4_panel_pack(weight.words, weight.order, weight.n)
    symmetric = bool((weight.zeros == MIDPOINT).all())
    zeros = None if symmetric else to_panels(weight.zeros.to(torch.uint8))
    scales = to_panels(weight.scales)
    result: torch.Tensor = ops.int4_panel_mm(x, packed, scales, zeros, weight.order, bias, weight.group_size, weight.n)
    return result


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative Frobenius error."""
    return float((actual.double() - expected).norm() / expected.norm().clamp_min(1e-300))


def check(actual: torch.Tensor, x: torch.Tensor, dense: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    """Compare with the float64 answer: e <= 1.25 e0 + floor, and e <= cap where rounding averages out.

    A handful of outputs can miss the average by chance, so the cap counts from 256 outputs on.
    """
    expected = x.double() @ dense
    plain = (x.float() @ dense.to(x.dtype).float()).double() if x.dtype != torch.float32 else None
    if bias is not None:
        expected = expected + bias.double()
    assert actual.dtype == x.dtype
    assert bool(torch.isfinite(actual).all())
    e = error(actual, expected)
    if plain is None:
        e0 = error(x @ dense.float() + (0 if bias is None else bias.float()), expected)
    else:
        e0 = error((plain + (0 if bias is None else bias.double())).to(x.dtype), expected)
    assert e <= 1.25 * e0 + FLOORS[x.dtype], f"e {e:.3g}, e0 {e0:.3g}"
    if actual.numel() >= 256:
        assert e <= CAPS[x.dtype], f"e {e:.3g}"
        rows = (actual.double() - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-300)
        assert float(rows.max()) <= 4 * CAPS[x.dtype], f"row error {float(rows.max()):.3g}"
