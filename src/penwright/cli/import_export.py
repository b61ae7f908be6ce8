"""The commands `penwright import` and `penwright export`, for models of other programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from penwright.cli.options import RunFolder
from penwright.errors import UsageError


def import_model(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder with config.json and safetensors files, a GGUF file, or hub:NAME (hub:NAME@REVISION).",
            metavar="SOURCE",
            show_default=False,
        ),
    ],
    run: Annotated[Path, typer.Option("--run", help="New run folder.", show_default=False)],
    source_language: Annotated[
        str | None,
        typer.Option("--from", help="Source language of a multilingual model: a code such as en or eng_Latn."),
    ] = None,
    target_language: Annotated[
        str | None, typer.Option("--to", help="Target language of a multilingual model.")
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="The classifier reads pairs of texts, such as a query and a passage.")
    ] = False,
) -> None:
    """Make a run from a pretrained model (Hugging Face, GGUF).

    Pickled weights are never opened. All commands accept the new run.
    """
    from penwright.languages import Languages
    from penwright.streams import print_message
    from penwright.workflows.import_model import import_model

    if (source_language is None) != (target_language is None):
        raise UsageError("give both --from and --to, or neither")
    languages = Languages(source_language, target_language) if source_language and target_language else None
    print(repr(import_model(source, run, languages, print_message, pairs=pairs)))
    print(run)


def export(
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
    from penwright.streams import print_message
    from penwright.workflows.export import export

    export(run, to, output, precision, adapter, print_message)
    for path in sorted(path for path in output.rglob("*") if path.is_file()):
        print(f"{path} ({path.stat().st_size:,} bytes)")
