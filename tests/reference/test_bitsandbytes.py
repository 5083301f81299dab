"""The closed forms of bitsandbytes against its own dequantizers and against tensors made by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from quantfarm import reference

functional = pytest.importorskip("bitsandbytes.functional")


def decode(tensors: dict[str, torch.Tensor], code_type: str, **says: object) -> np.ndarray:
    """Decode one weight."""
    bits = 8 if code_type == "int8" else 4
    return reference.decode(
        tensors,
        method="bitsandbytes",
        format="bitsandbytes",
        bits=bits,
        group_size=-1,
        code_type=code_type,
        **says,
    )


def peer_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Spell the suffixes with underscores."""
    return {name.split(".bitsandbytes__")[0].replace(".", "_"): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("shape", [(6, 64), (3, 43), (1, 1), (40, 80)])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("code_type", ["nf4", "fp4"])
def test_four_bits_agree_with_the_library(code_type: str, shape: tuple[int, int], *, nested: bool) -> None:
    """Plain and nested absmax, odd numbers of elements, a last partial block, both spellings of the names."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type=code_type, compress_statistics=nested)
    tensors = {"weight": packed} | {f"weight.{name}": value for name, value in state.as_dict(packed=True).items()}
    # As one row: the library's CPU dequantizer goes wrong where the block does not divide the inputs of several rows.
    state.shape = torch.Size([1, weight.numel()])
    wanted = functional.dequantize_4bit(packed, state).numpy().reshape(shape)
    for names in (tensors, peer_names(tensors)):
        w = decode(names, code_type)
        assert w.shape == shape
        tolerance = 4 * np.finfo(np.float32).eps * np.abs(wanted).max() if nested else 0
        assert np.abs(w.astype(np.float32) - wanted).max() <= tolerance


@pytest.mark.parametrize("code_type", ["nf4", "fp4"])
def test_the_published_table_is_that_of_the_library(code_type: str) -> None:
    """Without a stored table the codes 0 to 15 are those that the library decodes."""
    packed = torch.arange(8, dtype=torch.uint8)[:, None] * 34 + 1
    _, state = functional.quantize_4bit(torch.ones(1, 16), blocksize=64, quant_type=code_type)
    wanted = functional.dequantize_4bit(packed, state).numpy()
    w = decode({"weight": packed, "weight.absmax": torch.ones(1)}, code_type, n=1, k=16)
    assert np.array_equal(w.astype(np.float32), wanted)


def test_nested_absmax_by_hand() -> None:
    """Absmax = nested table at the code * nested absmax of 256 blocks + the offset of the JSON; then table * absmax."""
    codes = (np.arange(300) % 256).astype(np.uint8)
    text = json.dumps({"quant_type": "nf4", "blocksize": 2, "shape": [2, 300], "nested_offset": 0.5})
    tensors = {
        "weight": np.full((300, 1), 0xF0, dtype=np.uint8),
        "weight_absmax": codes,
        "weight_nested_absmax": np.array([2.0, 4.0], dtype=np.float32),
        "weight_nested_quant_map": np.arange(256, dtype=np.float32) / 256,
        "weight_quant_state": np.frombuffer(text.encode(), dtype=np.uint8),
    }
    absmax = [code / 256 * (2.0 if i < 256 else 4.0) + 0.5 for i, code in enumerate(codes.tolist())]
    wanted = np.array([[value, -value] for value in absmax]).reshape(2, 300)
    assert np.array_equal(decode(tensors, "nf4"), wanted)


@pytest.mark.parametrize("name", ["weight_scb", "SCB"])
def test_eight_bits_by_hand_and_by_the_library(name: str) -> None:
    """A row's value is code * scale / 127."""
    tensors = {
        "weight": torch.tensor([[127, -127, 0], [1, -128, 64]], dtype=torch.int8),
        name: torch.tensor([2.0, 127.0]),
    }
    w = decode(tensors, "int8")
    assert w.tolist() == [[2.0, -2.0, 0.0], [1.0, -128.0, 64.0]]
    wanted = functional.int8_vectorwise_dequant(tensors["weight"], tensors[name]).numpy()
    assert np.allclose(w, wanted, rtol=1e-6)
