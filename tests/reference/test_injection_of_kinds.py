"""Errors in the stored tensors of every family are seen, at a small and at a large shape (numerics, section 7)."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from reference import stored_makers as integers
from reference import stored_makers_of_kinds as kinds
from reference.judging import judged
from reference.stored_makers import Made, Tensors

from quantfarm import reference
from quantfarm.declare import parts
from quantfarm.declare.spec import Tolerance
from quantfarm.reference import narrow_floats
from quantfarm.reference.gguf_rows import TYPES
from quantfarm.reference.stored import as_numpy

SHAPES = ((256, 128), (1024, 384))
"""K and N: the smallest that all families have, and a large one."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """How tensors are made, and the tolerance of products with them."""

    make: Callable[..., Made]
    tolerance: Tolerance


FAMILIES = {
    "gptq_p": Family(make=functools.partial(integers.gptq, bits=5, layout="gptq_p"), tolerance=parts.AFFINE),
    "gemv": Family(make=integers.gemv, tolerance=parts.AFFINE),
    "gemv_fast": Family(make=integers.gemv_fast, tolerance=parts.AFFINE),
    "qqq": Family(make=integers.qqq, tolerance=parts.W4A8),
    "qqq_channel": Family(make=functools.partial(integers.qqq, size=-1), tolerance=parts.W4A8),
    "nf4": Family(make=integers.bitsandbytes, tolerance=parts.TABLE),
    "int8": Family(make=functools.partial(integers.bitsandbytes, kind="int8"), tolerance=parts.TABLE),
    "fp8": Family(make=kinds.fp8, tolerance=parts.AFFINE),
    "mxfp4": Family(make=kinds.mxfp4, tolerance=parts.TABLE),
    "nvfp4": Family(make=kinds.nvfp4, tolerance=parts.TABLE),
    "q4_k": Family(make=kinds.gguf, tolerance=parts.GGUF_FLOAT),
    "q6_k": Family(make=functools.partial(kinds.gguf, kind="q6_k"), tolerance=parts.GGUF_FLOAT),
    "exl3": Family(make=kinds.exl3, tolerance=parts.TRELLIS),
    "vptq": Family(make=functools.partial(kinds.vptq, norm=True), tolerance=parts.ROTATED),
    "paroquant": Family(make=kinds.paroquant, tolerance=parts.ROTATED),
}

Error = Callable[[Tensors], None]


def swapped(name: str, bits: int = 4, at: tuple[int, ...] = (0, 0)) -> Error:
    """E1: the two lowest fields of one word change places."""

    def inject(tensors: Tensors) -> None:
        size = 8 * tensors[name].element_size()
        word = int(tensors[name][at]) % 2**size
        mask = 2**bits - 1
        low, high = word & mask, word >> bits & mask
        assert low != high
        word = word >> 2 * bits << 2 * bits | low << bits | high
        info = torch.iinfo(tensors[name].dtype)
        tensors[name][at] = word - 2**size if word > info.max else word

    return inject


def exchanged(name: str) -> Error:
    """E1 of whole bytes: the codes of inputs 0 and 1 change places."""

    def inject(tensors: Tensors) -> None:
        stored = tensors[name].view(torch.uint8)
        assert stored[0, 0] != stored[0, 1]
        stored[0, :2] = stored[0, :2].flip(0)

    return inject


def scaled(name: str, where: object = -1, factor: float = 1.01) -> Error:
    """E2, and E3 with the factor 0: the scales of one group times a factor."""

    def inject(tensors: Tensors) -> None:
        tensors[name][where] = (tensors[name][where].to(torch.float32) * factor).to(tensors[name].dtype)

    return inject


def neighbour(name: str, of: tuple[int, ...], other: tuple[int, ...]) -> Error:
    """E2: one scale is its neighbour's."""

    def inject(tensors: Tensors) -> None:
        assert tensors[name][of] != tensors[name][other]
        tensors[name][of] = tensors[name][other]

    return inject


