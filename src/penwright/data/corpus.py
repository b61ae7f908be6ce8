"""A corpus: its examples, the options for reading them, its sources, and the rules that drop items."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from penwright.config import ProblemType
from penwright.data.cleaning import STANDARD, Cleaning, Dropped, Report
from penwright.data.files import SourceFile
from penwright.data.splits import Groups, Mask
from penwright.errors import PenwrightError
from penwright.text import count
from penwright.tokenizers.chat_template import PLAIN_TEMPLATE, ChatTemplate

BETWEEN_LABELS = "\x1f"  # the ASCII unit separator; no label contains it
# Since 3, empty JSON lists are read. Since 4, these are read differently: line breaks in TMX and XLIFF, states and
# marks in XLIFF, scores with separators, .txt files with a header and commas, JSON texts in parts, folders of tables.
FORMAT_VERSION = 5  # increase this when a code change alters how files are read
UNKNOWN = "broken"
Roles = Mapping[str, Sequence[tuple[str, int]]]  # for each role, the names and numbers (from 1) of its columns
Row = tuple[str, ...]  # the cells of a table row
Item = TypeVar("Item")
Example = TypeVar("Example")


class Document(NamedTuple):
    """Running text: a file, or a row of a table."""

    name: str
    chunks: Iterable[str]  # the text in pieces of at most about 1 MiB; can be iterated repeatedly


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class Labelled(NamedTuple):
    """A text and its label: a class, several classes joined by BETWEEN_LABELS (itself: no class), or a number.

    The two texts of a pair are joined by BETWEEN_TEXTS.
    """

    text: str
    label: str

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the text, as a tuple."""
        return tuple(filter(None, self.label.split(BETWEEN_LABELS)))


class LabelKind(NamedTuple):
    """The kind of labels in a column: one class per text, several classes per text, or numbers."""

    problem_type: ProblemType = "single_label_classification"
    separator: str | None = None  # separates the labels of a cell; None: only a list can hold several labels


@dataclass(frozen=True)
class Columns:
    """The columns of a table to read, by name or by number from 1. None: detect them."""

    source: str | int | None = None
    target: str | int | None = None
    text: tuple[str | int, ...] | str | int | None = None  # text columns; more than two are joined by a space
    text_pairs: bool | None = None  # True: read a pair of texts; False: join the columns; None: a pair if there are two
    label: tuple[str | int, ...] | str | int | None = None  # several columns: a column of 0 and 1 for each label
    label_kind: LabelKind | None = None  # the kind of labels; None: detect it
    group: str | int | None = None  # group column; rows with the same group are held out together
    label_names: Mapping[str, str] = field(default_factory=dict)  # maps labels in the files to their new names
    as_trained: Roles = field(default_factory=dict)  # the columns used in training, for roles that are not set


ALL_COLUMNS = Columns()


@dataclass(frozen=True)
class ReadingOptions:
    """Options for reading files as a corpus."""

    columns: Columns = ALL_COLUMNS
    validation: Sequence[str | Path] = ()  # files with the held-out examples
    held_out: float | None = None  # share to hold out if `validation` is empty; None: depends on the corpus size
    seed: int = 0
    encoding: str | None = None  # encoding of text files; None: detect it
    cleaning: Cleaning = STANDARD
    template: ChatTemplate = PLAIN_TEMPLATE  # chat template for conversations
    dictionary: str | None = None  # glossary file (terms and translations), used as additional training data
    hints: float = 0.0  # share of training sentences that get dictionary hints if they have usable terms


DEFAULT_READING = ReadingOptions()


def with_training_columns(reading: ReadingOptions, roles: Roles, label_kind: LabelKind | None = None) -> ReadingOptions:
    """Return the options with this kind of labels and, unless already set, the columns used in training."""
    columns = replace(reading.columns, group=None, label_kind=label_kind)  # held-out files need no group column
    return replace(reading, columns=replace(columns, as_trained=columns.as_trained or roles))


@dataclass(frozen=True)
class CorpusPart(Generic[Example]):
    """Examples that are read from the files again on each iteration."""

    read: Callable[[], Iterator[Example]]
    n_examples: int
    n_characters: int  # number of characters in all documents, labelled texts, or targets of pairs
    n_bytes: int  # number of UTF-8 bytes in all documents, labelled texts, or targets of pairs
    groups: Groups = None  # hash of each example's group
    location: Callable[[int], str] = str  # takes the index of an example; returns its file and row

    def __iter__(self) -> Iterator[Example]:
        return self.read()

    def __len__(self) -> int:
        return self.n_examples


