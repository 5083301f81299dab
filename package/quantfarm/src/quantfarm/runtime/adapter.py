"""LoRA adapters: ``out = base + scale x A B``, computed in fp32, as a new tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from quantfarm.runtime.epilogue import without_autocast

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class LoraAdapter(nn.Module):
    """Two trainable factors beside one quantized layer.

    Args:
        lora_a: [K, rank], fp16, bf16 or fp32; kept in its dtype, so no value leaves its range by a cast.
        lora_b: [rank, N], likewise.
        scale: what the product of both is multiplied by; alpha / rank where a file states alpha.

    Raises:
        ValueError: shapes that do not fit each other, rank 0, or values that are not finite.
        TypeError: another dtype.
    """

    def __init__(self, lora_a: torch.Tensor, lora_b: torch.Tensor, *, scale: float = 1.0) -> None:
        super().__init__()
        if lora_a.dim() != 2 or lora_b.dim() != 2 or lora_a.shape[1] != lora_b.shape[0]:
            found = f"{list(lora_a.shape)} and {list(lora_b.shape)}"
            raise ValueError(f"adapter: needs lora_A [K, rank] and lora_B [rank, N], got {found}")
        if lora_a.shape[1] == 0:
            raise ValueError("adapter: needs a rank of at least 1, got 0")
        for name, factor in (("lora_A", lora_a), ("lora_B", lora_b)):
            if factor.dtype not in _DTYPES:
                raise TypeError(f"adapter: {name} needs float16, bfloat16 or float32, got {factor.dtype}")
            bad = int((~torch.isfinite(factor)).sum())
            if bad:
                raise ValueError(f"adapter: {name} needs finite values, got {bad} that are not")
        self.scale = scale
        self.lora_A = nn.Parameter(lora_a.detach().clone())
        self.lora_B = nn.Parameter(lora_b.detach().clone())

    def forward(self, x: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """Return base + scale x A B in base's dtype; ``base`` stays as it is, since autograd may hold it."""
        wide = torch.promote_types(x.dtype, torch.float32)
        with without_autocast(x.device):
            narrow = x.to(wide) @ self.lora_A.to(wide)
            return (base.to(wide) + (narrow @ self.lora_B.to(wide)).mul(self.scale)).to(base.dtype)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> LoraAdapter:
        """Follow device moves and ignore dtype moves: bf16 factors have a range that fp16 lacks."""
        super()._apply(lambda t: t.to(fn(torch.empty(0, device=t.device)).device), recurse)  # type: ignore[no-untyped-call]
        return self
