"""The errors a person can cause, and the exit code each ends with; what is worth a warning; what long work says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from shlex import quote

Say = Callable[[str], None]  # is told what long work is about to do


class PenwrightError(Exception):
    """Something a person can put right: the message says what is wrong, where, and what to do."""

    exit_code = 1


class UsageError(PenwrightError):
    """A command was given settings or arguments that cannot be: unknown keys, contradictions, a wrong kind of run."""

    exit_code = 2


class UnknownArgument(UsageError, TypeError):
    """A keyword argument that a function does not have."""


@dataclass(frozen=True)
class Option:
    """One answer to a question: the settings that give it (`data.text=headline`), and what it means."""

    settings: tuple[str, ...]
    meaning: str


def _flag(setting: str) -> str:
    """Return the flag of a command that gives this setting."""
    return f"--task {setting.removeprefix('task=')}" if setting.startswith("task=") else f"--set {quote(setting)}"


class Undecided(PenwrightError):
    """A choice that only the person can make. The message names the settings to give; a terminal can ask."""

    exit_code = 2

    def __init__(self, question: str, options: Sequence[Option], hint: str = ""):
        flags = (" ".join(map(_flag, each.settings)) for each in options)
        shown = [f"  {flag}  ({each.meaning})" for flag, each in zip(flags, options, strict=True)]
        super().__init__("\n".join([question, *(["Say which:", *shown] if shown else []), *([hint] if hint else [])]))
        self.question, self.options = question, tuple(options)


class Interrupted(PenwrightError):
    """Work was stopped by Ctrl+C, SIGTERM or SIGHUP; the message says what is saved and how to resume."""

    exit_code = 130


class PenwrightWarning(UserWarning):
    """Something that was worked round, or could be better: the message says what, where, and what to do."""


def say_nothing(text: str) -> None:
    """For work that nobody watches."""
