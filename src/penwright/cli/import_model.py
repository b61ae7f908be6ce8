"""The `penwright import` command: start from a model that another project trained."""

from pathlib import Path
from typing import Annotated

import typer

from penwright.errors import UsageError

NAME = "import"


def command(
    source: Annotated[
        str,
        typer.Argument(
            help="Folder with config.json and safetensors, a GGUF file, or hub:NAME.",
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
) -> None:
    """Make a run from a pretrained model (Hugging Face, GGUF).

    Pickled weights are never opened. All commands accept the new run.
    """
    from penwright.cli.progress import print_message
    from penwright.languages import Languages
    from penwright.workflows.import_model import import_model

    if (source_language is None) != (target_language is None):
        raise UsageError("give both --from and --to, or neither")
    languages = Languages(source_language, target_language) if source_language and target_language else None
    print(repr(import_model(source, run, languages, print_message)))
    print(run)
