"""What is in a checkpoint folder, from its settings, its index and the headers of its files. No torch, no values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantfarm.errors import CheckpointError, ConfigError, TensorMismatch
from quantfarm.formats.config import QuantConfig, find_settings, parse
from quantfarm.formats.facts import LayerFacts, TensorFact, facts_of
from quantfarm.formats.inspection import Inspection, Layer, odd_layers
from quantfarm.formats.packed import packed_modules
from quantfarm.formats.safetensors_header import INDEX, checkpoint_files, read_header
from quantfarm.formats.settings_files import has_settings
from quantfarm.formats.sides import misfits
from quantfarm.formats.table import FormatRow, find

_PLAIN_SUFFIXES = ("weight",)
_PACKED_MARKS = (".qweight", ".qzeros", ".trellis", ".weight_packed")


@dataclass(frozen=True, kw_only=True)
class _Folder:
    """What was read: tensors by name (dtype, shape, place), sizes of files, the model's config, what is wrong."""

    path: Path
    tensors: Mapping[str, Mapping[str, Any]]
    files: Mapping[str, int]
    model: Mapping[str, Any]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    def size(self, name: str) -> int:
        """Return a tensor's bytes."""
        first, end = self.tensors[name]["data_offsets"]
        return int(end) - int(first)

    def values(self, name: str) -> int:
        """Return how many numbers a tensor has."""
        product = 1
        for side in self.tensors[name]["shape"]:
            product *= int(side)
        return product


def inspect_folder(path: Path) -> Inspection:
    """Look into a folder.

    Raises:
        CheckpointError: no folder, no tensors in it, or a file that is cut or no safetensors file.
        ConfigError, UnknownFormat: settings that nothing here reads.
    """
    folder = _read(path)
    config, problems = _settings(folder)
    packed = packed_modules(folder.tensors, config) if config else {}
    layers, odd = [], []
    for module, names in packed.items():
        assert config is not None
        found = _Module(name=module, facts=facts_of({s: folder.tensors[n] for s, n in names.items()}), config=config)
        problems += found.problems()
        layer = found.layer(sum(folder.size(name) for name in names.values()))
        layers += [layer] if layer else []
        if config.for_module(module) is None:
            odd.append(f"{module}: packed, the settings say dense")
    dense = [name for name in folder.tensors if not any(name in names.values() for names in packed.values())]
    odd += _dense_where_packed(config, packed, dense)
    problems += [*odd, *_tied(folder, packed)]
    if config is None and (marked := [name for name in folder.tensors if name.endswith(_PACKED_MARKS)]):
        problems.append(f"{len(marked)} packed tensors such as {marked[0]}, and no settings that say how to read them")
    return Inspection(
        path=str(path),
        method=config.method.value if config else "",
        format=config.format.value if config else "",
        writer=config.producer if config else "",
        source=config.source if config else "",
        files=folder.files,
        layers=tuple(layers),
        dense_tensors=len(dense),
        dense_size=sum(map(folder.size, dense)),
        dense_values=sum(map(folder.values, dense)),
        odd=(*odd_layers(layers), *odd),
        contradictions=(*folder.problems, *problems),
        notes=(*folder.notes, *(config.notes if config else _unsettled(folder))),
    )


def _unsettled(folder: _Folder) -> tuple[str, ...]:
    if has_settings(folder.path):
        return ()
    return ("not a quantized checkpoint: no settings in any of the three places",)


def _read(path: Path) -> _Folder:
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise CheckpointError(
            f"cannot inspect {path}: no folder",
            lines=[f"path: needs a checkpoint folder or a .gguf file, got {found}"],
            remedy="name the folder that holds config.json",
        )
    files, aside = checkpoint_files(path)
    where: dict[str, str] = {}
    tensors: dict[str, Any] = {}
    problems = []
    for file in files:
        header = read_header(file, whole=True)
        problems += [f"{name}: stored in {where[name]} and {file.name}" for name in header if name in where]
        where |= dict.fromkeys(header, file.name)
        tensors |= header
    return _Folder(
        path=path,
        tensors=tensors,
        files={file.name: file.stat().st_size for file in files},
        model=_json(path / "config.json"),
        problems=(*problems, *_against_index(path, where)),
        notes=tuple(f"{file.name}: not part of the checkpoint" for file in aside),
    )


