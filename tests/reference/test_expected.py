"""The results that the writers of the real checkpoints give are reproduced to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from formats.makers import CHECKPOINTS, K_PROJ, checkpoint

from quantfarm import reference
from quantfarm.formats.table import find

NAME = "layers.0.self_attn.k_proj.weight"


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_expected_weight_is_reproduced(name: str) -> None:
    """Reader and reference give each folder's decoded k_proj weight bit for bit in fp32."""
    found = checkpoint(name)
    wanted = found.expected[NAME]
    tensors, config = found.modules[K_PROJ], found.config
    decoded = find(config.method, config.format).read()(tensors, config, module=K_PROJ).decoded()
    assert torch.equal(decoded.contiguous().view(torch.int32), wanted.view(torch.int32))
    w = reference.decode(
        tensors,
        method=config.method,
        format=config.format,
        bits=config.bits,
        group_size=config.group_size,
        zeros_rule=config.zeros_rule.value,
    )
    assert np.array_equal(w.astype(np.float32), wanted.numpy())
