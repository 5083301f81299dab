"""The commands. Errors of the project end with their own text and exit code, never with a traceback."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from quantfarm import __version__
from quantfarm.cli.layers import LayerKind, layer_kinds
from quantfarm.cli.options import ConvertOptions, ExplainOptions, Json, command
from quantfarm.cli.suppose import suppose
from quantfarm.cli.tables import trace_table
from quantfarm.declare.names import BadType, UnknownName, normalize_format, normalize_method
from quantfarm.declare.registry import KERNELS
from quantfarm.declare.scheme import Scheme
from quantfarm.doctor.child import load_or_read
from quantfarm.doctor.finding import COULD_NOT_LOOK
from quantfarm.doctor.report import doctor as examine
from quantfarm.doctor.text import as_text as report_text
from quantfarm.errors import KernelRefused, QuantfarmError
from quantfarm.formats.inspect_folder import inspect_folder
from quantfarm.formats.inspect_gguf import inspect_gguf
from quantfarm.select.choose import strictly_refused, survey
from quantfarm.select.explain import as_text
from quantfarm.select.host import Host, probe
from quantfarm.select.pairs import FORMATS_OF, kind_of
from quantfarm.select.request import Device, Request, normalize_devices
from quantfarm.select.selection import Selection
from quantfarm.select.wording import advice, improvement

SHOWN_MODULES = 3
"""Module names printed for one kind of layer; the JSON form has them all."""

app = typer.Typer(name="quantfarm", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def run() -> None:
    """Run the command line; an error of the project goes to stderr and ends with its exit code."""
    try:
        app()
    except (QuantfarmError, UnknownName, BadType) as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def _version(value: bool) -> None:
    if value:
        print(f"quantfarm {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Quantized linear layers with the best kernel for each layer and device, and the reason for every choice."""


@app.command()
def doctor(*, json: Json = False) -> None:
    """Say what is installed, what loads, which backends run here, and what to do. Exit code 0, 1 or 2."""
    try:
        report = examine()
    except QuantfarmError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(COULD_NOT_LOOK) from None
    _show(report.as_json() if json else report_text(report))
    raise typer.Exit(report.exit_code)


@command(app, ExplainOptions)
def explain(options: ExplainOptions) -> None:
    """Say which backend runs a layer, or each kind of layer of a checkpoint, and why every better one does not."""
    host = probe(load_artifact=load_or_read)
    supposed = ""
    if options.arch:
        host, supposed = suppose(host, options.arch)
    devices = normalize_devices(options.device or (host.devices[0].family if options.arch else None), host)
    if options.path is None:
        kinds: tuple[LayerKind, ...] = (LayerKind(request=_request(options, devices), modules=()),)
    else:
        kinds = layer_kinds(options.path, devices, options.backend, options.dtype)
    selections = [survey(kind.request, host, KERNELS) for kind in kinds]
    refused = [s for s in selections if s.chosen is None or strictly_refused(s, host)]
    _show_kinds(options, kinds, selections, host, supposed)
    raise typer.Exit(KernelRefused.exit_code if refused else 0)


def _show_kinds(
    options: ExplainOptions, kinds: tuple[LayerKind, ...], selections: list[Selection], host: Host, supposed: str
) -> None:
    pairs = list(zip(kinds, selections, strict=True))
    if options.json:
        rows = [_row(kind, selection, host) for kind, selection in pairs]
        said = {"supposed": supposed} if supposed else {}
        _show(said | (rows[0] if options.path is None else {"schema": "quantfarm-layers/1", "layers": rows}))
        return
    for kind, selection in pairs if options.table else ():
        Console(highlight=False).print(trace_table(selection, "\n".join(_heading(kind))))
        _show("\n".join(_last_lines(selection, host)))
    if not options.table:
        _show("\n\n".join(_text(kind, selection, host) for kind, selection in pairs))
    if supposed:
        _show(f"supposed: {supposed}")


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A checkpoint folder or .gguf file.")], *, json: Json = False
) -> None:
    """Say what is in a checkpoint and what in it contradicts itself. Exit code 0, or 1 for a contradiction."""
    native = path.suffix == ".gguf" and not path.is_dir()
    found = inspect_gguf(path) if native else inspect_folder(path)
    _show(found.as_json() if json else str(found))
    raise typer.Exit(found.exit_code)


@command(app, ConvertOptions)
def convert(options: ConvertOptions) -> None:
    """Round plain weights to nearest, or write a quantized checkpoint in another format without changing a weight."""
    from quantfarm.load.convert import convert as write

    result = write(
        options.source,
        options.target,
        bits=options.bits,
        group_size=options.group_size,
        sym=options.sym,
        desc_act=options.desc_act,
        format=normalize_format(options.format),
        code_type=options.code_type,
        modules_to_not_convert=tuple(options.leave or ()),
        requantize=options.requantize,
        force=options.force,
    )
    _show(str(result) if result is not None else f"wrote {options.target}")


def _request(options: ExplainOptions, devices: tuple[Device, ...]) -> Request:
    method = normalize_method(options.method)
    fmt = normalize_format(options.format) if options.format.strip() else FORMATS_OF[method][0]
    return Request(
        method=method,
        format=fmt,
        scheme=Scheme(
            weight_kind=kind_of(method, fmt, options.bits),
            bits=options.bits,
            group_size=options.group_size,
            sym=options.sym,
            act_order=options.desc_act,
        ),
        in_features=options.in_features,
        out_features=options.out_features,
        activation_dtype=options.dtype.strip() or None,
        devices=devices,
        backend=options.backend,  # type: ignore[arg-type]
    )


def next_step(selection: Selection, host: Host) -> str:
    """Return what would change the answer: the remedy of a refusal, or the way to a better backend."""
    strict = strictly_refused(selection, host)
    if selection.chosen is None or strict:
        return advice(selection, host, strict=strict)
    return improvement(selection, host)


def _row(kind: LayerKind, selection: Selection, host: Host) -> dict[str, Any]:
    named = {"modules": list(kind.modules)} if kind.modules else {}
    return named | selection.as_json() | {"next": next_step(selection, host)}


def _heading(kind: LayerKind) -> list[str]:
    if not kind.modules:
        return []
    more = len(kind.modules) - SHOWN_MODULES
    names = ", ".join(kind.modules[:SHOWN_MODULES]) + (f" and {more} more" if more > 0 else "")
    return [f"{len(kind.modules)} layers: {names}"]


def _text(kind: LayerKind, selection: Selection, host: Host) -> str:
    return "\n".join([*_heading(kind), as_text(selection), *_last_lines(selection, host)])


def _last_lines(selection: Selection, host: Host) -> list[str]:
    lines = []
    if strictly_refused(selection, host):
        lines.append("refused: QUANTFARM_STRICT is set and a faster backend is missing because of the installation")
    step = next_step(selection, host)
    return [*lines, f"next: {step}"] if step else lines


def _show(content: str | dict[str, Any]) -> None:
    text = content if isinstance(content, str) else json.dumps(content, indent=2)
    Console(highlight=False, soft_wrap=True).print(Text(text))
