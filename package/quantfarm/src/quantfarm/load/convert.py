"""convert(source, target): a dense model to a 2, 3, 4 or 8 bit checkpoint by rounding to nearest."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from quantfarm import __version__
from quantfarm.declare.names import FORMAT, normalize_format
from quantfarm.errors import InexactConversion, UnknownFormat
from quantfarm.formats import packer, table
from quantfarm.formats.config import QuantConfig, parse
from quantfarm.formats.rules import names_path
from quantfarm.load.checkpoint import shortened
from quantfarm.load.dense_source import DenseSource, open_source
from quantfarm.load.writer import ShardWriter, folder_at_once, write_json

SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True, kw_only=True)
class ConvertReport:
    """What was written: the folder, its settings, the modules that were quantized, those that stay dense, notes."""

    target: str
    config: QuantConfig
    quantized: tuple[str, ...]
    dense: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return the report as text."""
        c = self.config
        scheme = f"{c.bits} bits, group {c.group_size}, {'symmetric' if c.sym else 'asymmetric'}"
        head = f"{self.target}: {len(self.quantized)} layers in {c.format.value} ({scheme}), {len(self.dense)} dense"
        return "\n".join([head, *(f"note: {note}" for note in self.notes)])


def convert(  # noqa: PLR0913 - the options of the command line, one to one
    source: str | Path,
    target: str | Path,
    *,
    bits: int = 4,
    group_size: int = 128,
    sym: bool = True,
    desc_act: bool = False,
    format: FORMAT | str = FORMAT.GPTQ,  # noqa: A002 - the one word for it in this project
    modules_to_not_convert: tuple[str, ...] = (),
    force: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> ConvertReport:
    """Quantize every linear layer of a model; embeddings and the output head stay as they are.

    Args:
        source: a folder of transformers with plain weights, or a GGUF file (its decoded values are quantized again).
        target: a folder that does not exist or is empty; it appears complete or not at all.
        bits: code width, as the format holds it.
        group_size: inputs per scale; -1 for the whole row.
        sym: zero points in the middle, or fitted to each group.
        desc_act: group inputs by falling norm of their weight column, written as a group index.
        format: layout to write.
        modules_to_not_convert: names, or parts of them, of layers that stay dense.
        force: write zero points that readers of gptq decode in different ways.
        shard_bytes: largest file.

    Raises:
        CheckpointError: the source is incomplete or quantized already, or the target is in use.
        InexactConversion: values that the format can not hold, or that other programs read differently.
        UnknownFormat, ConfigError: a format or a value that nothing here writes.
    """
    row = _row(format)
    config = QuantConfig(
        method=row.methods[0],
        format=row.format,
        bits=bits,
        group_size=group_size,
        sym=sym,
        desc_act=desc_act and group_size != -1,
        modules_to_not_convert=modules_to_not_convert,
        producer=f"quantfarm:{__version__}",
        source="the arguments of convert",
    )
    packer_of = _Packer(config=parse(config.as_settings(), source=config.source), row=row, force=force)
    with folder_at_once(Path(target)) as folder:
        report = _write(open_source(Path(source)), folder, packer_of, shard_bytes)
    return replace(report, target=str(target))


def _row(name: FORMAT | str) -> table.FormatRow:
    wanted = normalize_format(name)
    row = next((row for row in table.FORMATS if row.format is wanted), None)
    if row is None:
        raise UnknownFormat(f"cannot write {wanted.value}: no writer for it", lines=table.known_lines())
    return row


def _write(opened: DenseSource, folder: Path, packer_of: _Packer, shard_bytes: int) -> ConvertReport:
    """Write every file of the new checkpoint into ``folder``."""
    chosen, notes = _chosen(opened, packer_of)
    left = tuple(name for name in opened.linear if name not in chosen)
    config = replace(packer_of.config, modules_to_not_convert=left)
    _write_tensors(opened, ShardWriter(folder, shard_bytes), chosen, packer_of)
    opened.copy_rest(folder)
    settings = config.as_settings()
    write_json(folder / "config.json", {**opened.config, "quantization_config": settings})
    write_json(folder / "quantize_config.json", settings)
    for file in folder.glob("*.safetensors"):
        # safetensors makes files that only their owner can read.
        shutil.copymode(folder / "config.json", file)
    return ConvertReport(
        target=str(folder), config=config, quantized=tuple(chosen), dense=left, notes=tuple(shortened(notes))
    )


@dataclass(frozen=True, kw_only=True)
class _Packer:
    """Quantizes one layer into the stored tensors of a format."""

    config: QuantConfig
    row: table.FormatRow
    force: bool

    def obstacle(self, k: int, n: int) -> str:
        """Return why a layer of this shape can not be written in the format, or nothing."""
        size = k if self.config.group_size == -1 else self.config.group_size
        if "g_idx" not in self.row.optional and k % size:
            return f"K={k} is no multiple of group_size={size}"
        if "g_idx" not in self.row.optional and n % 8:
            return f"N={n} is no multiple of 8"
        return ""

    def pack(self, name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return suffix to tensor for a weight [N, K].

        Raises:
            InexactConversion: as the packer and the writer say, with the layer's name.
        """
        c = self.config
        order = torch.argsort(weight.float().norm(dim=0), descending=True, stable=True) if c.desc_act else None
        try:
            result = packer.quantize_rtn(weight, bits=c.bits, group_size=c.group_size, sym=c.sym, desc_order=order)
            tensors: dict[str, torch.Tensor] = self.row.write()(packer.to_quant_tensor(result, c), c, force=self.force)
        except InexactConversion as error:
            first, *rest = str(error).split("\n")
            raise InexactConversion("\n".join([f"{first} (layer {name})", *rest])) from error
        return tensors


def _chosen(source: DenseSource, packer_of: _Packer) -> tuple[dict[str, None], list[str]]:
    """Return the layers to quantize, in order, and notes on those that stay dense or end in a short group."""
    chosen: dict[str, None] = {}
    notes, short = [], []
    for name in source.linear:
        if any(names_path(entry, name) for entry in packer_of.config.modules_to_not_convert):
            continue
        n, k = source.tensor(f"{name}.weight").shape
        obstacle = packer_of.obstacle(k, n)
        if obstacle:
            notes.append(f"{name} stays dense: {obstacle}")
            continue
        chosen[name] = None
        if packer_of.config.group_size > 0 and k % packer_of.config.group_size:
            short.append(k)
    if short:
        sizes = ", ".join(map(str, sorted(set(short))))
        notes.append(f"{len(short)} layers end in a short group (K = {sizes}), which some other programs refuse")
    return chosen, notes


def _write_tensors(source: DenseSource, writer: ShardWriter, chosen: dict[str, None], packer_of: _Packer) -> None:
    with _progress(len(chosen), source.label) as advance:
        for name in source.names:
            module, _, suffix = name.rpartition(".")
            if module not in chosen or suffix != "weight":
                writer.add(name, source.tensor(name))
                continue
            for part, tensor in packer_of.pack(module, source.tensor(name)).items():
                writer.add(f"{module}.{part}", tensor)
            advance()
    writer.close()


@contextmanager
def _progress(total: int, label: str) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal, or one plain line elsewhere; both on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"quantizing {total} layers of {label}", soft_wrap=True, highlight=False, markup=False)
        yield lambda: None
        return
    columns = (TextColumn("quantizing"), BarColumn(), MofNCompleteColumn(), TextColumn("layers"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
