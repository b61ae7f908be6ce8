"""The `penwright` command line: its list of commands, its error messages and exit codes."""

import gc
import re
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

import typer
from typer.core import TyperCommand

from penwright import __version__, spin_longer
from penwright.cli import (
    classify,
    embed,
    evaluate,
    generate,
    import_export,
    info,
    inspect,
    optimize,
    plan,
    serve,
    train,
    translate,
)
from penwright.errors import PenwrightError, PenwrightWarning, UsageError
from penwright.streams import discard, standard_streams
from penwright.training.distributed.launcher import treat_as_ctrl_c

COMMANDS: Mapping[str, Callable[..., None]] = {  # the commands, in the order of the help
    "train": train.command,
    "plan": plan.command,
    "import": import_export.import_model,
    "generate": generate.generate,
    "chat": generate.chat,
    "translate": translate.translate,
    "classify": classify.command,
    "embed": embed.embed,
    "search": embed.search,
    "evaluate": evaluate.evaluate,
    "inspect": inspect.command,
    "novelty": evaluate.novelty,
    "align": translate.align,
    "tune": optimize.tune,
    "optimize": optimize.optimize,
    "export": import_export.export,
    "serve": serve.serve,
    "studio": serve.studio,
    "runs": info.runs,
    "config": info.config,
    "doctor": info.doctor,
}
GENERATING = ("generate", "chat", "translate", "serve")  # commands that only generate tokens
FULL_MEMORY = "End other programs that use the GPU, choose a smaller model, or use the CPU (--device cpu)"
GARBAGE = 50_000  # new objects per garbage collection; Python's default, 700, took a fifth of the startup time
PLAIN = {  # patterns in typer's error messages, and their replacements in plain words
    r"Input should be a valid number.*": "must be a number, such as 2.5",
    r"Input should be a valid integer.*": "must be a whole number, such as 2",
    r"Input should be ": "must be ",
    r"Value error, ": "",
    r"(Got unexpected extra argument.*)": r"\1. Put a text or a file name that contains spaces in quotes",
}
OLD_COMMANDS: Mapping[str, Callable[..., None]] = {"quicken": optimize.quicken}


class Command(TyperCommand):
    """A command that explains frequent mistakes in its arguments, and adapts the threads to its work."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; if it generates tokens, idle threads spin longer."""
        if self.name in GENERATING:
            spin_longer()
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; explain an error in plain words, with its most likely cause."""
        options = {name for parameter in self.params for name in parameter.opts}
        for word in args:
            if word[0:1] in ("–", "—") and (option := f"--{word.lstrip('–—')}") in options:
                raise UsageError(f"'{word}' begins with a dash, which a word processor made of hyphens. Write {option}")
        given = list(args)  # parsing empties the list
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer's classes of errors are not public
            if isinstance(message := getattr(error, "message", None), str):
                error.message = _explained(message, given, options)  # type: ignore[attr-defined]  # it has one
            raise


def _explained(message: str, given: Sequence[str], options: Collection[str]) -> str:
    """Return an error message of typer in plain words, with the most likely cause."""
    for pattern, ours in PLAIN.items():
        message = re.sub(pattern, ours, message)
    if (found := re.fullmatch(r"No such option: (-.*)", message)) is None:
        return message
    word = next((word for word in given if word.startswith(found[1].rstrip())), found[1])
    if f"-{word}" in options:
        return f"{message}. Did you mean -{word}?"
    is_input = " " in word or Path(word).exists()
    return f"{message}. If '{word}' is a text or a file, write -- before it, after all options" if is_input else message


app = typer.Typer(
    name="penwright",
    help="Make a Transformer of your own: from your text to a model that writes, translates or classifies.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, because rich is slow to import
)
for name, command in COMMANDS.items():
    app.command(name, cls=Command)(command)
for name, command in OLD_COMMANDS.items():
    app.command(name, hidden=True, cls=Command)(command)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Print the version and exit if --version is given."""
    if show:
        print(f"penwright {__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Run the command; exit with 0, 1 (failure), 2 (usage error) or 130 (interrupted)."""
    gc.set_threshold(GARBAGE)
    with standard_streams():
        sys.exit(_run())


def _run() -> int | str | None:
    """Run the command, report its errors on standard error, and return the exit code."""
    signal.signal(signal.SIGINT, _on_interrupt)
    treat_as_ctrl_c()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", PenwrightWarning)
            warnings.showwarning = _show_warning
            return _run_and_flush()
    except PenwrightError as error:
        print(f"penwright: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader, for example `head`, has closed the pipe
        discard(sys.stdout)
        return 0
    except RuntimeError as error:
        if "out of memory" not in str(error):  # torch raises its own class, but torch may not be imported
            raise
        print(f"penwright: {str(error).partition('. ')[0]}. {FULL_MEMORY}", file=sys.stderr)
        return 1
    except OSError as error:  # most likely, the disk is full
        discard(sys.stdout)
        where = f"{error.filename}: " if error.filename else ""
        print(f"penwright: {where}{error.strerror or error}", file=sys.stderr)
        return 1


def _run_and_flush() -> int | str | None:
    """Run the command and flush its output; return the exit code."""
    try:
        app()
    except SystemExit as end:
        sys.stdout.flush()  # flush here, where an error such as a full disk can still be reported
        return end.code
    return 0


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print Penwright's warnings as plain messages, and other warnings with their source line."""
    if issubclass(category, PenwrightWarning):
        print(f"penwright: {message}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=sys.stderr)


def _on_interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGINT, SIGTERM and SIGHUP: print a message and exit with 130."""
    if number == getattr(signal, "SIGHUP", None):
        signal.signal(number, signal.SIG_IGN)  # a closing terminal sends several; ignore the others while cleaning up
    print("\npenwright: interrupted", file=sys.stderr)  # end the current line, which may be incomplete
    sys.exit(130)
