"""Every row of the format table has a maker of stored tensors, which its reader decodes as the reference does."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from reference import stored_makers as integers
from reference import stored_makers_of_kinds as kinds
from reference.stored_makers import Made

from quantfarm import reference
from quantfarm.declare.names import FORMAT, METHOD
from quantfarm.formats.config import QuantConfig, parse
from quantfarm.formats.table import FORMATS, FormatRow

EXACT = 0.0
"""The reader gives the float64 value rounded once to fp32."""


@dataclass(frozen=True, kw_only=True)
class Variation:
    """One kind of stored tensors of a layout.

    Attributes:
        make: ``make(rng, k, n) -> Made``.
        k, n: shape.
        bound: the largest distance from float64 in units of the largest value of a row; EXACT for one rounding.
        settings: keys of the settings beside those that every layout has.
    """

    make: Callable[[np.random.Generator, int, int], Made]
    k: int = 128
    n: int = 64
    bound: float = EXACT
    settings: Mapping[str, Any] = field(default_factory=dict)


def _variations(
    make: Callable[..., Made], *options: Mapping[str, Any], bound: float = EXACT, **shape: int
) -> tuple[Variation, ...]:
    return tuple(
        Variation(make=functools.partial(make, **option), bound=bound, **shape) for option in (options or ({},))
    )


def _gptq(layout: str, widths: tuple[int, ...]) -> tuple[Variation, ...]:
    return _variations(
        integers.gptq, *({"bits": bits, "layout": layout, "size": size} for bits in widths for size in (32, -1))
    )


def _four_bit_floats() -> dict[tuple[METHOD, FORMAT, str], tuple[Variation, ...]]:
    """Return those of the formats of E2M1 codes, by name, as not every version has them."""
    made = {
        "MXFP4": _variations(kinds.mxfp4),
        "NVFP4": _variations(kinds.nvfp4, {"semantics": "divide"}, {"semantics": "multiply"}, bound=3e-7),
    }
    return {(METHOD.FP8, FORMAT[name], ""): found for name, found in made.items() if name in FORMAT.__members__}


VARIATIONS: Mapping[tuple[METHOD, FORMAT, str], tuple[Variation, ...]] = {
    (METHOD.GPTQ, FORMAT.GPTQ, ""): _gptq("gptq", (2, 3, 4, 8)),
    (METHOD.GPTQ, FORMAT.GPTQ_V2, ""): _gptq("gptq_v2", (2, 3, 4, 8)),
    (METHOD.GPTQ, FORMAT.GPTQ_P, ""): _gptq("gptq_p", (2, 3, 4, 5, 6, 7, 8)),
    (METHOD.GPTQ, FORMAT.MARLIN, ""): _gptq("marlin", (4, 8)),
    (METHOD.AWQ, FORMAT.GEMM, ""): _variations(integers.awq, {"size": 32}, {"size": -1}),
    (METHOD.AWQ, FORMAT.MARLIN, ""): _variations(integers.awq, {"size": 32, "layout": "marlin"}),
    (METHOD.AWQ, FORMAT.GEMV, ""): _variations(integers.gemv, *({"size": size} for size in (32, 64, 128)), k=384),
    (METHOD.AWQ, FORMAT.GEMV_FAST, ""): _variations(
        integers.gemv_fast, *({"size": size} for size in (32, 64, 128)), k=384
    ),
    (METHOD.AWQ, FORMAT.LLM_AWQ, ""): _variations(integers.gemv_fast, {"size": 64, "layout": "llm-awq"}, k=384),
    (METHOD.QQQ, FORMAT.QQQ, ""): _variations(integers.qqq, {"size": 128}, {"size": -1}, k=256, n=128),
    (METHOD.GGUF, FORMAT.GGUF, ""): (
        *_variations(kinds.gguf, *({"kind": kind} for kind in kinds.HALVES_OF), bound=1e-6, k=512),
        *_variations(kinds.gguf, {"kind": "q4_0"}, {"kind": "q4_k"}, bound=1e-6, k=200),
        *_variations(kinds.gguf, {"kind": "q1_0", "block": (32, 6)}, {"kind": "q2_0", "block": (128, 34)}, k=384),
    ),
    (METHOD.FP8, FORMAT.FP8, ""): tuple(
        variation
        for kind in kinds.ALL_NAN
        for variation in _variations(
            kinds.fp8,
            *(
                {"kind": kind, "method": method, "semantics": semantics}
                for method in ("tensor", "row", "block")
                for semantics in ("inverse", "multiply")
            ),
        )
    ),
    **_four_bit_floats(),
    (METHOD.BITSANDBYTES, FORMAT.BITSANDBYTES, ""): (
        *_variations(integers.bitsandbytes, {"kind": "nf4"}, {"kind": "fp4"}),
        *_variations(integers.bitsandbytes, {"kind": "nf4"}, {"kind": "fp4"}, k=43, n=3),
        *_variations(integers.bitsandbytes, {"kind": "nf4", "nested": True}, {"kind": "int8"}, bound=5e-7, k=320),
    ),
    (METHOD.EXL3, FORMAT.EXL3, ""): (
        *_variations(kinds.exl3, *({"bits": bits} for bits in range(1, 9)), bound=2e-6, n=256),
        *_variations(kinds.exl3, {"codebook": "3inst"}, {"codebook": "mul1"}, {"packed": True}, bound=2e-6, n=128),
    ),
    (METHOD.VPTQ, FORMAT.VPTQ, ""): _variations(
        kinds.vptq,
        {},
        {"residuals": 0},
        {"count": 16, "residuals": 256},
        {"books": 2},
        {"outliers": 8},
        {"perm": True, "norm": True, "outliers": 8},
        {"packed": False, "perm": True},
        bound=1e-6,
        n=60,
    ),
    (METHOD.PARO, FORMAT.PAROQUANT, ""): _variations(
        kinds.paroquant,
        *({"size": size, "rounds": rounds} for size, rounds in ((16, 8), (32, 2), (64, 1), (128, 8))),
        bound=2e-6,
    ),
}
"""Method, format and dialect to what is made for it; a row of the table without an entry fails."""

BY_A_PLAIN_LOOP = {(METHOD.GPTQ, FORMAT.GPTQ_V2, "compressed-tensors"): "tests/formats/test_compressed_tensors.py"}
"""Rows without a closed form of their own tensor names, and the test that decodes their fields one by one."""


def settings_of(made: Made) -> dict[str, Any]:
    """Return the settings of a checkpoint with such tensors (formats, section 18)."""
    says = made.says
    raw: dict[str, Any] = {
        "quant_method": says["method"],
        "bits": says["bits"],
        "group_size": says["group_size"],
        "desc_act": False,
        "sym": says.get("sym", False),
        "checkpoint_format": says["format"],
    }
    if says["method"] == "awq":
        raw |= {"version": says["format"], "zero_point": True}
        del raw["sym"], raw["checkpoint_format"]
    if says["method"] in ("fp8", "bitsandbytes") and says.get("code_type"):
        raw["format"] = says["code_type"]
        del raw["checkpoint_format"]
    if says["method"] == "gguf":
        raw["bits"] = says["code_type"]
    if says["method"] == "vptq":
        return raw | {"config_for_layers": {"m": dict(says["details"])}}
    return raw | dict(says.get("details", {}))


def pairs() -> list[tuple[METHOD, FormatRow]]:
    """Return every method of every row of the table."""
    return [(method, row) for row in FORMATS for method in row.methods]


def cases() -> list[Any]:
    """Return every variation of every row, with a name."""
    return [
        pytest.param(row, variation, id=f"{method.value}-{row.format.value}-{row.dialect}-{number}")
        for method, row in pairs()
        for number, variation in enumerate(VARIATIONS.get((method, row.format, row.dialect), ()))
    ]


def test_every_row_of_the_table_has_a_maker() -> None:
    """A layout that is read without a maker here is read without a second opinion."""
    missing = [
        (method.value, row.format.value, row.dialect)
        for method, row in pairs()
        if not VARIATIONS.get(key := (method, row.format, row.dialect)) and key not in BY_A_PLAIN_LOOP
    ]
    assert missing == []


@pytest.mark.parametrize(("row", "variation"), cases())
def test_the_reader_decodes_as_the_reference(row: FormatRow, variation: Variation) -> None:
    """The same bytes and settings, two programs that share no code, one weight."""
    for seed in range(2):
        rng = np.random.default_rng(zlib.crc32(f"{row.format} {seed}".encode()))
        made = variation.make(rng, variation.k, variation.n)
        config = config_of(made, variation)
        weight = row.read()(made.tensors, config, module="m", k=variation.k, n=variation.n)
        assert (weight.n, weight.k) == (variation.n, variation.k)
        decoded = weight.decoded().numpy()
        wanted = reference.decode(made.tensors, **made.says)
        assert decoded.dtype == np.float32
        assert np.isfinite(wanted).all()
        assert np.any(wanted != 0)
        if variation.bound == EXACT:
            assert np.array_equal(decoded, wanted.astype(np.float32))
        else:
            largest = np.abs(wanted).max(axis=1, keepdims=True)
            assert (np.abs(decoded - wanted) <= variation.bound * largest).all()


def config_of(made: Made, variation: Variation) -> QuantConfig:
    """Return the settings of the module."""
    config = parse(settings_of(made) | dict(variation.settings), source="settings").for_module("m")
    assert config is not None
    return config
