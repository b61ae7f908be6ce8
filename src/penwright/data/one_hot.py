"""Tables with a column of 0 and 1 for each label, read as tables with one column of labels."""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from penwright.data.corpus import Broken, LabelKind, Row
from penwright.data.files import SourceFile
from penwright.data.guesses import Profiles, likely_labels, named_label
from penwright.data.profiles import Profile, sample_rows
from penwright.data.readers.layout import DETAIL_NAMES, LABEL_NAMES
from penwright.data.readers.tables import Table
from penwright.text import count

FEWEST = 3  # minimum number of columns to read as one label each, unless the settings name them
YES, NO = {"1", "1.0", "true", "yes", "y", "x"}, {"0", "0.0", "false", "no", "n", ""}
NEITHER = Broken("the column of a label holds neither 0 nor 1")


def one_hot_labels(profiles: Profiles, without: Collection[int] = ()) -> list[Profile]:
    """Return the columns of 0 and 1 that hold one label each, or [] if there are few, or if one column is the label.

    A column with only 0 counts if there are others, because a rare label may not occur in the sample.
    """
    left = [column for column in profiles if column.index not in without]
    likely, named = likely_labels(left), named_label(left)
    n_named = sum(named_label([column]) is not None for column in likely)  # such as is_toxic and is_threat
    are_binary = all({value.lower() for value in column.values} <= YES | NO for column in likely)
    is_other = named is not None and (named.key in LABEL_NAMES or named not in likely)
    if not are_binary or is_other or n_named == 1 or len(likely) < (2 if n_named == len(likely) else FEWEST):
        return []
    rare = [column for column in left if column.is_constant and _has_no([column]) and column.key not in DETAIL_NAMES]
    return sorted([*likely, *rare], key=lambda column: column.index)


def _has_no(columns: Collection[Profile]) -> bool:
    """Return whether some cells say no in a word or number, rather than by being blank."""
    return any(value.lower() in NO for column in columns for value in column.values)


def description(columns: Sequence[Profile]) -> str:
    """Describe the choice of columns of 0 and 1."""
    names = ", ".join(column.name for column in columns)
    return f"{count(len(columns), 'column')} of 0 and 1 ({names}), read as one label each"


@dataclass(frozen=True)
class OneHotTable:
    """A table with a column of 0 and 1 for each label, and a further column: the list of the labels of each row."""

    table: Table
    labels: tuple[int, ...]  # indices of the columns of the labels
    blank_is_missing: bool  # whether a row whose cells are all blank has not been labelled, rather than has no label

    @classmethod
    def of(cls, table: Table, labels: tuple[int, ...], profiles: Profiles) -> "OneHotTable":
        """Return the table. If labels that do not apply are only left blank, a blank row has no label."""
        return cls(table, labels, _has_no([profiles[index] for index in labels]))

    @property
    def name(self) -> str:
        """The name of the table in messages."""
        return self.table.name

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files of the table."""
        return self.table.files

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the labels."""
        return tuple(self.table.columns[index] for index in self.labels)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return (*self.table.columns, ", ".join(self.names))

    def rows(self, columns: Sequence[int]) -> Iterator[Row | Broken]:
        """Yield the given columns of every row, or the reason why a row is broken."""
        own = len(self.table.columns)
        others = [column for column in columns if column != own]
        for row in self.table.rows([*others, *self.labels]):
            if isinstance(row, Broken):
                yield row
                continue
            labels, cells = self._labels(row[len(others) :]), iter(row)
            if labels is None:
                yield NEITHER
            else:
                yield tuple(labels if column == own else next(cells) for column in columns)

    def location(self, row: int) -> str:
        """Describe the location of a row, for messages."""
        return self.table.location(row)

    def kind(self) -> LabelKind:
        """Return whether each labelled text has exactly one label, judging by a sample, or any number of labels."""
        rows = (self._labels(tuple(row[index] for index in self.labels)) for row in sample_rows(self.table))
        is_single = all(len(json.loads(labels)) == 1 for labels in rows if labels)
        return LabelKind() if is_single else LabelKind("multi_label_classification")

    def _labels(self, cells: Row) -> str | None:
        """Return the labels of a row as a list in JSON; "" if they are missing, None if a cell is neither 0 nor 1."""
        values = [cell.strip().lower() for cell in cells]
        if not set(values) <= YES | NO:
            return None
        labels = [name for name, value in zip(self.names, values, strict=True) if value in YES]
        return "" if self.blank_is_missing and not any(values) else json.dumps(labels, ensure_ascii=False)
