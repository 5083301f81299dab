"""matrix.yaml as typed values: targets, lanes, tiers, ages, wheels, exclusions. Needs pydantic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from farm import yaml_lines
from farm.errors import PlanInvalid

Kind = Literal["presence", "load", "refusal", "identity", "parity", "throughput", "model"]
State = Literal["declared", "compiled", "loaded", "parity", "measured"]
Sentence = Annotated[str, Field(min_length=8)]
ShapeText = Annotated[str, Field(pattern=r"^\d+x\d+$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Target(_Strict):
    """One family of compiled code and the wheel that carries it."""

    family: str
    wheel: str
    archs: list[str] = Field(min_length=1)
    toolchain: str
    built: bool
    note: str


class Lane(_Strict):
    """One kind of machine: what it has, what it is for, whether the project has a runner for it."""

    title: str
    target: str
    platform: str
    archs: list[str] = Field(min_length=1)
    capabilities: list[str]
    purposes: list[Literal["parity", "throughput", "model"]]
    tier: str
    exclusive: bool
    highest: State
    runner: Literal["local", "none"]
    environment: dict[str, str] = Field(default_factory=dict)
    note: str


class Tier(_Strict):
    """How much one run does."""

    budget_s: int = Field(gt=0)
    cell_limit_s: int = Field(gt=0)
    kinds: list[Kind] = Field(min_length=1)
    shapes: list[ShapeText] = Field(min_length=1)
    memory_shape: ShapeText | None = None
    thorough: bool
    rows: list[int] = Field(min_length=1)
    bench_shapes: list[ShapeText]
    bench_rows: list[int]
    rounds: int = Field(ge=5)
    cold_bytes: int = Field(gt=0)
    repeats: int = Field(ge=2)


class WheelRule(_Strict):
    """What a finished wheel may weigh and need."""

    budget_bytes: int = Field(gt=0)
    external: list[str]


class Exclusion(_Strict):
    """Cells that do not run, and why. An empty list matches everything."""

    records: list[str] = Field(default_factory=list)
    lanes: list[str] = Field(default_factory=list)
    artifacts: list[Literal["none", "triton", "native"]] = Field(default_factory=list)
    kinds: list[Kind] = Field(default_factory=list)
    reason: Sentence


class Matrix(_Strict):
    """The whole file."""

    schema_: Literal[1] = Field(alias="schema")
    sentence: Sentence
    targets: dict[str, Target]
    lanes: dict[str, Lane]
    tiers: dict[str, Tier]
    ages: dict[Kind, int]
    wheels: dict[str, WheelRule]
    never_bundled: list[str]
    exclusions: list[Exclusion]

    @model_validator(mode="after")
    def _names_exist(self) -> Matrix:
        wrong = [
            f"lanes.{name}.{what}: {value!r} is unknown; known: {', '.join(known)}"
            for name, lane in self.lanes.items()
            for what, value, known in (("target", lane.target, self.targets), ("tier", lane.tier, self.tiers))
            if value not in known
        ]
        for position, rule in enumerate(self.exclusions):
            wrong += [
                f"exclusions.{position}.lanes: {lane!r} is unknown; known: {', '.join(self.lanes)}"
                for lane in rule.lanes
                if lane not in self.lanes
            ]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    @cached_property
    def tier_order(self) -> tuple[str, ...]:
        """The tiers in the order of the file: a lane of an earlier tier belongs to every later one."""
        return tuple(self.tiers)


def load(path: Path) -> Matrix:
    """Read and check the file.

    Raises:
        PlanInvalid: every mistake at once, each with its line.
    """
    text = path.read_text(encoding="utf-8")
    return parse(text, path.name)


def parse(text: str, source: str) -> Matrix:
    """Check the text of a matrix file; see ``load``."""
    data, lines = yaml_lines.parse(text, source)
    try:
        return Matrix.model_validate(data)
    except ValidationError as error:
        found = [line for item in error.errors() for line in _sentences(item, lines)]
        found.sort(key=lambda pair: pair[0])
        raise PlanInvalid(
            f"cannot plan: {source} has {len(found)} mistake{'s' if len(found) > 1 else ''}",
            lines=[f"line {number}: {sentence}" for number, sentence in found],
            remedy="compare with the schema: python -m farm matrix --schema",
        ) from error


def _sentences(item: Any, lines: Mapping[yaml_lines.Path, int]) -> list[tuple[int, str]]:
    path = tuple(item["loc"])
    dotted = ".".join(map(str, path))
    if item["type"] == "extra_forbidden":
        return [(yaml_lines.line_of(path, lines), f"{dotted}: unknown key {str(path[-1])!r}")]
    if item["type"] == "missing":
        return [(yaml_lines.line_of(path, lines), f"{dotted}: needs a value, got none")]
    if not path:
        return [_cross(text, lines) for text in item["msg"].removeprefix("Value error, ").splitlines()]
    return [(yaml_lines.line_of(path, lines), f"{dotted}: {item['msg']}, got {item['input']!r}")]


def _cross(text: str, lines: Mapping[yaml_lines.Path, int]) -> tuple[int, str]:
    parts = text.split(":", 1)[0].split(".")
    path = tuple(int(part) if re.fullmatch(r"\d+", part) else part for part in parts)
    return yaml_lines.line_of(path, lines), text


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the file."""
    return Matrix.model_json_schema()
