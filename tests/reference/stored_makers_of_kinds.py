"""Random stored tensors of the families that are not integer codes with scales: floats, blocks, trellises, vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from reference.stored_makers import Made, awq, fp16_bytes, halves, words

ALL_NAN = {"float8_e4m3fn": 0x7F, "float8_e5m2": 0x7C, "float8_e4m3fnuz": 0x80, "float8_e5m2fnuz": 0x80}
"""Kind to the lowest 7-bit pattern (8-bit for the fnuz kinds) that is not finite."""


def fp8(
    rng: np.random.Generator,
    k: int,
    n: int,
    *,
    kind: str = "float8_e4m3fn",
    method: str = "block",
    semantics: str = "multiply",
    block: tuple[int, int] = (64, 64),
) -> Made:
    """Float8 codes with every finite value, one scale a tensor, row or block."""
    codes = rng.integers(0, 256, (n, k))
    top = ALL_NAN[kind]
    bad = codes == 0x80 if top == 0x80 else codes % 128 >= top
    codes[bad] = 0x3B
    codes[0, :4] = (0xB9, 0x41, 0x33, 0xC5)
    shape = {"tensor": (), "row": (n,), "block": (-(-n // block[0]), -(-k // block[1]))}[method]
    scale = torch.from_numpy(np.asarray(rng.uniform(0.5, 1.5, shape), dtype=np.float32))
    tensors = {
        "weight": torch.from_numpy(codes.astype(np.uint8)).view(getattr(torch, kind)),
        "weight_scale_inv": scale,
    }
    details: dict[str, Any] = {"weight_scale_method": method, "weight_scale_semantics": semantics}
    if method == "block":
        details["weight_block_size"] = list(block)
    says = {"method": "fp8", "format": "fp8", "bits": 8, "group_size": -1, "code_type": kind, "details": details}
    return Made(tensors=tensors, says=says)


def mxfp4(rng: np.random.Generator, k: int, n: int) -> Made:
    """E2M1 codes with a power of two for every 32 inputs."""
    tensors = {
        "weight_packed": _nibble_pairs(rng, n, k // 2),
        "weight_scale": torch.from_numpy(rng.integers(120, 134, (n, k // 32)).astype(np.uint8)),
    }
    return Made(tensors=tensors, says={"method": "fp8", "format": "mxfp4", "bits": 4, "group_size": 32})


def nvfp4(rng: np.random.Generator, k: int, n: int, *, semantics: str = "divide") -> Made:
    """E2M1 codes with an e4m3 scale for every 16 inputs and one scale over all."""
    scale = rng.integers(0x28, 0x50, (n, k // 16)).astype(np.uint8)
    tensors = {
        "weight_packed": _nibble_pairs(rng, n, k // 2),
        "weight_scale": torch.from_numpy(scale).view(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([3.5]),
    }
    details = {"weight_global_scale_semantics": semantics}
    says = {"method": "fp8", "format": "nvfp4", "bits": 4, "group_size": 16, "details": details}
    return Made(tensors=tensors, says=says)


def _nibble_pairs(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    pairs = rng.integers(0, 256, shape).astype(np.uint8)
    pairs[0, 0] = 0x2D
    return torch.from_numpy(pairs)


HALVES_OF: Mapping[str, tuple[int, int, tuple[int, ...]]] = {
    "q4_0": (32, 18, (0,)),
    "q4_1": (32, 20, (0, 2)),
    "q5_0": (32, 22, (0,)),
    "q5_1": (32, 24, (0, 2)),
    "q8_0": (32, 34, (0,)),
    "q2_k": (256, 84, (80, 82)),
    "q3_k": (256, 110, (108,)),
    "q4_k": (256, 144, (0, 2)),
    "q5_k": (256, 176, (0, 2)),
    "q6_k": (256, 210, (208,)),
    "tq1_0": (256, 54, (52,)),
    "tq2_0": (256, 66, (64,)),
    "mxfp4": (32, 17, ()),
    "nvfp4": (64, 36, ()),
    "iq4_nl": (32, 18, (0,)),
    "iq4_xs": (256, 136, (0,)),
    "iq2_xxs": (256, 66, (0,)),
    "iq2_xs": (256, 74, (0,)),
    "iq2_s": (256, 82, (0,)),
    "iq3_xxs": (256, 98, (0,)),
    "iq3_s": (256, 110, (0,)),
    "iq1_s": (256, 50, (0,)),
    "iq1_m": (256, 56, ()),
    "q1_0": (128, 18, (0,)),
    "q2_0": (64, 18, (0,)),
    "f32": (1, 4, ()),
    "f16": (1, 2, ()),
    "bf16": (1, 2, ()),
}
"""Ggml type to elements and bytes of a block, and to the places of its fp16 numbers."""


def gguf(rng: np.random.Generator, k: int, n: int, *, kind: str = "q4_k", block: tuple[int, int] = (0, 0)) -> Made:
    """Rows of ggml blocks: fp16 numbers near 1/64, all other bytes random; ``block`` overrules elements and bytes."""
    elements, size, places = HALVES_OF[kind]
    elements, size = block if block[0] else (elements, size)
    count = -(-k // elements) * n
    stored = rng.integers(0, 256, (count, size)).astype(np.uint8)
    for place in places:
        stored[:, place : place + 2] = fp16_bytes(rng, count)
    if kind == "mxfp4":
        stored[:, 0] = rng.integers(120, 134, count)
    if kind == "iq1_m":
        stored[:, 55] = stored[:, 55] % 16 + 0x30
    if kind in ("f32", "f16", "bf16"):
        stored[:, -1] = 0x3C
    says = {"method": "gguf", "format": "gguf", "bits": 4, "group_size": -1, "code_type": kind, "k": k, "n": n}
    return Made(tensors={"qweight": torch.from_numpy(stored.reshape(n, -1))}, says=says)


def exl3(
    rng: np.random.Generator, k: int, n: int, *, bits: int = 4, codebook: str = "mcg", packed: bool = False
) -> Made:
    """Trellis codes with signs and scales of inputs and outputs, or with packed signs."""
    tensors = {"trellis": words(rng, k // 16, n // 16, 16 * bits, dtype=np.int16)}
    if packed:
        tensors |= {"su": words(rng, k // 16, dtype=np.int16), "sv": words(rng, n // 16, dtype=np.int16)}
    else:
        tensors |= {
            "suh": halves(rng, k) * torch.from_numpy(rng.choice([-1, 1], k)).half(),
            "svh": halves(rng, n, low=0.01, high=0.03),
        }
    multiplier = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}.get(codebook)
    if multiplier:
        tensors[codebook] = torch.tensor(multiplier - 2**32, dtype=torch.int32)
    says = {"method": "exl3", "format": "exl3", "bits": bits, "group_size": -1}
    return Made(tensors=tensors, says=says | {"details": {"codebook": codebook}})


def paroquant(rng: np.random.Generator, k: int, n: int, *, size: int = 32, rounds: int = 2) -> Made:
    """AWQ words behind rotated inputs; each channel is in one pair a round."""
    made = awq(rng, k, n, size=size)
    pairs = [np.concatenate([rng.permutation(size) for _ in range(k // size)]) for _ in range(rounds)]
    tensors = made.tensors | {
        "theta": halves(rng, rounds, k // 2, low=-3.0, high=3.0),
        "pairs": torch.from_numpy(np.array(pairs, dtype=np.int16)),
        "channel_scales": halves(rng, 1, k),
    }
    says = {"method": "paroquant", "format": "paroquant", "bits": 4, "group_size": size, "sym": False}
    return Made(tensors=tensors, says=says | {"details": {"krot": rounds}})


def vptq(rng: np.random.Generator, k: int, n: int, **corners: Any) -> Made:
    """Vectors of outputs; corners are the keys of the layer's settings, and ``packed``."""
    length, count = corners.get("length", 8), corners.get("count", 256)
    residuals, books = corners.get("residuals", 16), corners.get("books", 1)
    outliers = corners.get("outliers", 0)
    size = (k - outliers) // books
    steps = -(-n // length)
    width = (count - 1).bit_length() + ((residuals - 1).bit_length() if residuals else 0)
    packed = corners.get("packed", True)
    tensors: dict[str, torch.Tensor] = {"centroids.weight": _normal(rng, books, count * length)}
    if packed:
        tensors["indices"] = _cut_stream(rng, (books, steps), size, width)
    else:
        tensors["indices"] = _uint16(rng.integers(0, count, (books, steps, size)))
    if residuals:
        tensors["res_centroids.weight"] = _normal(rng, books, residuals * length) / 8
        if not packed:
            tensors["res_indices"] = _uint16(rng.integers(0, residuals, (books, steps, size)))
    if outliers:
        tensors["outlier_centroids.weight"] = _normal(rng, 1, 16 * 4)
        tensors["outlier_indices"] = _uint16(rng.integers(0, 16, (1, -(-n // 4), outliers)))
    if corners.get("perm"):
        order = rng.permutation(k)
        tensors["perm"] = _uint16(order) if packed else torch.from_numpy(order)
    if corners.get("norm"):
        tensors |= {"weight_scale": halves(rng, k), "weight_bias": halves(rng, k, low=-0.5, high=0.5)}
    details = {
        "in_features": k,
        "out_features": n,
        "vector_lens": [4 if outliers else -1, length],
        "num_centroids": [16 if outliers else -1, count],
        "num_res_centroids": [-1, residuals or -1],
        "group_num": books,
        "group_size": size,
        "outlier_size": outliers,
        "indices_as_float": False,
        "enable_norm": bool(corners.get("norm")),
        "enable_perm": bool(corners.get("perm")),
        "is_indice_packed": packed,
        "bias": False,
        "vector_quant_dim": "out",
    }
    says = {"method": "vptq", "format": "vptq", "bits": 2, "group_size": -1, "k": k, "n": n, "details": details}
    return Made(tensors=tensors, says=says)


def _normal(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float16))


def _uint16(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.uint16).view(np.int16))


def _cut_stream(rng: np.random.Generator, leading: tuple[int, ...], count: int, width: int) -> torch.Tensor:
    """Return int32 words of a bit stream of ``count`` fields: random bits, zeros behind the last field."""
    used, total = count * width, -(-count * width // 32)
    stored = rng.integers(0, 2**32, (*leading, total), dtype=np.uint32)
    if used % 32:
        stored[..., -1] &= np.uint32(2 ** (used % 32) - 1)
    return torch.from_numpy(stored.view(np.int32))
