"""Cases from a record: every value of every axis it declares, combined so that each pair of values meets once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.job import Job
from support.weights import Recipe, family_of

BIASES = ("none", "same", "float32")
LARGE = 4_000_000
"""Values of a weight from which on a shape counts as large."""

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """One combination. ``bias``: none, in the activation dtype, or wider. ``variant``: see ``Recipe``."""

    method: str
    format: str
    bits: int
    group_size: int
    sym: bool
    act_order: bool
    dtype: str
    n: int
    k: int
    bias: str
    variant: str = ""

    @property
    def recipe(self) -> Recipe:
        """The weight's part of the case."""
        return Recipe(
            method=self.method,
            format=self.format,
            bits=self.bits,
            group_size=self.group_size,
            sym=self.sym,
            act_order=self.act_order,
            n=self.n,
            k=self.k,
            variant=self.variant,
        )

    def __str__(self) -> str:
        """Return the id of a test: scheme, shape, dtype."""
        zero, order = "sym" if self.sym else "asym", "-act" if self.act_order else ""
        kind = f"-{self.variant}" if self.variant else ""
        scheme = f"{self.format}{kind}-w{self.bits}g{self.group_size}-{zero}{order}"
        return f"{scheme}-{self.n}x{self.k}-{self.dtype}-bias_{self.bias}"


def read_shape(text: str) -> tuple[int, int]:
    """Return (N, K) of ``4096x4096``."""
    n, k = text.split("x")
    return int(n), int(k)


def parity_cases(job: Job) -> list[Case]:
    """Return a cover of all pairs over small shapes, and per dtype one case on each large shape.

    Formats whose own shapes are tested because none of the tier's fit have no large case: the oracle reads their
    bytes one by one.
    """
    combinations = list(all_cases(job.record, [read_shape(s) for s in job.tier["shapes"]]))
    small = [case for case in combinations if case.n * case.k < LARGE]
    large = [case for case in combinations if case.n * case.k >= LARGE and family_of(case.format).make is None]
    chosen = pairwise(small)
    if job.tier["thorough"]:
        chosen += [case for case in pairwise(small, skip=len(chosen)) if case not in chosen]
    return chosen + _one_each(large)


def all_cases(record: Mapping[str, Any], shapes: Sequence[tuple[int, int]]) -> Iterator[Case]:
    """Yield every combination that a record declares and that fits together.

    A fact without a meaning for the weights of a row (an empty list) has one neutral value.
    """
    for row in record["accepts"]:
        for fmt in row["formats"]:
            own = [*shapes, *family_of(fmt).shapes]
            for bits, size, sym, order, dtype, (n, k), bias in itertools.product(
                row["bits"],
                row["group_sizes"] or (-1,),
                row["sym"] or (True,),
                row["act_order"] or (False,),
                row["activations"] or record["activations"],
                own,
                BIASES,
            ):
                for variant in family_of(fmt).variants(bits):
                    case = Case(record["method"], fmt, bits, size, sym, order, dtype, n, k, bias, variant)
                    if _fits(case, record["shape"]) and family_of(fmt).fits(case.recipe):
                        yield case


def _fits(case: Case, shape: Mapping[str, Any]) -> bool:
    """Say whether shape and groups fit the record, and whether an order of activations means anything."""
    if case.n % shape["n_multiple"] or case.k % shape["k_multiple"]:
        return False
    if case.group_size == -1:
        return not case.act_order
    whole = case.k % case.group_size == 0
    return case.group_size < case.k and (whole or (shape["short_last_group"] and not case.act_order))


def _values(case: Case) -> tuple[Any, ...]:
    shape = (case.n, case.k)
    scheme = (case.format, case.bits, case.variant, case.group_size, case.sym, case.act_order)
    return (*scheme, case.dtype, shape, case.bias)


def _pairs(case: Case) -> frozenset[tuple[int, Any, int, Any]]:
    values = list(enumerate(_values(case)))
    return frozenset((i, a, j, b) for (i, a), (j, b) in itertools.combinations(values, 2))


def pairwise(cases: Sequence[Case], skip: int = 0) -> list[Case]:
    """Return few cases that hold every pair of values which occurs in any case; ``skip`` rotates the start."""
    ordered = [*cases[skip:], *cases[:skip]]
    pairs = {case: _pairs(case) for case in ordered}
    missing = set().union(*pairs.values()) if pairs else set()
    chosen: list[Case] = []
    while missing:
        best = max(ordered, key=lambda case: len(pairs[case] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return chosen


def _one_each(cases: Sequence[Case]) -> list[Case]:
    """Return one case per shape and dtype, with group size 128 where there is one and no wide bias."""
    wanted = [case for case in cases if case.bias == "none" and case.group_size == 128 and not case.sym]
    found: dict[tuple[Any, ...], Case] = {}
    for case in wanted or cases:
        key = (case.n, case.k, case.dtype)
        if key not in found or (case.act_order and not found[key].act_order):
            found[key] = case
    return list(found.values())
