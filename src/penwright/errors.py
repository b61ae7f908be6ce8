"""Errors that the user can fix, with exit codes and hints; the warning class; optional packages; progress callbacks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Any

Say = Callable[[str], None]  # receives progress messages of long operations


class PenwrightError(Exception):
    """An error that the user can fix. The message names the problem, the place and the solution."""

    exit_code = 1


class UsageError(PenwrightError):
    """An error for invalid settings or arguments: unknown keys, contradictions, or a run of the wrong kind."""

    exit_code = 2


class UnknownArgument(UsageError, TypeError):
    """An error for an unknown keyword argument."""


@dataclass(frozen=True)
class Option:
    """One possible answer to a question: the settings that select it (`data.text=headline`), and its meaning."""

    settings: tuple[str, ...]
    meaning: str


def _flag(setting: str) -> str:
    """Return the command-line option for this setting."""
    return f"--task {setting.removeprefix('task=')}" if setting.startswith("task=") else f"--set {quote(setting)}"


class Undecided(PenwrightError):
    """An error for a choice that only the user can make. The message lists the possible settings."""

    exit_code = 2

    def __init__(self, question: str, options: Sequence[Option], hint: str = ""):
        flags = (" ".join(map(_flag, option.settings)) for option in options)
        shown = [f"  {flag}  ({option.meaning})" for flag, option in zip(flags, options, strict=True)]
        super().__init__("\n".join([question, *(["Choose one:", *shown] if shown else []), *([hint] if hint else [])]))
        self.question, self.options = question, tuple(options)


class Interrupted(PenwrightError):
    """An interruption by Ctrl+C, SIGTERM or SIGHUP. The message explains what was saved, and how to resume."""

    exit_code = 130


class PenwrightWarning(UserWarning):
    """A warning about a problem that is not fatal. The message names the problem, the place and the solution."""


def near_miss(path: Path) -> str:
    """Return a hint about a missing file: a similar name, or the remark that its folder does not exist."""
    if not path.parent.is_dir():
        return f": there is no folder {path.parent}"
    names = [entry.name for entry in path.parent.iterdir()]
    if split := [name for name in names if name.startswith(f"{path.name} ")]:
        return f"; did you mean '{path.parent / split[0]}'? Put a name that contains spaces in quotes"
    nearest = get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f"; did you mean {path.parent / nearest[0]}?" if nearest else ""


def import_extra(module: str, extra: str, what: str) -> Any:
    """Import a module that only an extra of Penwright installs. `what` names the things that need it, in the plural.

    Raises PenwrightError, with the installation command, if the module cannot be imported.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise PenwrightError(f"{what} need {module}: {error}. Install it: pip install 'penwright[{extra}]'") from error


def say_nothing(text: str) -> None:
    """Discard the message: the `Say` callback of silent operations."""


def do_nothing() -> None:
    """Do nothing: the default of callbacks without arguments, such as one that may raise an exception to stop work."""
