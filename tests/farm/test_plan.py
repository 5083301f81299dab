"""The plan is a pure function of matrix and declarations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from farm import cells, declarations, matrix, places, plan
from farm.errors import PlanInvalid

RULES = matrix.load(places.MATRIX)
DECLARED = declarations.read()
PLANNED = plan.cells(RULES, DECLARED, "default")


def test_every_record_has_a_cell_on_every_lane() -> None:
    """Nothing is left out in silence: each record meets each lane, and a cell that will not run has a code."""
    pairs = {(cell.record, cell.lane) for cell in PLANNED}
    assert pairs == {(r["name"], lane) for r in DECLARED["records"] for lane in RULES.lanes}
    assert all(cell.reason in cells.REASONS for cell in PLANNED if not cell.runs)


def test_the_order_is_fixed_and_ids_are_unique() -> None:
    """Cells are sorted by lane, record and kind; an id is record@lane#kind."""
    assert sorted(PLANNED, key=cells.sort_key) == PLANNED
    assert len({cell.id for cell in PLANNED}) == len(PLANNED)
    assert PLANNED[0].id == f"{PLANNED[0].record}@{PLANNED[0].lane}#{PLANNED[0].kind}"


def test_a_lane_without_a_runner_says_so() -> None:
    """Cells of lanes that the project has no machine for are no_runner, or have no kernel yet, and never wait."""
    absent = [name for name, lane in RULES.lanes.items() if lane.runner == "none"]
    assert {cell.reason for cell in PLANNED if cell.lane in absent} == {"no_runner", "not_written"}


def test_an_excluded_cell_keeps_its_sentence() -> None:
    """An exclusion of matrix.yaml shows up with its reason."""
    excluded = [cell for cell in PLANNED if cell.reason == "excluded"]
    assert excluded
    assert {cell.note for cell in excluded} <= {rule.reason for rule in RULES.exclusions}


def test_a_lane_that_is_not_declared_has_one_cell_its_refusal() -> None:
    """A native CPU record on a GPU lane has nothing to prove but that it is refused."""
    native = next(r["name"] for r in DECLARED["records"] if r["artifact"]["library"] == "cpu")
    assert [cell.kind for cell in PLANNED if (cell.record, cell.lane) == (native, "h200")] == ["refusal"]


def test_tiers_take_more_and_more() -> None:
    """A tier takes the cells of its kinds: pull requests run no whole model; an unknown tier is refused."""
    quick, pull_request, full = (
        {cell.id for cell in plan.cells(RULES, DECLARED, tier) if cell.runs} for tier in ("quick", "pr", "default")
    )
    assert quick <= full
    assert pull_request < full
    assert all(cell.endswith("#model") for cell in full - pull_request)
    with pytest.raises(PlanInvalid, match="known: quick, default"):
        plan.cells(RULES, DECLARED, "daily")


def test_the_plan_travels_as_json(tmp_path: Path) -> None:
    """Cells and declarations come back from JSON unchanged."""
    assert [cells.from_json(json.loads(json.dumps(cell.as_json()))) for cell in PLANNED] == PLANNED
    path = tmp_path / "declarations.json"
    path.write_text(json.dumps(DECLARED), encoding="utf-8")
    assert declarations.read(path) == json.loads(json.dumps(DECLARED))
    path.write_text(json.dumps({**DECLARED, "edition": 99}), encoding="utf-8")
    with pytest.raises(PlanInvalid, match="edition 99"):
        declarations.read(path)


def test_the_plan_does_not_depend_on_the_machine() -> None:
    """R85: with and without a visible GPU, with an arch list or an empty one, the plan is the same text."""
    command = [sys.executable, "-m", "farm", "plan", "--json", "--tier", "release"]
    path = os.pathsep.join([str(places.ROOT / "ci"), str(places.ROOT / "package" / "quantfarm" / "src")])
    plans = {
        subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path, **extra}, capture_output=True, text=True, check=True
        ).stdout
        for extra in ({"CUDA_VISIBLE_DEVICES": ""}, {"TORCH_CUDA_ARCH_LIST": "9.0a"}, {"TORCH_CUDA_ARCH_LIST": ""})
    }
    assert len(plans) == 1
    assert [cell["id"] for cell in json.loads(plans.pop())["cells"]] == [
        cell.id for cell in plan.cells(RULES, DECLARED, "release")
    ]


def test_a_change_in_one_kernel_concerns_only_its_cells() -> None:
    """The cells of a changed kernel folder are picked, no others."""
    kernel = PLANNED[0].kernel
    assert {cell.kernel for cell in plan.affected(PLANNED, {kernel})} == {kernel}
    assert plan.affected(PLANNED, set()) == []
