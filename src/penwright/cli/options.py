"""What several commands share: where texts come from, how results go out, and flags as settings."""

import json
import sys
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penwright.errors import Option, PenwrightError, Undecided

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penwright.config import Table
    from penwright.workflows.api import Prepared

LONGEST_SIDE = 100  # characters of an example that are shown
FEW_EXAMPLES = 50  # to learn classes from
FEW_BYTES = 20_000  # of text to learn from
RunFolder = Annotated[Path, typer.Argument(help="The folder of a trained run.", metavar="RUN", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or mps.")]
InPrecision = Annotated[
    Literal["float32", "bfloat16", "int8"] | None,
    typer.Option("--precision", help="Of the weights; else float32, or what `optimize` found.", show_default=False),
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
    """Read a file, or standard input for "-", decoded as files of training are.

    Raises PenwrightError where it cannot be read, or is no text.
    """
    name = "standard input" if path == "-" else path
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise PenwrightError(f"{name} cannot be read: {error.strerror}") from None
    from penwright.data.encoding import decode

    try:
        text, encoding = decode(content)
    except PenwrightError as error:
        raise PenwrightError(f"{name} cannot be read: {error}") from None
    if encoding != "utf-8":
        warn(f"{name} is not in UTF-8 and is read as {encoding}")
    return text


def lines_of(text: str) -> list[str]:
    """Lines end at newlines only; there is none after the last newline."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def print_json(record: object) -> None:
    """Print one JSON value on one line of standard output, which is JSON in any encoding."""
    in_unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    print(json.dumps(record, ensure_ascii=not in_unicode, default=str), flush=True)


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
    from penwright.workflows.plan import first_examples

    plan = prepared.plan
    choices = [choice._asdict() for choice in plan.choices]
    record = {"recipe": plan.recipe.model_dump(mode="json"), "choices": choices, "epochs": plan.epochs}
    return {
        **record,
        "minutes_wanted": plan.minutes_wanted,
        "size": plan.size._asdict(),
        "data": prepared.corpus.report.as_dict(),
        "examples": first_examples(prepared.corpus),
    }


def _in_one_line(example: dict[str, str]) -> str:
    """Return an example on one line: `source => target`, `text => label`, or a line of running text."""
    from penwright.data.profiles import shortened

    return " => ".join(shortened(side, LONGEST_SIDE) for side in example.values())


def prepare_by_asking(settings: "Table") -> "tuple[Table, Prepared]":
    """Prepare a run; on a terminal, ask about each doubtful choice. Returns the settings with the answers."""
    from penwright.cli.progress import err
    from penwright.config import merge, parse_override
    from penwright.workflows import api

    while True:
        try:
            return settings, api.prepare(settings, err)
        except Undecided as undecided:
            if not (undecided.options and sys.stdin.isatty() and sys.stderr.isatty()):
                raise
            answer = _ask(undecided)
        settings = merge(settings, *(parse_override(setting) for setting in answer.settings))


def _ask(undecided: Undecided) -> Option:
    """Ask on the terminal which option is meant; no answer, or the end of input, raises the question as an error."""
    print(undecided.question, file=sys.stderr)
    for number, option in enumerate(undecided.options, 1):
        print(f"  {number}  {option.meaning}", file=sys.stderr)
    while True:
        print("Number (Enter to stop): ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline().strip()
        if not answer:
            raise undecided
        if answer.isdecimal() and 1 <= int(answer) <= len(undecided.options):
            return undecided.options[int(answer) - 1]


def plan_in_words(prepared: "Prepared") -> "Iterator[str]":
    """For people: the same, a line each."""
    from penwright.workflows.plan import first_examples

    plan, size = prepared.plan, prepared.plan.size
    yield f"task: {plan.recipe.task} ({prepared.reason})"
    yield from (f"  {line}" for line in prepared.corpus.report.lines())
    yield "the first examples, as the model will see them:"
    yield from (f"  {_in_one_line(example)}" for example in first_examples(prepared.corpus))
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
    yield from _too_little(prepared)


def _too_little(prepared: "Prepared") -> "Iterator[str]":
    """Say that there is too little to learn from, if so."""
    corpus = prepared.corpus
    if prepared.plan.recipe.task == "classify":
        if corpus.n_training < FEW_EXAMPLES:
            yield (
                f"too few texts: a model can only memorise {corpus.n_training:,} labelled texts; "
                "to classify other texts it needs some dozens for each label"
            )
    elif corpus.training_bytes < FEW_BYTES:
        yield (
            f"too little text: a model can only memorise {corpus.training_bytes:,} bytes; to do well on other text "
            "it needs some hundred thousand"
        )
