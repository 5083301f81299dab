"""The native int4 kernel against a plain float64 decode, on every instruction set that the host has."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from int4_cases import DTYPES, Weight, check, error, make_weight, multiply

from quantfarm.kernels.int4_panel.backend import to_panels
from quantfarm.runtime.artifacts import load_library

STATE = load_library("cpu")
pytestmark = pytest.mark.skipif(STATE.status != "loaded", reason=f"quantfarm-cpu is {STATE.status}: {STATE.text}")

LEVELS = {1: "avx2", 2: "avx512", 3: "avx512_vnni"}
ROWS = (1, 2, 3, 5, 8, 17, 64)


def _ops() -> Any:
    return torch.ops.quantfarm_cpu


def _host_levels() -> list[int]:
    if STATE.status != "loaded":
        return []
    best = int(_ops().cpu_isa())
    return [level for level in LEVELS if level <= best]


@pytest.fixture(params=_host_levels() or [0], ids=lambda level: LEVELS.get(level, "none"))
def level(request: pytest.FixtureRequest) -> Iterator[int]:
    """Force one instruction set and give the choice back afterwards."""
    _ops().set_cpu_isa(request.param)
    yield int(request.param)
    _ops().set_cpu_isa(0)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run with one and with two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield int(request.param)
    torch.set_num_threads(before)


def _x(m: int, k: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("n", [1, 5, 17, 104, 1000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_product_matches_the_decoded_weight_for_any_n(level: int, dtype: torch.dtype, n: int) -> None:
    """Every output width and row count gives the float64 answer within the caps."""
    weight = make_weight(256, n, 64)
    dense = weight.dense()
    for m in ROWS:
        x = _x(m, weight.k, dtype)
        y = multiply(_ops(), weight, x)
        assert y.shape == (m, n)
        check(y, x, dense)


@pytest.mark.parametrize("sym", [True, False], ids=["sym", "asym"])
@pytest.mark.parametrize("group_size", [-1, 16, 32, 64, 128, 256, 512])
def test_every_group_size_and_both_kinds_of_zero_point(level: int, group_size: int, *, sym: bool) -> None:
    """All declared group sizes work, with zero points at 8 and anywhere from 0 to 16."""
    weight = make_weight(1024, 72, group_size, sym=sym, scale_dtype=torch.bfloat16)
    dense = weight.dense()
    for dtype in DTYPES:
        for m in (1, 7):
            x = _x(m, weight.k, dtype)
            check(multiply(_ops(), weight, x), x, dense)


@pytest.mark.parametrize("k", [8, 24, 104, 136, 1000])
def test_k_that_is_no_multiple_of_a_chunk(level: int, k: int) -> None:
    """One group for the whole of K may be any multiple of 8 long."""
    weight = make_weight(k, 80, -1, scale_dtype=torch.float32)
    dense = weight.dense()
    for dtype in DTYPES:
        for m in (1, 6):
            x = _x(m, k, dtype)
            check(multiply(_ops(), weight, x), x, dense)


@pytest.mark.parametrize("group_size", [32, 128])
def test_act_order_gathers_the_inputs(level: int, group_size: int) -> None:
    """A permuted group index gives the same product as the decoded weight in the original order."""
    weight = make_weight(256, 100, group_size, act_order=True)
    dense = weight.dense()
    for dtype in DTYPES:
        for m in (1, 9):
            x = _x(m, weight.k, dtype)
            check(multiply(_ops(), weight, x), x, dense)


def test_one_hot_rows_give_the_decoded_column(level: int) -> None:
    """Each input alone returns its weights to one unit in the last place: no code is in a wrong position."""
    for weight in (make_weight(128, 70, 32), make_weight(128, 70, 32, act_order=True)):
        for dtype in DTYPES:
            y = multiply(_ops(), weight, torch.eye(weight.k, dtype=dtype))
            exact = weight.dense().to(dtype)
            ulp = torch.finfo(dtype).eps * exact.abs().double() + torch.finfo(dtype).smallest_normal
            assert bool(((y.double() - exact.double()).abs() <= ulp).all())


@pytest.mark.parametrize("bias_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bias_of_any_dtype_joins_before_the_rounding(level: int, dtype: torch.dtype, bias_dtype: torch.dtype) -> None:
    """A bias of the same, a wider or another 16-bit type is added unnarrowed, for whole and for partial panels."""
    weight = make_weight(128, 85, 64)
    dense = weight.dense()
    bias = (torch.randn(85, generator=torch.Generator().manual_seed(3)) * 0.5).to(bias_dtype)
    for m in (1, 11):
        x = _x(m, 128, dtype)
        check(multiply(_ops(), weight, x, bias), x, dense, bias)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_bias_that_cancels_the_product_leaves_the_small_rest(level: int, dtype: torch.dtype) -> None:
    """Adding the bias after a first rounding would leave an error of the size of the rest itself."""
    weight = make_weight(256, 64, 64)
    dense = weight.dense()
    x = _x(1, 256, dtype)
    rest = torch.randn(64, generator=torch.Generator().manual_seed(5)).double() * 1e-3
    product = (x.double() @ dense)[0]
    bias = (rest - product).float()
    expected = (product + bias.double()).unsqueeze(0)
    assert error(multiply(_ops(), weight, x, bias), expected) < 0.05


def test_constant_rows_with_cancelling_weights_stay_exact(level: int) -> None:
    """Sums of small integers times one value cancel exactly; an early narrowing would show at once."""
    words = torch.tensor([[0x2E2E2E2E]], dtype=torch.int64).expand(16, 16).to(torch.int32).contiguous()
    scales, zeros = torch.ones(1, 16), torch.full((1, 16), 8, dtype=torch.int32)
    weight = Weight(words, scales, zeros, torch.zeros(128, dtype=torch.int64), None, -1)
    y = multiply(_ops(), weight, torch.full((1, 128), 1234.0, dtype=torch.float16))
    assert bool((y == 0).all())


def test_no_rows_give_an_empty_result_without_a_launch(level: int) -> None:
    """M = 0 returns [0, N] in the activation dtype and does not count."""
    weight = make_weight(64, 40, 32)
    before = _ops().int4_panel_calls()
    for dtype in DTYPES:
        y = multiply(_ops(), weight, torch.empty(0, 64, dtype=dtype))
        assert y.shape == (0, 40)
        assert y.dtype == dtype
    assert _ops().int4_panel_calls() == before


def test_twenty_runs_are_bit_equal_and_threads_do_not_matter(level: int) -> None:
    """The same call gives the same bits, also with another number of threads."""
    weight = make_weight(512, 500, 128)
    x = _x(9, 512, torch.float16)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    first = multiply(_ops(), weight, x)
    torch.set_num_threads(2)
    assert all(torch.equal(first, multiply(_ops(), weight, x)) for _ in range(20))
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_its_neighbours(level: int, dtype: torch.dtype) -> None:
    """Alone, in a small batch, or among 300 rows, a row gives the same bits."""
    weight = make_weight(256, 90, 128)
    x = _x(300, 256, dtype)
    whole = multiply(_ops(), weight, x)
    for rows in (slice(0, 1), slice(17, 20), slice(40, 90), slice(299, 300)):
        assert torch.equal(multiply(_ops(), weight, x[rows].contiguous()), whole[rows])


def test_threads_split_the_columns(level: int, threads: int) -> None:
    """More work than one thread's share is right with one and with two threads."""
    weight = make_weight(512, 1000, 128)
    x = _x(4, 512, torch.bfloat16)
    check(multiply(_ops(), weight, x), x, weight.dense())