@dataclass(frozen=True)
class Corpus(Generic[Example]):
    """The examples in a set of files, a report on how they were read, and a fingerprint of the files and options."""

    training: CorpusPart[Example]
    held_out: CorpusPart[Example]
    files: tuple[SourceFile, ...]
    fingerprint: str
    report: Report
    label_counts: Mapping[str, int] = field(default_factory=dict)  # number of training texts per label, in label order
    names: tuple[str, ...] = ()  # names of the two columns or languages, if all files agree
    roles: Roles = field(default_factory=dict)  # the columns that were chosen, if all files agree
    label_kind: LabelKind | None = None  # the kind of labels; None unless the corpus is labelled
    text_pairs: bool = False  # whether each example has two texts instead of one
    label_values: tuple[str, ...] = ()  # distinct values of `Labelled.label`; empty if each text has one class
    new_terms: tuple[
        tuple[str, tuple[str, ...]], ...
    ] = ()  # dictionary terms that occur in no training sentence, with their translations
    dictionary_terms: frozenset[str] = frozenset()  # all terms of the dictionary, case-folded

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels, in numeric or alphabetic order; empty unless the corpus is labelled."""
        return tuple(self.label_counts)

    @property
    def n_training(self) -> int:
        """Number of training examples."""
        return self.training.n_examples

    @property
    def training_bytes(self) -> int:
        """Size of the training set in UTF-8 bytes."""
        return self.training.n_bytes

    @property
    def held_out_bytes(self) -> int:
        """Size of the held-out set in UTF-8 bytes."""
        return self.held_out.n_bytes


def only_held_out(
    part: CorpusPart[Example],
    files: tuple[SourceFile, ...],
    unit: str,
    choices: Sequence[str],
    notes: tuple[str, ...] = (),
    dropped: Sequence[Dropped] = (),
) -> Corpus[Example]:
    """Return a corpus for evaluation, without training examples. `choices` describes the columns of each source."""
    nothing: CorpusPart[Example] = CorpusPart(lambda: iter(()), 0, 0, 0)
    n_read, split = len(part) + sum(each.count for each in dropped), f"held out: everything ({count(len(part), unit)})"
    report = Report(unit, files, n_read, len(part), tuple(dropped), split, notes)
    return Corpus(nothing, part, files, fingerprint_of(files, task=unit, columns=choices), report)


def fingerprint_of(files: Sequence[SourceFile], **settings: object) -> str:
    """Return a hash of the content of the files, and of all settings that affect how they are read."""
    content = [(file.sha256, file.encoding) for file in files]
    record = json.dumps([FORMAT_VERSION, content, settings], sort_keys=True, default=str)
    return hashlib.sha256(record.encode()).hexdigest()


@dataclass(frozen=True)
class Broken:
    """An unreadable row or document, with the reason."""

    reason: str


@dataclass(frozen=True)
class Source(Generic[Item]):
    """The documents or rows of one file, folder or table, or of two aligned files."""

    files: tuple[SourceFile, ...]
    read: Callable[[], Iterator[Item | Broken | None]]  # yields None if an item is unreadable for an unknown reason
    location: Callable[[int], str]  # describes the location of an item
    choice: str = ""  # description of the chosen columns; included in the corpus fingerprint
    names: tuple[str, ...] = ()  # names of the two columns or languages
    remark: str = ""  # remark on parts of the files that were not read
    roles: Roles = field(default_factory=dict)  # the chosen columns for each role
    label_kind: LabelKind | None = None  # the kind of labels; None unless the items are labelled texts
    text_pairs: bool = False  # whether each item has two texts instead of one
    groups: Callable[[], Iterator[str]] | None = None  # yields the group of each item; None: items have no groups
    classes: tuple[str, ...] = ()  # the class of each file of a folder; included in the corpus fingerprint
    unused_names: Collection[str] = ()  # keys of `Columns.label_names` that no item has, once all items are read


@dataclass(frozen=True)
class Sources(Generic[Item]):
    """All sources of a corpus, with the number of items in each."""

    each: tuple[Source[Item], ...]
    n_items: tuple[int, ...]

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files of all sources."""
        return tuple(file for source in self.each for file in source.files)

    @property
    def choices(self) -> tuple[str, ...]:
        """A description of the chosen columns for each source, followed by the classes of its files."""
        return tuple("\n".join((source.choice, *source.classes)) for source in self.each)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the two sides; () unless all sources agree."""
        names = {source.names for source in self.each}
        return names.pop() if len(names) == 1 else ()

    @property
    def roles(self) -> Roles:
        """The columns of each role if they are the same in all sources; otherwise empty."""
        first, *others = (source.roles for source in self.each)
        return first if all(each == first for each in others) else {}

    @property
    def label_kind(self) -> LabelKind | None:
        """The kind of labels. Raises PenwrightError if it is not the same in all sources."""
        kinds = {source.label_kind: source.files[0].path for source in self.each}
        if len(kinds) > 1:
            raise PenwrightError(
                f"{' and '.join(kinds.values())} have different kinds of labels. Set the kind for all files: "
                "--set model.problem_type=..."
            )
        return next(iter(kinds))

    @property
    def text_pairs(self) -> bool:
        """Whether each row has two texts instead of one. Raises PenwrightError if only some sources have pairs."""
        path_of = {source.text_pairs: source.files[0].path for source in self.each}
        if len(path_of) > 1:
            raise PenwrightError(
                f"{path_of[True]} has pairs of texts, but {path_of[False]} has single texts. Name the text columns for "
                "all files: --columns"
            )
        return True in path_of

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the columns chosen in each file, and on parts of the files that were not read."""
        chosen = [f"{source.files[0].path}: {source.choice}" for source in self.each if source.choice]
        return (*chosen, *(line for source in self.each for line in source.remark.splitlines()))

    def read(self, chosen: Mask) -> Iterator[Item]:
        """Yield the chosen items in order, without broken ones."""
        every = chain.from_iterable(source.read() for source in self.each)
        return (item for item in compress(every, chosen.tobytes()) if item is not None and not isinstance(item, Broken))

    def location(self, number: int) -> str:
        """Describe the location of an item (counted from 0), for messages."""
        for source, n in zip(self.each, self.n_items, strict=True):
            if number < n:
                return source.location(number)
            number -= n
        raise IndexError(number)


def number_reason(item: object, reasons: dict[str, int]) -> int:
    """Return the error code of an item; 0 if it is readable. If the reason is new, add it to `reasons`."""
    if item is not None and not isinstance(item, Broken):
        return 0
    return reasons.setdefault(UNKNOWN if item is None else item.reason, len(reasons) + 1)