def added(name: str, where: object, step: int = 1) -> Error:
    """E4: stored integers of one group are larger by a step; a field of all ones goes one down instead."""

    def inject(tensors: Tensors) -> None:
        stored = tensors[name].view(torch.uint8) if tensors[name].element_size() == 1 else tensors[name]
        stored[where] = torch.where(stored[where] % 16 * step == 15, stored[where] - step, stored[where] + step)

    return inject


def without_sign(name: str) -> Error:
    """E8: the first word whose top bit is set loses it."""

    def inject(tensors: Tensors) -> None:
        size = 8 * tensors[name].element_size()
        raw = tensors[name].view({8: torch.int8, 16: torch.int16, 32: torch.int32}[size])
        place = tuple(int(i) for i in (raw < 0).nonzero()[0])
        raw[place] = raw[place] & 2 ** (size - 1) - 1

    return inject


def halves_of_last_block(size: int, *places: int, factor: float) -> Error:
    """E2 and E3 of ggml blocks: the fp16 numbers of the last block of every row times a factor."""

    def inject(tensors: Tensors) -> None:
        last = tensors["qweight"][:, -size:]
        for place in places:
            pair = last[:, place : place + 2].contiguous().view(torch.float16)
            last[:, place : place + 2] = (pair.to(torch.float32) * factor).half().view(torch.uint8)

    return inject


def zero_up_in_offsets(tensors: Tensors) -> None:
    """E4 where -(scale * zero) is stored: the zero points of the first group are one larger."""
    tensors["qzeros"][0] -= tensors["scales"][0]


def planar_zero_up(tensors: Tensors) -> None:
    """E4 of planar zero points of 5 bits: the lowest bit of the low plane changes for every output of a group."""
    blocks = tensors["qzeros"].view(tensors["qzeros"].shape[0], -1, 5)
    blocks[-1, :, :4] ^= 0x11111111


def turned_back(tensors: Tensors) -> None:
    """E5 of rotations: the last round turns the other way."""
    tensors["theta"][-1] *= -1


