"""Commands whose options are one frozen record, so that a function takes one value instead of fourteen."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

Record = TypeVar("Record")

Json = Annotated[bool, typer.Option("--json", help="Print the same facts for programs.")]
Bits = Annotated[int, typer.Option(help="Code width.")]
GroupSize = Annotated[int, typer.Option(help="Inputs that share one scale; -1 for the whole row.")]
Sym = Annotated[bool, typer.Option("--sym/--asym", help="Symmetric codes, or stored zero points.")]
DescAct = Annotated[bool, typer.Option("--desc-act", help="Groups in the order of activations.")]


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """What ``explain`` asks: the layers of a checkpoint, or one layer described by options."""

    path: Annotated[
        Path | None, typer.Argument(help="A checkpoint folder or .gguf file; left out, the options describe a layer.")
    ] = None
    method: Annotated[str, typer.Option(help="The algorithm that made the weights.")] = "gptq"
    format: Annotated[str, typer.Option(help="How they lie on disk; blank: the usual one of the method.")] = ""
    bits: Bits = 4
    group_size: GroupSize = 128
    sym: Sym = True
    desc_act: DescAct = False
    in_features: Annotated[int | None, typer.Option(help="Inputs of the layer, K.")] = None
    out_features: Annotated[int | None, typer.Option(help="Outputs of the layer, N.")] = None
    dtype: Annotated[str, typer.Option(help="Activations: float16, bfloat16, float32; blank: not checked.")] = ""
    device: Annotated[list[str], typer.Option(help="Exact target such as cuda:1; may be given again.")] = None  # type: ignore[assignment]
    arch: Annotated[str, typer.Option(help="Suppose a device of this target, such as sm_90 or gfx1201.")] = ""
    backend: Annotated[str, typer.Option(help="A backend by name, as a demand; blank: automatic.")] = ""
    table: Annotated[bool, typer.Option("--table", help="Print the candidates as a table.")] = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """What ``convert`` makes of a checkpoint."""

    source: Annotated[Path, typer.Argument(help="A checkpoint folder, plain or quantized, or a GGUF file.")]
    target: Annotated[Path, typer.Argument(help="The folder to write.")]
    bits: Annotated[int | None, typer.Option(help="Code width; left out, 4 or what the source has.")] = None
    group_size: Annotated[
        int | None,
        typer.Option(help="Inputs that share one scale, -1 for the whole row; left out, 128 or the source's."),
    ] = None
    sym: Annotated[
        bool | None,
        typer.Option("--sym/--asym", help="Symmetric codes or zero points; left out, --sym or the source's."),
    ] = None
    desc_act: Annotated[
        bool | None, typer.Option("--desc-act/--no-desc-act", help="Groups in the order of activations.")
    ] = None
    format: Annotated[str, typer.Option(help="How the codes lie on disk.")] = "gptq"
    code_type: Annotated[str, typer.Option("--type", help="Type inside a format: q4_k, nf4, float8_e5m2.")] = ""
    leave: Annotated[
        list[str], typer.Option(help="A module, or part of its name, that stays dense; may be repeated.")
    ] = None  # type: ignore[assignment]
    requantize: Annotated[
        bool, typer.Option("--requantize", help="Round a quantized source again; its weights change.")
    ] = False
    force: Annotated[
        bool, typer.Option("--force", help="Write what readers of the format decode in different ways.")
    ] = False


def command(app: typer.Typer, record: type[Record]) -> Callable[[Callable[[Record], None]], Callable[[Record], None]]:
    """Register a function of one record as a command whose parameters are the record's fields."""
    hints = get_type_hints(record, include_extras=True)
    parameters = [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if f.default is MISSING else f.default,
            annotation=hints[f.name],
        )
        for f in fields(record)  # type: ignore[arg-type]
    ]

    def register(function: Callable[[Record], None]) -> Callable[[Record], None]:
        def call(**options: Any) -> None:
            function(record(**options))

        call.__name__ = function.__name__
        call.__doc__ = function.__doc__
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = hints | {"return": None}
        app.command(name=function.__name__)(call)
        return function

    return register
