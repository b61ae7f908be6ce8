"""Standard streams that are always open, accept every character, and escape control characters for terminals."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any, Protocol, TextIO, cast, runtime_checkable

# C0, DEL, C1, and the characters that reorder bidirectional text. Line feeds and tabs are not escaped.
CONTROL_CODES = [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
ESCAPES = {code: ascii(chr(code))[1:-1] for code in CONTROL_CODES if chr(code) not in "\n\t"}


@runtime_checkable
class Stream(Protocol):
    """A text stream with the methods that this package uses."""

    def write(self, text: str, /) -> int: ...  # noqa: D102 - as in io.TextIOBase
    def flush(self) -> None: ...  # noqa: D102 - as in io.TextIOBase
    def isatty(self) -> bool: ...  # noqa: D102 - as in io.TextIOBase
    def fileno(self) -> int: ...  # noqa: D102 - as in io.TextIOBase


def escaped(text: str) -> str:
    r"""Return the text with control characters escaped as in `repr` (\x1b), except line feeds and tabs."""
    return text.translate(ESCAPES)


def print_message(text: str) -> None:
    """Print a line on standard error with control characters escaped.

    This is for Python callers. The command line escapes all of standard error anyway.
    """
    sys.stderr.write(f"{escaped(text)}\n")
    sys.stderr.flush()


class _Layer:
    """A text stream that wraps another text stream."""

    def __init__(self, stream: Any):
        self.stream: Any = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write the text; return its number of characters."""
        raise NotImplementedError  # abstract: each subclass encodes or prints the text in its own way

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the lines, calling `write` once per line."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the buffer."""
        self.stream.flush()

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        return bool(self.stream.isatty())

    def fileno(self) -> int:
        """Return the number of the file descriptor."""
        return int(self.stream.fileno())


class EscapingStream(_Layer):
    """A stream that escapes control characters, so that a terminal shows them instead of acting on them."""

    @property
    def buffer(self) -> Any:
        """Raise AttributeError: libraries would write bytes to the buffer and bypass the escaping."""
        raise AttributeError("buffer")

    def write(self, text: str) -> int:
        """Write the text with control characters escaped."""
        self.stream.write(escaped(text))
        return len(text)


class LossyStream(_Layer):
    """A stream for messages. If writing fails, for example on a closed pipe, messages are dropped."""

    def write(self, text: str) -> int:
        """Write the text. If writing fails, drop the text."""
        with self._discarding_on_error():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the buffer. If flushing fails, drop the content."""
        with self._discarding_on_error():
            super().flush()

    @contextmanager
    def _discarding_on_error(self) -> Iterator[None]:
        """Discard the stream if an operation on it fails."""
        try:
            yield
        except OSError:  # raised by, for example, a closed pipe, a closed terminal or a full disk
            discard(self.stream)


def without_escaping(stream: Stream) -> Any:
    """Return the stream without the escaping layer, for libraries that write their own escape sequences."""
    return stream.stream if isinstance(stream, EscapingStream) else stream


def discard(stream: Stream) -> None:
    """Redirect the stream to the null device, where pending output is dropped."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Set up standard input, output and error; restore the previous streams on exit.

    Control characters are escaped in output to a terminal and in all of standard error. Files and pipes are written
    in UTF-8 unless PYTHONIOENCODING says otherwise. Characters that the encoding lacks become backslash escapes.
    """
    before = sys.stdin, sys.stdout, sys.stderr
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        _encode_everything(stream)
    if sys.stdout.isatty():
        sys.stdout = cast(TextIO, EscapingStream(sys.stdout))
    sys.stderr = cast(TextIO, EscapingStream(LossyStream(sys.stderr)))
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def _open_closed_streams() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise, the files opened next would get the descriptors of these streams. Output is dropped. Reading standard
    input fails, since the device is open for writing only.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            descriptor = os.open(os.devnull, os.O_WRONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open
            setattr(sys, name, stream)


def _encode_everything(stream: Stream) -> None:
    """Make the stream accept every character: with UTF-8 for files and pipes, with backslash escapes otherwise."""
    if not isinstance(stream, TextIOWrapper):
        return
    if not stream.isatty() and not os.environ.get("PYTHONIOENCODING"):
        stream.reconfigure(encoding="utf-8")
    if stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="backslashreplace")
