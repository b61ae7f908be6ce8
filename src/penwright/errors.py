"""The errors a person can cause, and the exit code each ends with; what is worth a warning; what long work says."""

from collections.abc import Callable

Say = Callable[[str], None]  # is told what long work is about to do


class PenwrightError(Exception):
    """Something a person can put right: the message says what is wrong, where, and what to do."""

    exit_code = 1


class UsageError(PenwrightError):
    """A command was given settings or arguments that cannot be: unknown keys, contradictions, a wrong kind of run."""

    exit_code = 2


class UnknownArgument(UsageError, TypeError):
    """A keyword argument that a function does not have."""


class Interrupted(PenwrightError):
    """Work was stopped by Ctrl+C, SIGTERM or SIGHUP; the message says what is saved and how to resume."""

    exit_code = 130


class PenwrightWarning(UserWarning):
    """Something that was worked round, or could be better: the message says what, where, and what to do."""


def say_nothing(text: str) -> None:
    """For work that nobody watches."""