LAST_BLOCK = np.s_[:, -1]
INJECTIONS: dict[str, tuple[tuple[str, Error, bool], ...]] = {
    "gptq_p": (
        ("E1", swapped("qweight"), False),
        ("E2", scaled("scales"), True),
        ("E2 neighbour", neighbour("scales", (-1, 0), (-1, 1)), False),
        ("E3", scaled("scales", factor=0), True),
        ("E4", planar_zero_up, True),
        ("E8", without_sign("qweight"), False),
    ),
    "gemv": (
        ("E1", swapped("qweight"), False),
        ("E2", scaled("scales", np.s_[:, 7]), True),
        ("E2 neighbour", neighbour("scales", (0, 0), (0, 1)), False),
        ("E3", scaled("scales", np.s_[:, 7], 0), True),
        ("E4", added("qzeros", np.s_[:, 0]), True),
        ("E8", without_sign("qweight"), False),
    ),
    "gemv_fast": (
        ("E1", swapped("qweight"), False),
        ("E2", scaled("scales", 0), True),
        ("E2 neighbour", neighbour("scales", (0, 0), (0, 1)), False),
        ("E3", scaled("scales", 0, 0), True),
        ("E4", zero_up_in_offsets, True),
        ("E8", without_sign("qweight"), False),
    ),
    "qqq": (
        ("E1", swapped("B"), False),
        ("E2", scaled("s_group"), True),
        ("E2 neighbour", neighbour("s_channel", (0, 0), (0, 1)), False),
        ("E3", scaled("s_group", factor=0), True),
        ("E8", without_sign("B"), False),
    ),
    "qqq_channel": (
        ("E1", swapped("B"), False),
        ("E2", scaled("s_channel", np.s_[:, :64]), True),
        ("E2 neighbour", neighbour("s_channel", (0, 0), (0, 1)), False),
        ("E8", without_sign("B"), False),
    ),
    "nf4": (
        ("E1", swapped("weight"), False),
        ("E2", scaled("weight.absmax"), False),
        ("E2 neighbour", neighbour("weight.absmax", (0,), (1,)), False),
        ("E3", scaled("weight.absmax", np.s_[::32], 0), True),
        ("E8", without_sign("weight"), False),
    ),
    "int8": (
        ("E1", exchanged("weight"), False),
        ("E2", scaled("SCB"), False),
        ("E2 neighbour", neighbour("SCB", (0,), (1,)), False),
        ("E3", scaled("weight", np.s_[:, -32:], 0), True),
        ("E8", without_sign("weight"), False),
    ),
    "fp8": (
        ("E1", exchanged("weight"), False),
        ("E2", scaled("weight_scale_inv", LAST_BLOCK), True),
        ("E2 neighbour", neighbour("weight_scale_inv", (0, 0), (0, 1)), False),
        ("E3", scaled("weight_scale_inv", LAST_BLOCK, 0), True),
        ("E8", without_sign("weight"), False),
    ),
    "mxfp4": (
        ("E1", swapped("weight_packed"), False),
        ("E2", added("weight_scale", LAST_BLOCK), True),
        ("E3", scaled("weight_packed", np.s_[:, -16:], 0), True),
        ("E8", without_sign("weight_packed"), False),
    ),
    "nvfp4": (
        ("E1", swapped("weight_packed"), False),
        ("E2", added("weight_scale", LAST_BLOCK), True),
        ("E2 global", scaled("weight_global_scale", 0), True),
        ("E3", scaled("weight_packed", np.s_[:, -16:], 0), True),
        ("E8", without_sign("weight_packed"), False),
    ),
    "q4_k": (
        ("E1", swapped("qweight", at=(0, 16)), False),
        ("E2", halves_of_last_block(144, 0, 2, factor=1.01), True),
        ("E2 neighbour", neighbour("qweight", (0, 4), (0, 5)), False),
        ("E3", halves_of_last_block(144, 0, 2, factor=0), True),
        ("E4", added("qweight", np.s_[:, 8]), True),
        ("E8", without_sign("qweight"), False),
    ),
    "q6_k": (
        ("E1", swapped("qweight"), False),
        ("E2", halves_of_last_block(210, 208, factor=1.01), True),
        ("E2 neighbour", neighbour("qweight", (0, 192), (0, 193)), False),
        ("E3", halves_of_last_block(210, 208, factor=0), True),
        ("E8", without_sign("qweight"), False),
    ),
    "exl3": (
        ("E1", swapped("trellis", at=(0, 0, 0)), False),
        ("E2", scaled("suh", np.s_[-128:]), True),
        ("E2 neighbour", neighbour("svh", (0,), (1,)), False),
        ("E3", scaled("suh", np.s_[-32:], 0), True),
        ("E8", without_sign("trellis"), False),
    ),
    "vptq": (
        ("E1", swapped("indices", bits=12, at=(0, 0, 0)), False),
        ("E2", scaled("weight_scale", np.s_[-32:]), True),
        ("E2 neighbour", neighbour("weight_scale", (0,), (1,)), False),
        ("E3", scaled("weight_scale", np.s_[-32:], 0), True),
        ("E4", scaled("weight_bias", np.s_[-32:], 0), True),
        ("E8", without_sign("indices"), False),
    ),
    "paroquant": (
        ("E1", swapped("qweight"), False),
        ("E2", scaled("scales"), True),
        ("E2 neighbour", neighbour("scales", (-1, 0), (-1, 1)), False),
        ("E2 channel", scaled("channel_scales", np.s_[:, -32:]), True),
        ("E3", scaled("scales", factor=0), True),
        ("E5", turned_back, True),
        ("E8", without_sign("qweight"), False),
    ),
}
"""Family to its errors: name, what happens to the stored tensors, and whether random rows must see it too."""

CASES = [(family, index) for family, errors in INJECTIONS.items() for index in range(len(errors))]


