"""The `penwright` command: its table of contents, and how errors end."""

import signal
import sys
import warnings
from types import FrameType
from typing import NoReturn, TextIO

import typer

from penwright import __version__
from penwright.cli import (
    align,
    classify,
    config,
    doctor,
    evaluate,
    export,
    generate,
    inspect,
    novelty,
    optimize,
    plan,
    runs,
    serve,
    train,
    translate,
    tune,
)
from penwright.cli.streams import discard, standard_streams
from penwright.errors import PenwrightError, PenwrightWarning

COMMANDS = (
    train,
    plan,
    generate,
    translate,
    classify,
    evaluate,
    inspect,
    novelty,
    align,
    tune,
    optimize,
    export,
    serve,
    runs,
    config,
    doctor,
)

app = typer.Typer(
    name="penwright",
    help="Make a Transformer of your own: from your text to a model that writes, translates or classifies.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help answers in a tenth of a second
)
for module in COMMANDS:
    app.command(module.NAME)(module.command)
app.command(optimize.OLD_NAME, hidden=True)(optimize.renamed)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if show:
        print(f"penwright {__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Run the command; exit with 0, 1 (it failed), 2 (it was asked wrongly) or 130 (it was interrupted)."""
    with standard_streams():
        sys.exit(_run())


def _run() -> int | str | None:
    """Run the command and tell of what went wrong; return the exit code."""
    signal.signal(signal.SIGINT, _interrupted)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", PenwrightWarning)
            warnings.showwarning = _told
            return _until_written()
    except PenwrightError as error:
        print(f"penwright: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        discard(sys.stdout)
        return 0
    except OSError as error:  # a full disk, most likely
        discard(sys.stdout)
        what = f"{error.filename}: " if error.filename else ""
        print(f"penwright: {what}{error.strerror or error}", file=sys.stderr)
        return 1


def _until_written() -> int | str | None:
    """Run the command until all of its output is written; return the exit code."""
    try:
        app()
    except SystemExit as end:
        sys.stdout.flush()  # while a full disk can still be told of
        return end.code
    return 0


def _told(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Ours as every other word to the person; of others, also the line of code that it came from."""
    if issubclass(category, PenwrightWarning):
        print(f"penwright: {message}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=sys.stderr)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    print("\npenwright: interrupted", file=sys.stderr)  # below what was being written
    sys.exit(130)
