"""What several commands share: where texts come from, how results go out, and flags as settings."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from penwright.errors import PenwrightError

RunFolder = Annotated[Path, typer.Argument(help="The folder of a trained run.", metavar="RUN", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or mps.")]
Texts = Annotated[
    list[str] | None, typer.Argument(help="Texts; without any, each line of standard input is one.", metavar="TEXT")
]


def given_texts(texts: list[str] | None) -> list[str]:
    """The arguments, or the lines of standard input, split at newlines only."""
    if texts:
        return texts
    if sys.stdin.isatty():
        raise PenwrightError("nothing to read: give a text, or pipe lines in")
    read = sys.stdin.buffer.read().decode("utf-8", errors="replace").removeprefix("\ufeff")
    lines = [line.removesuffix("\r") for line in read.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def print_json(record: object) -> None:
    """One JSON value on one line of standard output."""
    print(json.dumps(record, ensure_ascii=False, default=str), flush=True)


def warn(text: str) -> None:
    """A line for people on standard error."""
    print(f"penwright: {text}", file=sys.stderr)


def without_none(table: dict[str, object]) -> dict[str, object]:
    """The flags that were given."""
    return {key: value for key, value in table.items() if value is not None and value != []}
