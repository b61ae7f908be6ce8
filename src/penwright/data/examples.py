"""What a corpus is made of: documents, pairs or labelled texts, in a training and a held-out part."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from penwright.data.files import SourceFile
from penwright.data.report import Report, count

FORMAT_VERSION = 1  # of reading: a higher one may read the same files in another way


Roles = Mapping[str, Sequence[tuple[str, int]]]  # "text": the names of its columns, and their numbers from 1


class Document(NamedTuple):
    """Running text: a file, or a row of one."""

    name: str
    chunks: Iterable[str]  # the text in pieces of at most about 1 MiB; may be iterated again


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class Labelled(NamedTuple):
    """A text and its class."""

    text: str
    label: str


Example = TypeVar("Example")


@dataclass(frozen=True)
class Columns:
    """Columns of a table, by name or by number from 1; None: found out."""

    source: str | int | None = None
    target: str | int | None = None
    text: tuple[str | int, ...] | str | int | None = None  # several are joined by a space
    label: str | int | None = None
    label_names: Mapping[str, str] = field(default_factory=dict)  # what to call labels that files name otherwise
    as_trained: Roles = field(default_factory=dict)  # the choice of training, for what is not told


@dataclass(frozen=True)
class Cleaning:
    """Which examples are left out. For documents, only `deduplicate` counts."""

    max_characters: int = 5000  # of one side of a pair, or of a labelled text
    max_ratio: float | None = 9.0  # between the lengths of two sides, when the longer has more than 30 characters
    deduplicate: bool = True


ALL_COLUMNS, STANDARD = Columns(), Cleaning()
NOTHING_LEFT_OUT = Cleaning(max_characters=10**12, max_ratio=None, deduplicate=False)  # of what scores are measured on


@dataclass(frozen=True)
class Reading:
    """How files become a corpus."""

    columns: Columns = ALL_COLUMNS
    validation: Sequence[str | Path] = ()  # held-out files of one's own
    held_out: float | None = None  # without them, the part that is held out; None: chosen by the size
    seed: int = 0
    encoding: str | None = None  # None: found out
    cleaning: Cleaning = STANDARD


AS_FOUND = Reading()


def read_alike(reading: Reading, roles: Roles) -> Reading:
    """Have other files read in these columns, unless the reading already says which ones."""
    columns = reading.columns
    return reading if columns.as_trained else replace(reading, columns=replace(columns, as_trained=roles))


@dataclass(frozen=True)
class Part(Generic[Example]):
    """Examples that are read from the files again each time they are iterated."""

    read: Callable[[], Iterator[Example]]
    n_examples: int
    n_characters: int  # of documents, targets of pairs, or labelled texts
    n_bytes: int  # the same in UTF-8

    def __iter__(self) -> Iterator[Example]:
        return self.read()

    def __len__(self) -> int:
        return self.n_examples


@dataclass(frozen=True)
class Corpus(Generic[Example]):
    """All examples, what was found on the way, and a fingerprint of the files and of how they were read."""

    training: Part[Example]
    held_out: Part[Example]
    files: tuple[SourceFile, ...]
    fingerprint: str
    report: Report
    label_counts: Mapping[str, int] = field(default_factory=dict)  # of the training part, in order
    names: tuple[str, ...] = ()  # of the sides of pairs, where all files call them alike
    roles: Roles = field(default_factory=dict)  # which columns were chosen, where all files have the same ones

    @property
    def labels(self) -> tuple[str, ...]:
        """All classes, in numeric or alphabetic order; none but in labelled corpora."""
        return tuple(self.label_counts)

    @property
    def n_training(self) -> int:
        return self.training.n_examples

    @property
    def n_held_out(self) -> int:
        return self.held_out.n_examples

    @property
    def training_bytes(self) -> int:
        return self.training.n_bytes

    @property
    def held_out_bytes(self) -> int:
        return self.held_out.n_bytes

    @property
    def held_out_characters(self) -> int:
        return self.held_out.n_characters


def only_held_out(
    part: Part[Example],
    files: tuple[SourceFile, ...],
    unit: str,
    choices: Sequence[str],
    notes: tuple[str, ...] = (),
) -> Corpus[Example]:
    """Return a corpus to measure a model on, with nothing to train from; `choices` are the columns of its sources."""
    nothing: Part[Example] = Part(lambda: iter(()), 0, 0, 0)
    report = Report(unit, files, len(part), len(part), (), f"held out: all of it, {count(len(part), unit)}", notes)
    return Corpus(nothing, part, files, fingerprint_of(files, task=unit, columns=choices), report)


def fingerprint_of(files: Sequence[SourceFile], **settings: object) -> str:
    """A hash of the content of the files and of all settings that change what is read from them."""
    content = [(file.sha256, file.encoding) for file in files]
    record = json.dumps([FORMAT_VERSION, content, settings], sort_keys=True, default=str)
    return hashlib.sha256(record.encode()).hexdigest()