def test_outlier_rows_take_the_exact_path(level: int) -> None:
    """A value a million times larger than the rest leaves the other columns' digits intact."""
    weight = make_weight(256, 64, 128, sym=True)
    # The outlier meets weight 0, so that only the small values reach the output.
    weight.words[0] = (weight.words[0] & ~15) | 8
    dense = weight.dense()
    x = torch.cat([_x(3, 256, torch.bfloat16), _x(1, 256, torch.bfloat16, seed=2)])
    x[1, 0] = 1e6
    exact_before = _ops().int4_panel_calls(min(level, 2))
    y = multiply(_ops(), weight, x)
    assert _ops().int4_panel_calls(min(level, 2)) == exact_before + 1
    for row in range(4):
        check(y[row : row + 1], x[row : row + 1], dense)


def test_rows_with_tiny_and_huge_values(level: int) -> None:
    """Values near the ends of bfloat16 keep their relative precision; fp16 overflow gives infinity, not garbage."""
    weight = make_weight(128, 64, 128)
    dense = weight.dense()
    for factor in (1e-36, 1e-20, 1e30):
        x = (_x(2, 128, torch.float32) * factor).to(torch.bfloat16)
        check(multiply(_ops(), weight, x), x, dense)
    huge = multiply(_ops(), weight, torch.full((1, 128), 6e4, dtype=torch.float16))
    expected = (torch.full((1, 128), 6e4).double() @ dense).to(torch.float16)
    assert torch.equal(torch.isinf(huge), torch.isinf(expected))


def test_infinities_and_nans_stay_in_their_row(level: int) -> None:
    """A non-finite input makes the outputs that a dense product would make, and touches no other row."""
    weight = make_weight(128, 50, 64)
    dense = weight.dense()
    for dtype in DTYPES:
        x = _x(5, 128, dtype)
        clean = multiply(_ops(), weight, x)
        x[1, 3], x[3, 7] = float("nan"), float("-inf")
        y = multiply(_ops(), weight, x)
        expected = x.double() @ dense
        assert torch.equal(torch.isnan(y), torch.isnan(expected))
        assert torch.equal(torch.isinf(y), torch.isinf(expected))
        assert torch.equal(y[0::2], clean[0::2])
        assert torch.equal(torch.signbit(y[3][torch.isinf(y[3])]), torch.signbit(expected[3][torch.isinf(expected[3])]))


