"""The standard streams: all three exist, no character fails, and what a terminal shows is never a command to it."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any, Protocol, TextIO, cast, runtime_checkable

# C0 but line feed and tab, DEL, C1, and what reorders the text around it (bidirectional embeddings and isolates).
COMMANDS = [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
ESCAPES = {code: ascii(chr(code))[1:-1] for code in COMMANDS if chr(code) not in "\n\t"}


@runtime_checkable
class Stream(Protocol):
    """What text can be written to."""

    def write(self, text: str, /) -> int: ...
    def flush(self) -> None: ...
    def isatty(self) -> bool: ...
    def fileno(self) -> int: ...


def escaped(text: str) -> str:
    r"""Return the text with control characters as `repr` shows them (\x1b); line feeds and tabs stay."""
    return text.translate(ESCAPES)


class _Layer:
    """A text stream on top of another one."""

    def __init__(self, beneath: Any):
        self.beneath: Any = beneath

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)

    def write(self, text: str) -> int:
        """Write the text; return how many characters were given."""
        raise NotImplementedError

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line as `write` does."""
        for line in lines:
            self.write(line)


class Escaping(_Layer):
    """A stream to a terminal: control characters in what is written are shown, not sent."""

    @property
    def buffer(self) -> Any:
        """No way around the escaping, as libraries take it where the encoding is ASCII."""
        raise AttributeError("buffer")

    def write(self, text: str) -> int:
        """Write the text escaped."""
        self.beneath.write(escaped(text))
        return len(text)


class Forgiving(_Layer):
    """A stream of messages: once its reader has gone, they are dropped, and the work goes on."""

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        with self._losses():
            self.beneath.write(text)
        return len(text)

    def flush(self) -> None:
        """Send what is buffered, or drop it."""
        with self._losses():
            self.beneath.flush()

    @contextmanager
    def _losses(self) -> Iterator[None]:
        try:
            yield
        except OSError:  # a closed pipe, a terminal that hung up, a full disk
            discard(self.beneath)


def without_escaping(stream: Stream) -> Any:
    """Return the stream that sends escape sequences, for a program that writes its own."""
    return stream.beneath if isinstance(stream, Escaping) else stream


def discard(stream: Stream) -> None:
    """Let go nowhere what is still to be written to the stream."""
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Prepare standard input, output and error; put back those that were there before.

    Output to a terminal, and all of standard error, is escaped. Files and pipes are written in UTF-8 unless
    PYTHONIOENCODING says otherwise. What an encoding lacks is written with backslashes.
    """
    before = sys.stdin, sys.stdout, sys.stderr
    _open_closed_ones()
    for stream in (sys.stdout, sys.stderr):
        _encode_everything(stream)
    if sys.stdout.isatty():
        sys.stdout = cast(TextIO, Escaping(sys.stdout))
    sys.stderr = cast(TextIO, Escaping(Forgiving(sys.stderr)))
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def _open_closed_ones() -> None:
    """Take the places of closed streams, which the next files to be opened would take otherwise.

    Reading from standard input fails then (its place can only be written to); what is printed goes nowhere.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            place = os.open(os.devnull, os.O_WRONLY)
            if place != number:
                os.dup2(place, number)
                os.close(place)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
            setattr(sys, name, stream)


def _encode_everything(stream: Stream) -> None:
    if not isinstance(stream, TextIOWrapper):
        return
    if not stream.isatty() and not os.environ.get("PYTHONIOENCODING"):
        stream.reconfigure(encoding="utf-8")
    if stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="backslashreplace")
