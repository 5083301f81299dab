"""Closeness, exactness, repeatability and state of a record's layers, on random weights in real packing."""

from __future__ import annotations

from typing import Any

import torch
from support import measure
from support.cases import Case, parity_cases
from support.job import Job
from support.measure import note
from support.subject import bias_of, expected, normal_rows, one_hot_inputs, run, subject


def cases(job: Job, test: str) -> list[Case]:
    """Every test of this file sees the same cases."""
    return parity_cases(job)


FEWEST = 2000
"""Outputs that one relative error is taken over: with fewer, the rounding of one element decides."""


def _judge(job: Job, case: Case, rows: list[int], figures: dict[str, Any], *, heavy: bool = False) -> None:
    """Compare calls of each row count with float64; short results are joined from several calls of that count."""
    made = subject(job, case)
    x = normal_rows(case, max(*rows, -(-FEWEST // case.n)), heavy=heavy)
    wanted, dense = expected(made, x, bias_of(case)), measure.dense(x, made.w64)
    for count in rows:
        most = max(count, min(x.shape[0], -(-FEWEST // case.n)))
        parts = [run(made, x[at : at + count]) for at in range(0, most - count + 1, count)]
        used = len(parts) * count
        actual = torch.cat(parts)
        assert actual.dtype == x.dtype
        found = measure.errors(actual, wanted[:used], x[:used], made.w64)
        note(figures, case.dtype, found, dense.over(used))
        wrong = measure.problems(found, dense.over(used), job.record, case.dtype)
        assert not wrong, f"M={count}: {'; '.join(wrong)}"


def test_close_to_float64_for_every_row_count(job: Job, case: Case, figures: dict[str, Any]) -> None:
    """Normal inputs: the result is within the declared tolerance of float64 for each M, bias included."""
    _judge(job, case, job.tier["rows"], figures)


def test_close_to_float64_with_heavy_tails(job: Job, case: Case, figures: dict[str, Any]) -> None:
    """Inputs with outliers 50 times the rest stay within the same tolerance."""
    _judge(job, case, [1, 9], figures, heavy=True)


def test_one_hot_rows_give_the_decoded_weight(job: Job, case: Case, figures: dict[str, Any]) -> None:
    """A one-hot input gives the decoded column to one unit in the last place: layout and decode are right.

    Where x or y is transformed, the column is a sum, and the unit is that of the column's largest value.
    """
    made = subject(job, case)
    distance = measure.ulps(*one_hot(job, case), whole_rows=not made.weight.exact)
    figures["one_hot_ulp_max"] = distance
    limit = made.weight.ulps(case.dtype)
    assert distance <= limit, f"over the limit: one-hot rows are {distance:.2f} ulp off, limit {limit} ({made.layer})"


def one_hot(job: Job, case: Case) -> tuple[torch.Tensor, measure.Doubles, str]:
    """Return what one-hot rows give, what they must give, and the dtype; the bias is taken out by cancelling it."""
    made = subject(job, case)
    inputs = one_hot_inputs(case, made.weight)
    x = torch.zeros(len(inputs), case.k, dtype=getattr(torch, case.dtype))
    x[torch.arange(len(inputs)), inputs] = 1.0
    with torch.no_grad():
        actual = made.layer.compute(x, None)
    return actual, made.w64[:, inputs.numpy()].T, case.dtype


def test_a_cancelling_bias_shows_no_early_rounding(job: Job, case: Case) -> None:
    """A wide bias that cancels the product leaves a small rest: the bias joins the sum before the one rounding."""
    made = subject(job, case)
    x = normal_rows(case, 1)
    product = expected(made, x)
    bias = torch.from_numpy(-product[0] * (1.0 - 2.0**-12)).to(torch.float32)
    with torch.no_grad():
        actual = measure.double(made.layer.compute(x, bias))
    rest = expected(made, x, bias)
    error = float(abs(actual - rest).max() / abs(product).max())
    # A quarter of the rounding that must not happen; for fp32, where nothing is narrowed, the error of an fp32 sum.
    limit = max(0.25 * measure.ROUNDING[case.dtype], measure.FP32_SUM)
    assert error <= limit, f"over the limit: e={error:.2e} > limit {limit:.2e}, the product was rounded before the bias"


def test_twenty_launches_are_bit_equal(job: Job, case: Case, figures: dict[str, Any]) -> None:
    """The same input gives the same bits in every launch, for one row and for many."""
    made = subject(job, case)
    for rows in (1, max(job.tier["rows"])):
        x = normal_rows(case, rows)
        first = run(made, x)
        for _ in range(job.tier["repeats"] - 1):
            assert torch.equal(run(made, x), first), f"not bit-equal: M={rows}"
    figures["repeatability"] = f"bit-equal over {job.tier['repeats']} launches"


def test_shapes_and_strides(job: Job, case: Case) -> None:
    """1-D, 3-D, empty and strided inputs give what dense rows give, in the leading shape of x."""
    made = subject(job, case)
    x = normal_rows(case, 6)
    whole = run(made, x)
    assert torch.equal(run(made, x.view(2, 3, -1)), whole.view(2, 3, -1))
    assert run(made, x[0]).shape == (case.n,)
    assert run(made, x[:0]).shape == (0, case.n)
    strided = torch.stack([x, x * 3.0], dim=1)[:, 0]
    assert not strided.is_contiguous()
    assert torch.equal(run(made, strided), whole)


def test_checkpoint_tensors_come_back_bit_for_bit(job: Job, case: Case) -> None:
    """After preparing, the layer still gives the checkpoint's tensors without a changed bit."""
    made = subject(job, case)
    kept = made.layer.checkpoint_tensors()
    for name, tensor in made.weight.tensors().items():
        assert torch.equal(kept[name], tensor), f"{name} changed"