@given(rows=st.integers(1, 40), n=st.integers(1, 200), seed=st.integers(0, 2**31), act_order=st.booleans())
@settings(max_examples=60, deadline=None)
def test_unpack_is_the_exact_inverse_of_pack(rows: int, n: int, seed: int, *, act_order: bool) -> None:
    """Whatever the words, the widths and the permutation, the canonical words come back bit for bit."""
    source = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**31), 2**31, (rows, n), generator=source).to(torch.int32)
    order = torch.randperm(rows * 8, generator=source).to(torch.int32) if act_order else None
    packed = _ops().int4_panel_pack(words, order, n)
    assert packed.numel() == rows * (n + -n % 16)
    assert torch.equal(_ops().int4_panel_unpack(packed, order, rows * 8, n), words)


def test_the_forced_level_is_the_one_that_runs(level: int) -> None:
    """The counters of the library say which code computed: the identity test."""
    weight = make_weight(128, 32, 64)
    assert _ops().cpu_isa() == level
    before = {i: _ops().int4_panel_calls(i) for i in (0, 1, 2, 3)}
    multiply(_ops(), weight, _x(2, 128, torch.float16))
    after = {i: _ops().int4_panel_calls(i) - before[i] for i in before}
    assert after == {0: 1, **{i: int(i == level) for i in (1, 2, 3)}}


def test_two_python_threads_at_once() -> None:
    """Calls from several Python threads do not share anything."""
    weight = make_weight(512, 300, 128)
    inputs = [_x(3 + i, 512, torch.float16, seed=i) for i in range(4)]
    expected = [multiply(_ops(), weight, x) for x in inputs]
    equal: list[bool] = []

    def work(i: int) -> None:
        equal.extend(torch.equal(multiply(_ops(), weight, inputs[i]), expected[i]) for _ in range(10))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert equal == [True] * 40


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes(threads: int) -> None:
    """After a fork the parent's thread pool does not exist; the child still gets the same bits and does not hang."""
    weight = make_weight(512, 1000, 128)
    x = _x(4, 512, torch.float16)
    expected = multiply(_ops(), weight, x)
    child = os.fork()
    if child == 0:
        same = torch.equal(multiply(_ops(), weight, x), expected)
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "x of a type that is no activation": ({"x": torch.zeros(1, 64, dtype=torch.float64)}, "x dtype: needs float16"),
    "x of three dimensions": ({"x": torch.zeros(1, 1, 64)}, r"x shape: needs \[M, K\], got \[1, 1, 64\]"),
    "strided x": ({"x": torch.zeros(64, 2).t()}, "x: needs a contiguous tensor"),
    "K that is no multiple of 8": ({"x": torch.zeros(1, 60)}, "K: needs a positive multiple of 8, got 60"),
    "packed of another weight": ({"x": torch.zeros(1, 128)}, "packed words: needs 256, got 128"),
    "group size that is not offered": ({"group_size": 48}, "group_size: needs -1, K, 16, 32"),
    "group size that does not divide K": ({"group_size": 128}, "multiple of the group size 128, got 64"),
    "scales of another length": ({"scales": torch.ones(8)}, "scales elements: needs 32, got 8"),
    "zero points that are no bytes": (
        {"zeros": torch.zeros(32, dtype=torch.int32)},
        "zeros dtype: needs uint8, got int32",
    ),
    "bias of another length": ({"bias": torch.zeros(3)}, "bias elements: needs 16, got 3"),
    "permutation of another length": (
        {"perm": torch.zeros(3, dtype=torch.int32)},
        r"perm shape: needs \[64\], got \[3\]",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_wrong_arguments_are_named_with_needed_and_found(name: str) -> None:
    """Each refusal says which argument, what it needs and what it got."""
    weight = make_weight(64, 16, 32)
    arguments: dict[str, Any] = {
        "x": torch.zeros(1, 64),
        "packed": _ops().int4_panel_pack(weight.words, None, 16),
        "scales": to_panels(weight.scales),
        "zeros": None,
        "perm": None,
        "bias": None,
        "group_size": 32,
        "n": 16,
    }
    changed, text = REFUSALS[name]
    with pytest.raises(RuntimeError, match=text):
        _ops().int4_panel_mm(**{**arguments, **changed})


def test_a_permutation_must_hold_each_input_once() -> None:
    """A repeated or foreign index would lose codes, so packing refuses it."""
    words = torch.zeros(2, 16, dtype=torch.int32)
    for bad in (torch.zeros(16, dtype=torch.int32), torch.arange(1, 17, dtype=torch.int32)):
        with pytest.raises(RuntimeError, match=r"perm values: needs each of 0 \.\. K-1 once"):
            _ops().int4_panel_pack(words, bad, 16)


def test_a_level_that_does_not_exist_is_refused() -> None:
    """Forcing an unknown level names the known ones and changes nothing."""
    before = _ops().cpu_isa()
    with pytest.raises(RuntimeError, match="needs 0 auto, 1 avx2, 2 avx512 or 3 avx512_vnni"):
        _ops().set_cpu_isa(7)
    assert _ops().cpu_isa() == before