def decoded(tensors: Tensors, made: Made) -> np.ndarray:
    """Decode by the closed form; those of E2M1 codes are called directly, as not every version has the formats."""
    form = {"mxfp4": narrow_floats.mxfp4, "nvfp4": narrow_floats.nvfp4}.get(made.says["format"])
    if form is None:
        return reference.decode(tensors, **made.says)
    return form({name: as_numpy(tensor) for name, tensor in tensors.items()}, reference.Stored(**made.says))


@functools.cache
def clean(family: str, k: int, n: int) -> tuple[Made, np.ndarray]:
    """Return stored tensors and their weight, once per shape."""
    made = FAMILIES[family].make(np.random.default_rng(zlib.crc32(family.encode())), k, n)
    return made, decoded(made.tensors, made)


def verdicts(family: str, w: np.ndarray, w64: np.ndarray) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Judge a product of fp16 rows."""
    return judged(torch.from_numpy(w.astype(np.float32)), w64, torch.float16, FAMILIES[family].tolerance)


@pytest.mark.parametrize(("k", "n"), SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_right_product_passes(family: str, k: int, n: int) -> None:
    """Without an error both judgements are silent."""
    _, w64 = clean(family, k, n)
    assert np.isfinite(w64).all()
    assert verdicts(family, w64, w64) == ((), ())


@pytest.mark.parametrize(("k", "n"), SHAPES)
@pytest.mark.parametrize(
    ("family", "index"), CASES, ids=[f"{family}-{INJECTIONS[family][index][0]}" for family, index in CASES]
)
def test_an_error_in_stored_tensors_is_seen(family: str, index: int, k: int, n: int) -> None:
    """One-hot rows see each error; random rows those that touch a whole group."""
    made, w64 = clean(family, k, n)
    _, inject, by_rows = INJECTIONS[family][index]
    tensors = {name: tensor.clone() for name, tensor in made.tensors.items()}
    inject(tensors)
    rows, columns = verdicts(family, decoded(tensors, made), w64)
    assert columns != ()
    assert rows != () or not by_rows


def test_every_family_has_errors() -> None:
    """No family is judged by tolerances that were never seen to fail."""
    assert set(FAMILIES) == set(INJECTIONS)


@pytest.mark.parametrize(("k", "n"), SHAPES)
@pytest.mark.parametrize("method", ["tensor", "row", "block"])
@pytest.mark.parametrize("semantics", ["inverse", "multiply"])
def test_an_inverted_direction_is_seen(semantics: str, method: str, k: int, n: int) -> None:
    """E9: a float8 scale that is multiplied instead of divided, or the other way round."""
    made = kinds.fp8(np.random.default_rng(0), k, n, method=method, semantics=semantics)
    w64 = reference.decode(made.tensors, **made.says)
    other = "multiply" if semantics == "inverse" else "inverse"
    wrong = made.says | {"details": made.says["details"] | {"weight_scale_semantics": other}}
    rows, columns = verdicts("fp8", reference.decode(made.tensors, **wrong), w64)
    assert rows != ()
    assert columns != ()


@pytest.mark.parametrize(("kind", "k"), [("q2_0", 1088), ("q1_0", 96)])
def test_a_mistaken_block_is_seen(kind: str, k: int) -> None:
    """E9: rows whose bytes fit both blocks decode to other values when the wrong one is taken."""
    (elements, size, values), (_, other_size, _) = TYPES[kind]
    made = kinds.gguf(np.random.default_rng(0), k, 8, kind=kind, block=(elements, size))
    w64 = reference.decode(made.tensors, **made.says)
    blocks = made.tensors["qweight"].numpy().astype(np.int64).reshape(-1, other_size)
    with np.errstate(all="ignore"):
        mistaken = values(blocks).reshape(8, -1)[:, :k]
    rows, columns = verdicts("q4_k", mistaken, w64)
    assert rows != ()
    assert columns != ()
