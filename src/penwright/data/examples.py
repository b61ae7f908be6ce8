"""The types of a corpus: documents, pairs or labelled texts, in a training and a held-out part."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from penwright.data.files import SourceFile
from penwright.data.report import Report, count
from penwright.tokenizers.chat_template import PLAIN_TEMPLATE, ChatTemplate

FORMAT_VERSION = 1  # raised whenever the same files are read in another way


Roles = Mapping[str, Sequence[tuple[str, int]]]  # for a role such as "text": column names, and numbers from 1


class Document(NamedTuple):
    """Running text: a file, or a row of a table."""

    name: str
    chunks: Iterable[str]  # the text in pieces of at most about 1 MiB; can be iterated repeatedly


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class Labelled(NamedTuple):
    """A text and its label."""

    text: str
    label: str


Example = TypeVar("Example")


@dataclass(frozen=True)
class Columns:
    """The columns of a table to read, by name or by number from 1. None: detected."""

    source: str | int | None = None
    target: str | int | None = None
    text: tuple[str | int, ...] | str | int | None = None  # several are joined by a space
    label: str | int | None = None
    label_names: Mapping[str, str] = field(default_factory=dict)  # new names for labels in the files
    as_trained: Roles = field(default_factory=dict)  # the columns used in training, for roles that are not set


@dataclass(frozen=True)
class Cleaning:
    """Rules for dropping examples. Documents are only deduplicated."""

    max_characters: int = 5000  # longest side of a pair, or longest labelled text
    max_ratio: float | None = 9.0  # of the lengths of two sides, if the longer has more than 30 characters
    deduplicate: bool = True


ALL_COLUMNS, STANDARD = Columns(), Cleaning()
KEEP_ALL = Cleaning(max_characters=10**12, max_ratio=None, deduplicate=False)  # for evaluation


@dataclass(frozen=True)
class ReadingOptions:
    """Options for reading files as a corpus."""

    columns: Columns = ALL_COLUMNS
    validation: Sequence[str | Path] = ()  # separate held-out files
    held_out: float | None = None  # share held out if there are no such files; None: chosen by size
    seed: int = 0
    encoding: str | None = None  # None: detected
    cleaning: Cleaning = STANDARD
    template: ChatTemplate = PLAIN_TEMPLATE  # of conversations


DEFAULT_READING = ReadingOptions()


def with_training_columns(reading: ReadingOptions, roles: Roles) -> ReadingOptions:
    """Return the options for other files: with the columns used in training, unless they already have some."""
    columns = reading.columns
    return reading if columns.as_trained else replace(reading, columns=replace(columns, as_trained=roles))


@dataclass(frozen=True)
class CorpusPart(Generic[Example]):
    """Examples that are read from the files again on each iteration."""

    read: Callable[[], Iterator[Example]]
    n_examples: int
    n_characters: int  # in documents, targets of pairs, or labelled texts
    n_bytes: int  # of the same texts in UTF-8

    def __iter__(self) -> Iterator[Example]:
        return self.read()

    def __len__(self) -> int:
        return self.n_examples


@dataclass(frozen=True)
class Corpus(Generic[Example]):
    """All examples, a report on reading them, and a fingerprint of the files and of how they were read."""

    training: CorpusPart[Example]
    held_out: CorpusPart[Example]
    files: tuple[SourceFile, ...]
    fingerprint: str
    report: Report
    label_counts: Mapping[str, int] = field(default_factory=dict)  # in the training part, in the order of the labels
    names: tuple[str, ...] = ()  # of the sides of pairs, if all files agree
    roles: Roles = field(default_factory=dict)  # the columns that were chosen, if all files agree

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels, in numeric or alphabetic order; empty unless the corpus is labelled."""
        return tuple(self.label_counts)

    @property
    def n_training(self) -> int:
        """Number of training examples."""
        return self.training.n_examples

    @property
    def n_held_out(self) -> int:
        """Number of held-out examples."""
        return self.held_out.n_examples

    @property
    def training_bytes(self) -> int:
        """Size of the training part in UTF-8 bytes."""
        return self.training.n_bytes

    @property
    def held_out_bytes(self) -> int:
        """Size of the held-out part in UTF-8 bytes."""
        return self.held_out.n_bytes

    @property
    def held_out_characters(self) -> int:
        """Size of the held-out part in characters."""
        return self.held_out.n_characters


def only_held_out(
    part: CorpusPart[Example],
    files: tuple[SourceFile, ...],
    unit: str,
    choices: Sequence[str],
    notes: tuple[str, ...] = (),
) -> Corpus[Example]:
    """Return a corpus for evaluation, without training examples. `choices` describes the columns of its sources."""
    nothing: CorpusPart[Example] = CorpusPart(lambda: iter(()), 0, 0, 0)
    report = Report(unit, files, len(part), len(part), (), f"held out: everything, {count(len(part), unit)}", notes)
    return Corpus(nothing, part, files, fingerprint_of(files, task=unit, columns=choices), report)


def fingerprint_of(files: Sequence[SourceFile], **settings: object) -> str:
    """Return a hash of the content of the files and of all settings that change what is read from them."""
    content = [(file.sha256, file.encoding) for file in files]
    record = json.dumps([FORMAT_VERSION, content, settings], sort_keys=True, default=str)
    return hashlib.sha256(record.encode()).hexdigest()
