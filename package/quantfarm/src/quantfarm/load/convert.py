"""convert(source, target): plain weights rounded to codes, or a quantized checkpoint written in another format."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from quantfarm import __version__
from quantfarm.declare.names import FORMAT, normalize_format
from quantfarm.declare.scheme import Scheme
from quantfarm.errors import ConfigError, UnknownFormat
from quantfarm.formats import table
from quantfarm.formats.config import QuantConfig, parse
from quantfarm.formats.dialects import wrong
from quantfarm.load.checkpoint import shortened
from quantfarm.load.decoding import open_decoded
from quantfarm.load.dense_source import open_source
from quantfarm.load.packed_source import is_quantized, open_packed
from quantfarm.load.quantizing import Rounding, quantizing
from quantfarm.load.rewriting import Asked, rewriting, with_schemes
from quantfarm.load.work import Unit, Work
from quantfarm.load.writer import PartialFolder, folder_at_once, write_json

SHARD_BYTES = 5 * 10**9
_ARGUMENTS = "the arguments of convert"


@dataclass(frozen=True, kw_only=True)
class ConvertReport:
    """What was written: the folder, its settings, the modules that are quantized, those that stay dense, notes."""

    target: str
    config: QuantConfig
    quantized: tuple[str, ...]
    dense: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return the report as text."""
        c = self.config
        kind = f"{c.code_type}, " if c.code_type else ""
        scheme = f"{kind}{c.bits} bits, group {c.group_size}, {'symmetric' if c.sym else 'asymmetric'}"
        others = f", {len(c.dynamic)} of them otherwise" if c.dynamic else ""
        head = f"{self.target}: {len(self.quantized)} layers in {c.format.value} ({scheme}{others})"
        return "\n".join([f"{head}, {len(self.dense)} dense", *(f"note: {note}" for note in self.notes)])


def convert(  # noqa: PLR0913 - the options of the command line, one to one
    source: str | Path,
    target: str | Path,
    *,
    bits: int | None = None,
    group_size: int | None = None,
    sym: bool | None = None,
    desc_act: bool | None = None,
    format: FORMAT | str = FORMAT.GPTQ,  # noqa: A002 - the one word for it in this project
    code_type: str = "",
    modules_to_not_convert: tuple[str, ...] = (),
    force: bool = False,
    requantize: bool = False,
    shard_bytes: int = SHARD_BYTES,
) -> ConvertReport:
    """Write a checkpoint in a format.

    Plain weights are rounded to nearest; embeddings and the output head stay as they are. A quantized checkpoint is
    rewritten, each module in its own scheme and without a changed weight, or refused.

    An interrupted conversion goes on behind its last whole file.

    Args:
        source: a folder of transformers, or a GGUF file.
        target: a folder that does not exist or is empty; it appears complete or not at all.
        bits: code width, as the format holds it; 4 or what the format has for plain weights, the source's for others.
        group_size: inputs per scale, -1 for the whole row; 128 or what the format has, or that of the source.
        sym: zero points in the middle, or fitted to each group; True, or what the source has.
        desc_act: group inputs by falling norm of their weight column; False, or what the source has.
        format: layout to write.
        code_type: the type inside a format that has several: ``q4_k``, ``nf4``, ``float8_e5m2``; else its usual one.
        modules_to_not_convert: names, or parts of them, of layers that stay dense.
        force: write zero points that readers of gptq decode in different ways.
        requantize: round the decoded weights of a quantized source again, which changes them.
        shard_bytes: largest file.

    Raises:
        CheckpointError: the source is incomplete, or the target is in use.
        InexactConversion: values that the format can not hold, or that other programs read differently; a quantized
            source that has no exact form in the format or in the scheme that is asked for.
        UnknownFormat, ConfigError: a format or a value that nothing here writes.
    """
    row = _row(format)
    asked = Asked(bits=bits, group_size=group_size, sym=sym, desc_act=desc_act)
    path = Path(source)
    exact = not requantize and is_quantized(path)
    base = _config(row, asked, code_type, modules_to_not_convert)
    with folder_at_once(Path(target)) as folder:
        if exact:
            work = rewriting(open_packed(path), base, asked=asked, force=force)
        else:
            rounding = Rounding(config=base, row=row, force=force)
            work = quantizing(open_decoded(path) if requantize else open_source(path), rounding)
        request = {"source": _fingerprint(path), "config": base.as_settings(), "force": force, "limit": shard_bytes}
        partial = PartialFolder(folder, shard_bytes, request)
        schemes = _run(work, partial)
        config = replace(with_schemes(base, schemes) if exact else base, modules_to_not_convert=work.dense)
        report = _finish(work, partial, config, tuple(schemes))
    return replace(report, target=str(target))


