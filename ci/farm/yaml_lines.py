"""YAML with the line of every value, so that a message can say where to look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from farm.errors import PlanInvalid

Path = tuple[str | int, ...]


def parse(text: str, source: str) -> tuple[Any, Mapping[Path, int]]:
    """Return the data and, for each path of keys and positions, its line (1 is the first).

    Raises:
        PlanInvalid: not YAML, or a mapping that has one key twice.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise PlanInvalid(f"cannot read {source}: it is no YAML", lines=str(error).splitlines()) from error
    lines: dict[Path, int] = {}
    doubles: list[str] = []
    if root is not None:
        _walk(root, (), lines, doubles)
    if doubles:
        raise PlanInvalid(f"cannot read {source}: a key stands twice", lines=doubles, remedy="keep one of them")
    return yaml.safe_load(text), lines


def _walk(node: yaml.Node, path: Path, lines: dict[Path, int], doubles: list[str]) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            _walk(item, (*path, position), lines, doubles)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                doubles.append(f"line {line}: {'.'.join(map(str, (*path, key.value)))}")
            seen.add(key.value)
            below: Path = (*path, key.value)
            lines[below] = line
            _walk(value, below, lines, doubles)


def line_of(path: Path, lines: Mapping[Path, int]) -> int:
    """Return the line of a path, or of its nearest known parent."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)
