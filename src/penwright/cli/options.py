"""What several commands share: where texts come from, how results go out, and flags as settings."""

import json
import sys
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penwright.errors import PenwrightError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penwright.config import Table
    from penwright.workflows.api import Prepared

FEW_BYTES = 20_000  # of text to learn from
RunFolder = Annotated[Path, typer.Argument(help="The folder of a trained run.", metavar="RUN", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or mps.")]
InPrecision = Annotated[
    Literal["float32", "bfloat16", "int8"] | None,
    typer.Option("--precision", help="Of the weights; else float32, or what `quicken` found.", show_default=False),
]
Data = Annotated[list[str] | None, typer.Argument(help="Files, folders, patterns or hub:NAME.", metavar="DATA")]
OwnFiles = Annotated[
    list[str] | None, typer.Argument(help="Files of your own, instead of the held-out part.", metavar="DATA")
]
RecipeFile = Annotated[Path | None, typer.Option(help="A TOML file of settings.")]
AnySetting = Annotated[list[str] | None, typer.Option("--set", help="Any setting: table.key=value.")]
TaskName = Annotated[str | None, typer.Option(help="generate, translate or classify; found out if not given.")]
Minutes = Annotated[float | None, typer.Option(help="Train for so many minutes of this machine.")]
Steps = Annotated[int | None, typer.Option(help="Train for so many steps.")]
Epochs = Annotated[float | None, typer.Option(help="Train for so many passes over the text.")]
SizeName = Annotated[str | None, typer.Option(help="Of the model: nano, tiny, mini, small, medium, base, ...")]
Validation = Annotated[list[str] | None, typer.Option(help="Held-out files of your own.")]
Texts = Annotated[
    list[str] | None, typer.Argument(help="Texts; without any, each line of standard input is one.", metavar="TEXT")
]


def given_texts(texts: list[str] | None) -> list[str]:
    """The arguments, or the lines of standard input, split at newlines only."""
    if texts:
        return texts
    if sys.stdin.isatty():
        raise PenwrightError("nothing to read: give a text, or pipe lines in")
    return lines_of(read_text("-"))


def read_text(path: str) -> str:
    """A file of UTF-8, or standard input for "-"; raises PenwrightError where there is none."""
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise PenwrightError(f"{path} cannot be read: {error.strerror}") from None
    return content.decode("utf-8", errors="replace").removeprefix("\ufeff")


def lines_of(text: str) -> list[str]:
    """Lines end at newlines only; there is none after the last newline."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
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


def training_flags(
    data: list[str] | None,
    validation: list[str] | None,
    task: str | None,
    size: str | None,
    **budget: int | float | None,
) -> "Table":
    """The flags that `train` and `plan` share, as settings; a budget by its name: minutes, steps, epochs."""
    return {
        "data": without_none({"train": data, "validation": validation}),
        "training": without_none({**budget}),
        "model": without_none({"size": size}),
        **without_none({"task": task}),
    }


def settings_of(recipe: Path | None, flags: "Table", overrides: "Sequence[str]") -> "Table":
    """The recipe, then flags, then --set, each laid over what comes before; a budget given replaces another."""
    from penwright.config import merge, parse_override
    from penwright.workflows.api import read_recipe

    above = merge(flags, *(parse_override(text) for text in overrides))
    settings = merge(read_recipe(recipe, above) if recipe is not None else {}, above)
    return {key: value for key, value in settings.items() if value != {}}


def plan_as_record(prepared: "Prepared") -> dict[str, object]:
    """For programs: the recipe, its choices with their reasons, the size, and what was read."""
    plan = prepared.plan
    choices = [choice._asdict() for choice in plan.choices]
    record = {"recipe": plan.recipe.model_dump(mode="json"), "choices": choices, "epochs": plan.epochs}
    return {
        **record,
        "minutes_wanted": plan.minutes_wanted,
        "size": plan.size._asdict(),
        "data": prepared.corpus.report.as_dict(),
    }


def plan_in_words(prepared: "Prepared") -> "Iterator[str]":
    """For people: the same, a line each."""
    plan, size = prepared.plan, prepared.plan.size
    yield f"task: {plan.recipe.task} ({prepared.reason})"
    yield from (f"  {line}" for line in prepared.corpus.report.lines())
    yield from (f"{choice.key} = {choice.value} ({choice.reason})" for choice in plan.choices)
    yield from (f"machine: {reason}" for reason in prepared.machine.reasons)
    yield (
        f"model: {size.parameters:,} parameters, {size.flops_per_token / 1e6:.1f} MFLOP a token, "
        f"about {size.training_bytes / 1e9:.2g} GB to train"
    )
    if plan.minutes_wanted is not None:
        yield (
            f"too short: the {plan.recipe.training.minutes:.2g} min end before this model has well begun to learn; "
            f"give it {ceil(10 * plan.minutes_wanted) / 10:g} or more"
        )
    if plan.recipe.task != "classify" and prepared.corpus.training_bytes < FEW_BYTES:
        yield (
            f"too little text: {prepared.corpus.training_bytes:,} bytes can only be learned by heart; what is "
            "good on other text needs some hundred thousand"
        )
