"""penwright export: a run for another engine."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from penwright.cli.options import RunFolder

NAME = "export"


def command(
    run: RunFolder,
    to: Annotated[
        Literal["ctranslate2", "gguf", "huggingface"],
        typer.Option("--to", help="gguf is for llama.cpp.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("--output", help="A new folder.", show_default=False)],
    precision: Annotated[
        Literal["float32", "bfloat16", "int8"], typer.Option(help="Of the weights; int8 is a quarter of float32.")
    ] = "float32",
) -> None:
    """Write a run as another engine reads it.

    That is its best model, and its tokenizer.
    """
    from penwright.workflows.api import export

    export(run, to, output, precision)
    for path in sorted(output.iterdir()):
        print(f"{path} ({path.stat().st_size:,} bytes)")