def _row(name: FORMAT | str) -> table.FormatRow:
    wanted = normalize_format(name)
    row = next((row for row in table.FORMATS if row.format is wanted and row.writer), None)
    if row is None:
        raise UnknownFormat(f"cannot write {wanted.value}: no writer for it", lines=table.known_lines())
    return row


def _config(row: table.FormatRow, asked: Asked, code_type: str, left_out: tuple[str, ...]) -> QuantConfig:
    """Return the settings of the target; a quantized source fills in its schemes at the end."""
    if code_type and not row.type_key:
        raise ConfigError(
            f"cannot write {row.format.value}: it has one type of codes",
            lines=[f"code_type: needs nothing, got {code_type}"],
            remedy="leave code_type out",
        )
    method = row.methods[0].value
    settings = {
        "quant_method": method,
        "method": method,
        "format": row.format.value,
        "checkpoint_format": row.format.value,
        **row.usual,
        **asked.stated(),
        **({row.type_key: code_type} if code_type else {}),
        "modules_to_not_convert": list(left_out),
        "meta": {"quantizer": [f"quantfarm:{__version__}"]},
    }
    config = parse(settings, source=_ARGUMENTS)
    for key, value in asked.stated().items():
        found = getattr(config, key)
        if found != value and not (key == "desc_act" and config.group_size == -1):
            raise wrong(key, f"{found} for {row.format.value} {code_type}".rstrip(), value, _ARGUMENTS)
    return config


def _run(work: Work, partial: PartialFolder) -> dict[str, Scheme]:
    """Make every unit that is not on disk yet; return the quantized modules with the schemes that they told."""
    done = partial.done()
    with _progress(work, len(done)) as advance:
        for unit in work.units:
            if unit.name not in done:
                made = unit.make()
                partial.add(unit.name, made.tensors, _told(unit, made.scheme, made.notes))
                advance(unit)
    partial.flush()
    told = {name: facts for name, facts in partial.done().items() if facts is not None}
    return {name: Scheme(**facts["scheme"]) for name, facts in told.items() if facts["scheme"]}


def _told(unit: Unit, scheme: Scheme | None, notes: tuple[str, ...]) -> Mapping[str, Any] | None:
    if not unit.packs or scheme is None:
        return None
    plain = asdict(scheme) | {"weight_kind": scheme.weight_kind.value}
    return {"scheme": plain, "notes": list(notes)}


def _finish(work: Work, partial: PartialFolder, config: QuantConfig, quantized: tuple[str, ...]) -> ConvertReport:
    """Give files their names and write everything around the weights."""
    facts = [told for told in partial.done().values() if told]
    notes = [*work.notes, *(note for told in facts for note in told["notes"])]
    partial.close()
    folder = partial.folder
    work.copy_rest(folder)
    settings = config.as_settings()
    write_json(folder / "config.json", {**work.model_config, "quantization_config": settings})
    write_json(folder / "quantize_config.json", settings)
    for file in folder.glob("*.safetensors"):
        # safetensors makes files that only their owner can read.
        shutil.copymode(folder / "config.json", file)
    return ConvertReport(
        target=str(folder),
        config=config,
        quantized=quantized,
        dense=work.dense,
        notes=tuple(shortened(dict.fromkeys(notes))),
    )


def _fingerprint(path: Path) -> list[Any]:
    """Return the files of a source with size and time, so that a changed source is not mixed with an older one."""
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    return [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


@contextmanager
def _progress(work: Work, done: int) -> Iterator[Callable[[Unit], None]]:
    """Show a bar on a terminal, or plain lines elsewhere; both on standard error."""
    console = Console(stderr=True)
    total = sum(unit.packs for unit in work.units)
    if done:
        console.print(f"going on behind {done} units that are on disk", highlight=False, markup=False)
    if not console.is_terminal:
        console.print(f"{work.verb} {total} layers of {work.label}", soft_wrap=True, highlight=False, markup=False)
        yield lambda _: None
        return
    columns = (TextColumn(work.verb), BarColumn(), MofNCompleteColumn(), TextColumn("layers"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda unit: bar.advance(task) if unit.packs else None