def _against_index(path: Path, where: Mapping[str, str]) -> Iterator[str]:
    """Yield what the index and the files do not agree on."""
    if not (path / INDEX).is_file():
        if len(set(where.values())) > 1:
            yield f"{len(set(where.values()))} files with tensors, and no {INDEX}"
        return
    listed = _json(path / INDEX).get("weight_map")
    if not isinstance(listed, dict):
        yield f"{INDEX}: no object weight_map in it"
        return
    for file in sorted({str(file) for file in listed.values()} - {p.name for p in path.glob("*.safetensors")}):
        yield f"{file}: {INDEX} lists it, the folder lacks it"
    for name, file in listed.items():
        if name in where and where[name] != file:
            yield f"{name}: {INDEX} says {file}, it is in {where[name]}"
        elif name not in where and (path / str(file)).is_file():
            yield f"{name}: {INDEX} says {file}, which has no such tensor"
    for name in where:
        if name not in listed:
            yield f"{name}: in {where[name]}, not listed in {INDEX}"


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"cannot read {path}: not valid JSON", lines=[str(error)]) from error
    return content if isinstance(content, dict) else {}


def _settings(folder: _Folder) -> tuple[QuantConfig | None, list[str]]:
    """Return the settings, or None where there are none; files that disagree are a finding, not the end."""
    if not has_settings(folder.path):
        return None, []
    try:
        settings, source = find_settings(folder.path)
    except ConfigError as error:
        return None, ["; ".join(line.strip() for line in str(error).splitlines()[:-1])]
    return parse(settings, source=source), []


@dataclass(frozen=True, kw_only=True)
class _Module:
    """One packed module: its name, its tensors by suffix, the settings of the checkpoint."""

    name: str
    facts: Mapping[str, TensorFact]
    config: QuantConfig

    @property
    def _mine(self) -> QuantConfig:
        return self.config.for_module(self.name) or self.config

    @property
    def _row(self) -> FormatRow:
        return find(self._mine.method, self._mine.format, self._mine.dialect)

    def problems(self) -> list[str]:
        """Return what its tensors and the settings do not agree on."""
        missing = [suffix for suffix in self._row.tensors if suffix not in self.facts]
        unknown = [suffix for suffix in self.facts if suffix not in self._row.suffixes]
        lines = [f"{self.name}: {suffix} is missing" for suffix in missing]
        lines += [
            f"{self.name}: {suffix} beside packed tensors"
            if suffix in _PLAIN_SUFFIXES
            else f"{self.name}: {suffix} is no tensor of {self._mine.format.value}"
            for suffix in unknown
        ]
        if missing:
            return lines
        try:
            described = self._described()
        except (TensorMismatch, ValueError, KeyError, IndexError) as error:
            return [*lines, f"{self.name}: {' '.join(line.strip() for line in str(error).splitlines())}"]
        return [*lines, *(f"{self.name}: {line}" for line in misfits(self.facts, self._mine, described))]

    def layer(self, size: int) -> Layer | None:
        """Return its facts, or None where the tensors do not tell them."""
        try:
            described = self._described()
        except (TensorMismatch, ValueError, KeyError, IndexError):
            return None
        kind = f"{described.code_type} " if described.code_type else ""
        mine = self._mine
        other = "" if mine.format is self.config.format else f" {mine.format.value}"
        scheme = f"{kind}{described.scheme}{other}"
        return Layer(module=self.name, scheme=scheme, k=described.k, n=described.n, size=size)

    def _described(self) -> LayerFacts:
        described: LayerFacts = self._row.describe()(self.facts, self._mine)
        return described


def _dense_where_packed(
    config: QuantConfig | None, packed: Mapping[str, Mapping[str, str]], dense: list[str]
) -> list[str]:
    """Return modules that are dense though the settings have them packed: those named like packed ones elsewhere."""
    if config is None:
        return []
    leaves = {module.rpartition(".")[2] for module in packed}
    modules = [name.removesuffix(".weight") for name in dense if name.endswith(".weight")]
    return [
        f"{module}: dense, the settings say packed"
        for module in modules
        if module not in packed and module.rpartition(".")[2] in leaves and config.for_module(module) is not None
    ]


def _tied(folder: _Folder, packed: Mapping[str, Any]) -> list[str]:
    if not folder.model.get("tie_word_embeddings"):
        return []
    heads = [module for module in packed if module.rpartition(".")[2] == "lm_head"]
    return [f"{head}: packed, and config.json ties it to the embedding" for head in heads]
