"""How names are read: the ids N01 to N14 are those of the selection contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantfarm.declare.names import (
    ALIASES,
    BACKEND,
    DEVICE,
    FORMAT,
    LEGACY,
    METHOD,
    PROFILE,
    BadType,
    UnknownName,
    normalize_backend,
    normalize_format,
    normalize_method,
    normalize_profile,
)

TABLE = json.loads((Path(__file__).parent.parent / "data" / "declarations.json").read_text(encoding="utf-8"))

OWN_FORMATS = {"MXFP4": "mxfp4", "NVFP4": "nvfp4"}
"""Members that the table lacks: other projects store 4-bit floats, docs/decisions/0008 says how they are named."""


def test_enums_hold_every_declared_member() -> None:
    """Members and exact strings of all five enums are those of the declaration table, and no others."""
    backends = {row["backend"]: row["value"] for row in TABLE["rows"]}
    backends |= {row["member"]: row["value"] for row in TABLE["legacy"]}
    assert {b.name: b.value for b in BACKEND} == backends
    assert {m.name: m.value for m in METHOD} == {m["member"]: m["value"] for m in TABLE["methods"]}
    formats = {f["member"]: f["value"] for f in TABLE["formats"]} | OWN_FORMATS
    assert {f.name: f.value for f in FORMAT} == formats
    assert {p.name: p.value for p in PROFILE} == {p["member"]: p["value"] for p in TABLE["profiles"]}
    adopted = {d["member"]: d["value"] for d in TABLE["devices"] if "not adopted" not in d.get("note", "")}
    assert {d.name: d.value for d in DEVICE} == adopted


def test_legacy_and_alias_tables_match() -> None:
    """What a legacy member or an alias stands for is what the declaration table says."""
    expected: dict[str, Any] = {row["member"]: row["methods"] for row in TABLE["legacy"]}
    assert {m.name: {k.value: v.name for k, v in t.items()} for m, t in LEGACY.items()} == expected
    assert {k: v.name for k, v in ALIASES.items()} == {row["string"]: row["backend"] for row in TABLE["aliases"]}


@pytest.mark.parametrize("value", [None, "", "  \t"])
def test_n01_nothing_asked(value: str | None) -> None:
    """None and blank strings ask for nothing."""
    assert normalize_backend(value) is None


@pytest.mark.parametrize("value", [" GPTQ_Torch ", "gptq_torch", BACKEND.GPTQ_TORCH])
def test_n02_case_and_blanks(value: str) -> None:
    """A name is read in any case, with blanks around it, and a member is taken as it is."""
    assert normalize_backend(value) is BACKEND.GPTQ_TORCH


@pytest.mark.parametrize(
    ("method", "member"),
    [("gptq", "GPTQ_TORCH"), ("awq", "AWQ_TORCH"), ("fp8", "FP8_TORCH"), ("exl3", "EXL3_TORCH"), ("nf12", "NF12_AD")],
)
def test_n03_legacy_with_method(method: str, member: str) -> None:
    """A legacy name is rewritten to the member of the method."""
    assert normalize_backend("torch", method) is BACKEND[member]


def test_n04_n05_legacy_without_entry() -> None:
    """Without a method, or without an entry for it, a legacy member stays itself."""
    assert normalize_backend("torch") is BACKEND.TORCH
    assert normalize_backend("triton", "awq") is BACKEND.TRITON


@pytest.mark.parametrize("value", ["AWQ_Marlin", "gptq_marlin", "marlin"])
def test_n06_shared_backend_aliases(value: str) -> None:
    """Method-prefixed spellings of a shared backend name that backend for any method; they are no members."""
    assert normalize_backend(value, "gptq") is BACKEND.MARLIN
    assert "GPTQ_MARLIN" not in BACKEND.__members__


@pytest.mark.parametrize("value", ["fastest", "gptq_torhc"])
def test_n07_unknown_names(value: str) -> None:
    """An unknown name is an error that offers the nearest known ones."""
    with pytest.raises(UnknownName, match="nearest known names"):
        normalize_backend(value)


@pytest.mark.parametrize("value", [3, True, object(), METHOD.GPTQ])
def test_n08_wrong_types(value: object) -> None:
    """What is neither a string nor a member is a type error."""
    with pytest.raises(BadType):
        normalize_backend(value)


def test_n09_paroquant() -> None:
    """The old string of ParoQuant becomes the CUDA member with its method and stays legacy without."""
    assert normalize_backend("paroquant", "paroquant") is BACKEND.PAROQUANT_CUDA
    assert normalize_backend("paroquant") is BACKEND.PARO


def test_r97_method_given_as_backend() -> None:
    """R97: a method given as a backend is called a method, with the backends it has."""
    with pytest.raises(UnknownName, match=r"is a method, not a backend; .*gptq_torch"):
        normalize_backend("gptq")


@pytest.mark.parametrize("value", [None, " ", 0, "auto"])
def test_n12_profile_auto(value: object) -> None:
    """Nothing, zero and the name mean AUTO."""
    assert normalize_profile(value) is PROFILE.AUTO


@pytest.mark.parametrize("value", ["Low Memory", "low-memory", 2, PROFILE.LOW_MEMORY])
def test_n13_profile_spellings(value: object) -> None:
    """Blanks and hyphens count as underscores, and integers are read."""
    assert normalize_profile(value) is PROFILE.LOW_MEMORY


@pytest.mark.parametrize(
    ("value", "error"), [(3, UnknownName), ("turbo", UnknownName), (1.0, BadType), (True, BadType)]
)
def test_n14_profile_errors(value: object, error: type[Exception]) -> None:
    """Unknown values and wrong types are told apart; a bool is no integer here."""
    with pytest.raises(error):
        normalize_profile(value)


def test_method_and_format_strings() -> None:
    """Methods and formats are read in any case; unknown ones name the nearest."""
    assert normalize_method("GPTQ") is METHOD.GPTQ
    assert normalize_format("LLM-AWQ") is FORMAT.LLM_AWQ
    with pytest.raises(UnknownName, match="gptq_v2"):
        normalize_format("gptq_v3")
