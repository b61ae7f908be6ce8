"""Arguments and options that several commands share, and functions that read input and print results."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penwright.errors import Option, PenwrightError, Undecided, UsageError, say_nothing
from penwright.text import words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penwright.config import Table
    from penwright.workflows.plan import Prepared

RunFolder = Annotated[Path, typer.Argument(help="Folder of a trained run.", metavar="RUN", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Device = Annotated[str, typer.Option(help="Device to compute on: cpu, cuda or mps.")]
InPrecision = Annotated[
    Literal["float32", "bfloat16", "int8"] | None,
    typer.Option(
        "--precision",
        help="Precision of the weights. Default: the fastest one that is as accurate as float32 on held-out text.",
        show_default=False,
    ),
]
Data = Annotated[
    list[str] | None, typer.Argument(help="Training data: files, folders, glob patterns or hub:NAME.", metavar="DATA")
]
OwnFiles = Annotated[
    list[str] | None, typer.Argument(help="Files to evaluate on. Default: the run's held-out set.", metavar="DATA")
]
RecipeFile = Annotated[Path | None, typer.Option(help="TOML file of settings; options override it.")]
AnySetting = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set any key of the recipe. Repeatable.", metavar="TABLE.KEY=VALUE"),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        help="Task: generate, chat, translate, classify, score (predict numbers) or encode. Default: detected."
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(help="Training budget in minutes, evaluation included. Default: 10, if no other budget is given."),
]
Steps = Annotated[int | None, typer.Option(help="Training budget in optimizer steps.")]
Epochs = Annotated[float | None, typer.Option(help="Training budget in epochs (passes over the training data).")]
SizeName = Annotated[
    str | None,
    typer.Option(
        help="Model size: nano, tiny, mini, small, medium, base, large, gpt2, llama3-1b, ... Default: chosen for the "
        "data and the budget."
    ),
]
TokenizerSource = Annotated[
    str | None,
    typer.Option(help="Use the tokenizer of this run or folder, or this tokenizer file, GGUF file or hub:NAME."),
]
Dictionary = Annotated[
    str | None,
    typer.Option(
        help="Translators: dictionary file to learn from, with a term, a tab and its translation on each line."
    ),
]
Balance = Annotated[
    bool,
    typer.Option("--balance", help="Classifiers: treat all labels as equally frequent, which helps to find rare ones."),
]
Group = Annotated[
    str | None,
    typer.Option(
        help="Classifiers: column of groups, such as authors. Each group is held out as a whole, or not at all.",
        metavar="COLUMN",
    ),
]
TextColumns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        help="Text columns of a table, by name or number. For a classifier of pairs, name two: premise,hypothesis.",
        metavar="NAME,...",
    ),
]
Validation = Annotated[
    list[str] | None,
    typer.Option(
        help="Held-out data: a file, folder or pattern. Repeatable. Default: a part of the training data.",
        metavar="DATA",
    ),
]
Texts = Annotated[
    list[str] | None, typer.Argument(help="Input texts. Default: the lines of standard input.", metavar="TEXT")
]


def given_texts(texts: list[str] | None) -> list[str]:
    """Return the texts given as arguments or, if there are none, the lines of standard input."""
    if texts:
        if len(texts) > 2 and all(len(words(text)) == 1 for text in texts):
            warn("each argument is a text of its own. To give one text that contains spaces, put it in quotes")
        return texts
    if sys.stdin.isatty():
        raise PenwrightError("there is no input. Give a text as an argument, or pipe lines to standard input")
    return lines_of(read_text("-"))


def read_text(path: str) -> str:
    """Read a file, or standard input for "-". The encoding is detected in the same way as for training data.

    Raises PenwrightError if the file cannot be read or is not text.
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
        warn(f"{name} is not UTF-8; reading it as {encoding}")
    return text if "\n" in text else text.replace("\r", "\n")  # lines of an old Mac


def lines_of(text: str) -> list[str]:
    """Split a text into lines at newlines only. A final newline adds no empty line."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def print_json(record: object) -> None:
    """Print a value as one line of JSON. Escape non-ASCII characters unless standard output is in Unicode."""
    in_unicode = (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    print(json.dumps(record, ensure_ascii=not in_unicode, default=str), flush=True)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    print(f"penwright: {text}", file=sys.stderr)


def without_none(table: dict[str, object]) -> dict[str, object]:
    """Return the options that were given: drop None and empty lists."""
    return {key: value for key, value in table.items() if value is not None and value != []}


def refuse_unused(options: Mapping[str, object], when: str) -> None:
    """Raise UsageError for the first of these options that was given; `when` says why it has no effect."""
    for name, value in options.items():
        if value is not None and value is not False and value != []:
            raise UsageError(f"{name} has no effect {when}. Leave it out")


def training_flags(
    data: dict[str, object],
    columns: str | None,
    task: str | None,
    size: str | None,
    tokenizer: str | None = None,
    *,
    balance: bool = False,
    **budget: int | float | None,
) -> "Table":
    """Return the options that `train` and `plan` share, as settings.

    Args:
        data: Settings of the table `data`, where None means that the option was not given.
        columns: Names or numbers of text columns, separated by commas.
        task: The task, or None to detect it.
        size: The name of a model size.
        tokenizer: The source of an existing tokenizer.
        balance: Whether to treat all labels as equally frequent.
        **budget: Minutes, steps or epochs.
    """
    names = [name.strip() for name in columns.split(",")] if columns else None
    return {
        "data": without_none({**data, "text": names}),
        "training": without_none({**budget}),
        "model": without_none({"size": size, "balanced": balance or None}),
        "tokenizer": without_none({"from": tokenizer}),
        **without_none({"task": task}),
    }


def settings_of(recipe: Path | None, flags: "Table", overrides: "Sequence[str]") -> "Table":
    """Merge the recipe, the options and --set. Later values win. A new budget replaces the budget of the recipe."""
    from penwright.config import merge, parse_override
    from penwright.workflows.plan import read_recipe

    above = merge(flags, *(parse_override(text) for text in overrides))
    settings = merge(read_recipe(recipe, above) if recipe is not None else {}, above)
    return {key: value for key, value in settings.items() if value != {}}


def prepare_by_asking(settings: "Table", run: Path | None = None, *, is_dry: bool = False) -> "tuple[Table, Prepared]":
    """Prepare a run. Import its base if necessary; a dry run imports nothing, so its base must be imported already.

    On a terminal, ask about ambiguous choices. Return the completed settings and the prepared run.
    """
    from penwright.config import merge, parse_override
    from penwright.streams import print_message
    from penwright.workflows.import_model import with_imported_base
    from penwright.workflows.plan import prepare

    settings = with_imported_base(settings, run, say_nothing if is_dry else print_message, is_dry=is_dry)
    while True:
        try:
            return settings, prepare(settings, print_message)
        except Undecided as undecided:
            if not (undecided.options and sys.stdin.isatty() and sys.stderr.isatty()):
                raise
            answer = _ask(undecided)
        settings = merge(settings, *(parse_override(setting) for setting in answer.settings))


def _ask(undecided: Undecided) -> Option:
    """Ask on the terminal which option to take, and return it. Raise `undecided` if there is no answer."""
    print(undecided.question, file=sys.stderr)
    for number, option in enumerate(undecided.options, 1):
        print(f"  {number}  {option.meaning}", file=sys.stderr)
    while True:
        print("Number (Enter to quit): ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline().strip()
        if not answer:
            raise undecided
        if answer.isdecimal() and 1 <= int(answer) <= len(undecided.options):
            return undecided.options[int(answer) - 1]
