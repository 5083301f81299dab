"""The shape part of ``check``: K, N, their joint rule, and the number of rows."""

from __future__ import annotations

from collections.abc import Iterator

from quantfarm.declare.reason import Reason
from quantfarm.declare.spec import ShapeRule, Undeclared
from quantfarm.select.request import Request


def shape_reasons(rule: ShapeRule, request: Request) -> Iterator[Reason]:
    """Yield what is wrong with K, N, both together, and M; what the request leaves open is not checked."""
    k, n = request.in_features, request.out_features
    sides = (
        ("shape_k", "K", k, 1 if rule.pads_k else rule.k_multiple, rule.k_min),
        ("shape_n", "N", n, rule.n_multiple, rule.n_min),
    )
    alone = [reason for side in sides for reason in _side(*side)]
    yield from alone
    if k and n and not alone and rule.pairs and not any(k % a == 0 and n % b == 0 for a, b in rule.pairs):
        known = one_of(tuple(f"K % {a} = N % {b} = 0" for a, b in rule.pairs))
        yield Reason("shape_n", known, f"K={k} N={n}")
    if request.rows is not None and rule.m_max and request.rows > rule.m_max:
        yield Reason("shape_m", f"M of at most {rule.m_max}", f"M={request.rows}")


def _side(code: str, letter: str, value: int | None, multiple: int | Undeclared, minimum: int) -> Iterator[Reason]:
    if value is None:
        return
    if not isinstance(multiple, Undeclared) and value % multiple:
        yield Reason(code, f"{letter} a multiple of {multiple}", f"{letter}={value}")
    elif value < minimum:
        yield Reason(code, f"{letter} of at least {minimum}", f"{letter}={value}")


def one_of(values: tuple[object, ...]) -> str:
    """Return allowed values as printed after ``needs``: ``4``, ``2, 3 or 4``, ``none``."""
    texts = [str(value) for value in values]
    if len(texts) < 2:
        return texts[0] if texts else "none"
    return f"{', '.join(texts[:-1])} or {texts[-1]}"
