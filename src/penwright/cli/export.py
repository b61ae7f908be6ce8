"""The `penwright export` command: convert a run for another engine."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from penwright.cli.options import RunFolder


def command(
    run: RunFolder,
    to: Annotated[
        Literal["ctranslate2", "gguf", "huggingface", "onnx", "peft", "penwright"],
        typer.Option(
            "--to",
            help="Format to write: gguf is for llama.cpp, huggingface for transformers, onnx for onnxruntime "
            "(classifiers and encoders), peft for the adapter of a LoRA run. penwright makes a new run, with adapters "
            "merged.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", help="New folder for the exported model.", show_default=False)],
    precision: Annotated[
        Literal["float32", "bfloat16", "int8"],
        typer.Option(help="Precision of the weights; int8 takes a quarter of the space of float32."),
    ] = "float32",
    adapter: Annotated[
        Path | None, typer.Option(help="Merge this LoRA adapter, a folder in PEFT's format, before the export.")
    ] = None,
) -> None:
    """Convert a run for other engines, such as llama.cpp.

    Writes the weights of the best checkpoint, and the tokenizer.
    """
    from penwright.workflows.api import export

    export(run, to, output, precision, adapter)
    for path in sorted(path for path in output.rglob("*") if path.is_file()):
        print(f"{path} ({path.stat().st_size:,} bytes)")
