"""What a kernel folder's backend.py offers: four functions over one private ``Prepared`` value.

The module itself is the backend; the loader imports ``quantfarm.kernels.<kernel>.backend`` by the folder name in
the chosen record. No format name, environment or selection reaches these functions.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Backend(Protocol):
    """The functions of ``kernels/<kernel>/backend.py``."""

    def prepare(self, tensor: Any, device: torch.device) -> Any:
        """Repack once for ``device``; return a private value that owns layout, metadata and workspace.

        ``tensor`` is a ``Weight`` of the kind that the record's rows name; its tensors are on ``device``.
        """

    def run(self, prepared: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Multiply: x [M, K] (2-D, dense rows, M >= 1) to [M, N] in x.dtype.

        Accumulates in fp32, adds the bias (any float dtype, unnarrowed) to the fp32 value, then casts once.
        """

    def restore(self, prepared: Any) -> torch.Tensor:
        """Return the canonical codes, int32 [ceil(K*bits/32), N], bit for bit (see ``QuantTensor.codes``).

        Asked only of a kernel that keeps no source (``Features.keeps_source`` False).
        """

    def calls(self) -> int:
        """Return how often ``run`` computed in this process: the proof of which kernel ran."""
