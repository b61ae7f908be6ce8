"""Text files with a label on each line: fastText's `__label__x text`, or `label,text` without a header."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penwright.data.files import SourceFile
from penwright.data.readers.grid import Row
from penwright.data.sources import Broken
from penwright.errors import PenwrightError

PREFIX = "__label__"
SAMPLE = 1000  # lines that are examined
MOST = 0.98  # share of lines that must have the form
FEWEST = 20  # lines needed to detect labels before or after a comma, also lines per label
LONGEST_LABEL = 30  # characters
_FASTTEXT = re.compile(rf"\s*((?:{PREFIX}\S+\s*)+)(.*)", re.DOTALL)
Parse = Callable[[str], tuple[str, str]]  # splits a line into label and text


@dataclass(frozen=True)
class LabelledLines:
    """A file of labelled lines, as a table with the columns `label` and `text`."""

    file: SourceFile
    parse: Parse
    form: str  # a description
    columns: tuple[str, ...] = ("label", "text")

    @property
    def name(self) -> str:
        """The path of the file."""
        return self.file.path

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The file, as a tuple of one."""
        return (self.file,)

    def rows(self, columns: Sequence[int]) -> Iterator[Row | Broken]:
        """Yield the given columns (counted from 0) of every line.

        Raises PenwrightError for a line with several labels.
        """
        for number, line in enumerate(self.file.lines(), 1):
            cells = self.parse(line)
            labels = cells[0].split(PREFIX)
            if len(labels) > 1:
                raise PenwrightError(
                    f"{self.file.path} line {number:,} has several labels ({', '.join(map(str.strip, labels))}). "
                    "Penwright supports one label per text. Keep one label on each line"
                )
            yield tuple(cells[column] for column in columns)

    def place(self, row: int) -> str:
        """Return the location of a row (counted from 0) in words, for messages."""
        return f"{self.file.path} line {row + 1:,}"


def labelled_lines(file: SourceFile, fewest: int = FEWEST) -> LabelledLines | None:
    """Return the table in a file of labelled lines, or None if they are not clearly labelled."""
    lines = [line for line in file.first_lines(SAMPLE) if line.strip()]
    if lines and sum(line.lstrip().startswith(PREFIX) for line in lines) >= MOST * len(lines):
        return LabelledLines(file, _fasttext, f"lines begin with {PREFIX}")
    forms: tuple[tuple[Parse, str], ...] = (
        (_label_first, "lines begin with a label and a comma"),
        (_label_last, "lines end with a comma and a label"),
    )
    found = (LabelledLines(file, parse, form) for parse, form in forms if _are_labelled(lines, parse))
    return next(found, None) if len(lines) >= fewest else None


def _fasttext(line: str) -> tuple[str, str]:
    found = _FASTTEXT.fullmatch(line)
    return (found[1].strip().removeprefix(PREFIX), found[2]) if found else ("", line)


def _label_first(line: str) -> tuple[str, str]:
    label, _, text = line.partition(",")
    return label, text


def _label_last(line: str) -> tuple[str, str]:
    text, _, label = line.rpartition(",")
    return label, text


def _are_labelled(lines: Sequence[str], parse: Parse) -> bool:
    """Return whether nearly all lines have a text and a short label, with few different labels."""
    cells = [(label.strip(), text.strip()) for label, text in map(parse, lines)]
    labels = [label for label, text in cells if label and text and len(label) <= LONGEST_LABEL]
    often = 2 <= len(set(labels)) <= max(2, len(lines) // FEWEST)
    return len(labels) >= MOST * len(lines) and often
