"""Weight: what every quantized weight offers, whatever its codes are, between a format and a kernel."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.declare.scheme import Scheme

if TYPE_CHECKING:
    from typing_extensions import Self

Move = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Weight(ABC):
    """One quantized weight [N, K] with ``y = x W^T``.

    A subclass adds the operands of its kind: tensors of the checkpoint as they are stored, or a canonical form of
    them. Every tensor field lies on one device.

    Attributes:
        method, format: where it came from.
        scheme: what the codes mean.
        k, n: inputs and outputs.
        bias: [N] in the stored dtype, or None.
        source: the checkpoint tensors that are kept as they are, by suffix.
        code_type: the named type inside the format, such as the ggml type ``q4_k``; empty where a format has one.
        notes: sentences for the load report.
    """

    method: METHOD
    format: FORMAT
    scheme: Scheme
    k: int
    n: int
    bias: torch.Tensor | None
    source: Mapping[str, torch.Tensor]
    code_type: str = ""
    notes: tuple[str, ...] = field(default=())

    @abstractmethod
    def decoded(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Return rows ``start`` to ``stop`` of W as fp32 [n, K]; ``start`` is a multiple of ``row_block``."""

    @property
    def row_block(self) -> int:
        """Rows of W that are decoded together: ``decoded`` may start at multiples of it only."""
        return 1

    @property
    def device(self) -> torch.device:
        """Where the tensors lie."""
        return next(iter(self.source.values())).device

    @property
    def complete(self) -> bool:
        """Whether the packed codes are here; False once only a kernel's own layout holds them."""
        return True

    def without_codes(self) -> Self:
        """Return the weight for a kernel that keeps only its own layout; the same where nothing can be left out."""
        return self

    def with_codes(self, codes: torch.Tensor) -> Self:
        """Return the weight with codes that a kernel gave back; only kinds that can leave them out have this."""
        raise NotImplementedError(f"{type(self).__name__} keeps its codes, got {list(codes.shape)}")

    def packed(self) -> Mapping[str, torch.Tensor]:
        """Return the checkpoint tensors that are not in ``source``, made from the codes bit for bit."""
        return {}

    def moved(self, move: Move) -> Self:
        """Return the weight with every tensor passed through ``move``; shared tensors stay shared."""
        seen: dict[int, torch.Tensor] = {}

        def once(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if id(value) not in seen:
                    seen[id(value)] = move(value)
                return seen[id(value)]
            if isinstance(value, Weight):
                return value.moved(once)
            if isinstance(value, Mapping):
                return {name: once(entry) for name, entry in value.items()}
            return tuple(once(entry) for entry in value) if type(value) is tuple else value

        changes: dict[str, Any] = {f.name: once(getattr(self, f.name)) for f in fields(self)}
        return replace(self, **changes)
