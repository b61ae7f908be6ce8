"""Profiles of the columns of a table: whether their values are text, numbers, links, dates, identifiers, ..."""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from penwright.data.corpus import Broken, Row
from penwright.data.readers.layout import LABEL_NAMES, RATING_NAMES
from penwright.data.readers.records import Records
from penwright.data.readers.tables import Table

SAMPLE = 1000  # approximate minimum number of rows in a sample; smaller tables are read whole
MOST_ROWS = 50_000  # the sample is drawn from this many rows: the first rows may all have the same label
MOST_IF_SORTED = 1_000_000  # ... or from this many, if a column that may hold labels has only one value in those
MOSTLY = 0.9  # a column is not text if at least this share of its values are numbers, links, ...
LABEL_WORDS = {*LABEL_NAMES, *RATING_NAMES}
LONGEST_EXAMPLE = 40  # maximum length of an example value, in characters
LONGEST_LABEL = 50  # maximum length of a label, in characters
MOST_CLASSES = 30  # more distinct numbers than this, some of them fractional, are measurements rather than labels
TEXT, EMPTY, NUMBERS, IDENTIFIERS, LISTS = "text", "no values", "numbers", "identifiers", "lists"
DATES = "dates or times"
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")

_NUMBER = re.compile(
    r"[-+−]?[$€£¥]?(\d{1,3}([ ,.'’]\d{3})+([.,]\d+)?|(\d++([.,]\d++)?|[.,]\d++)\.?(e[-+]?\d+)?) ?[%$€£¥]?", re.I
)
_LINK = re.compile(r"([a-z][a-z0-9+.-]*://|www\.)\S+|([\w-]+\.)+[a-z]{2,}/\S*", re.I)
_EMAIL = re.compile(r"<?[^@\s]+@[^@\s.]+\.[^@\s]+>?")
_FILE = re.compile(r"([A-Za-z]:|\.{1,2})?[/\\]\S+|[^\s]+\.[A-Za-z][A-Za-z0-9]{1,4}")
_HASH = re.compile(r"[0-9a-f]{16,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.I)
_CODE = re.compile(r"(?=[!-/:-~]*+\d)[!-~]+")  # one word of ASCII with a digit in it, such as user54
_LIST = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)
_FRACTION = re.compile(r"[.,]\d*[1-9]")
_DATE_PARTS = re.compile(r"\d+|[^\W\d]+")
_LONG_WORD = re.compile(r"[^\W\d]{3}")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MONTHS_AND_DAYS = _words("""
    jan feb mar apr may jun jul aug sep oct nov dec mär mrz mai okt dez fév avr jui aoû déc ene abr ago dic gen mag giu
    lug set ott fev out mrt mei sty lut kwi maj cze lip sie wrz paź lis gru янв фев мар апр мая май июн июл авг сен окт
    ноя дек mon tue wed thu fri sat sun die mit don fre sam son lun mer jeu ven dim mié jue vie sáb
""")
_DATE_WORDS = _words("""
    t z st nd rd th h am pm utc gmt est edt cst cdt mst mdt pst pdt cet cest bst at de 年 月 日 時 时 분 년 월 일
""")


def _is_date(value: str) -> bool:
    """Return whether a value is a date or a time. Month and day names in many languages are recognized."""
    if len(value) > LONGEST_EXAMPLE or not any(map(str.isdecimal, value)):
        return False
    parts = [part.casefold() for part in _DATE_PARTS.findall(value)]
    words = [part for part in parts if not part.isdecimal()]
    named = [word for word in words if word[:3] in _MONTHS_AND_DAYS and len(word) <= len("września")]
    numbers = len(parts) - len(words)
    return all(word in _DATE_WORDS or word in named for word in words) and (numbers >= 2 or bool(named))


_TESTS: tuple[tuple[str, Callable[[str], object]], ...] = (
    (NUMBERS, _NUMBER.fullmatch),
    ("links", _LINK.fullmatch),
    ("e-mail addresses", _EMAIL.fullmatch),
    (DATES, _is_date),
    (IDENTIFIERS, _HASH.fullmatch),
    ("file names", _FILE.fullmatch),
    (IDENTIFIERS, _CODE.fullmatch),
    (LISTS, _LIST.fullmatch),
)


def kind_of(value: str) -> str:
    """Return the kind of a value: text, or another kind such as numbers, links or dates."""
    for kind, matches in _TESTS:
        if matches(value):
            return kind
    return TEXT if any(map(str.isalpha, value)) else "symbols without letters"


@dataclass(frozen=True)
class Profile:
    """The profile of a column: its name, the kind of most of its values, and their distribution."""

    index: int  # index of the column, from 0
    name: str
    kind: str
    n_rows: int  # number of rows in the sample
    values: frozenset[str]
    lengths: tuple[int, ...]  # lengths of the values in characters; 0 for blank ones
    example: str
    is_boilerplate: bool  # whether all values share a long prefix

    @property
    def key(self) -> str:
        """The name in lower case with underscores, for comparison with common names."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).strip().casefold().replace(" ", "_")

    @property
    def n_characters(self) -> int:
        """Number of characters in the sample."""
        return sum(self.lengths)

    @property
    def is_text(self) -> bool:
        """True if the values are text."""
        return self.kind == TEXT

    @property
    def has_words(self) -> bool:
        """True if the values are text, or dates that all contain a word (`3 March`)."""
        return self.is_text or (self.kind == DATES and all(map(_LONG_WORD.search, self.values)))

    @property
    def are_sentences(self) -> bool:
        """True if most different values are several words that end like a sentence."""
        return 2 * sum(" " in value and value.endswith(SENTENCE_ENDS) for value in self.values) > len(self.values)

    @property
    def is_constant(self) -> bool:
        """True if all values that are not blank are the same."""
        return len(self.values) == 1 and self.n_rows > 1

    @property
    def has_few_values(self) -> bool:
        """True if there are few different values, as in a column of labels."""
        return 2 <= len(self.values) <= max(2, self.n_rows // 5) and len(self.values) < self.n_rows

    @property
    def are_labels(self) -> bool:
        """True if the values could be labels: few different values, all short."""
        return self.has_few_values and max(map(len, self.values)) <= LONGEST_LABEL

    @property
    def is_scale(self) -> bool:
        """True if the values are measurements, such as 0.37, rather than names of classes."""
        return self.kind == NUMBERS and len(self.values) > MOST_CLASSES and any(map(_FRACTION.search, self.values))

    def described(self) -> str:
        """Describe the column, with an example."""
        if self.kind == EMPTY:
            return f"'{self.name}' (no values)"
        if self.is_constant:
            return f"'{self.name}' (always {self.example})"
        return f"'{self.name}' ({self.kind}, such as {self.example})"


def profiles_of(table: Table) -> list[Profile]:
    """Return a profile of each column, from a sample of the rows."""
    rows = sample_rows(table)
    return [_profile(index, name, [row[index].strip() for row in rows]) for index, name in enumerate(table.columns)]


def sample_rows(table: Table) -> list[Row]:
    """Return a random sample of about SAMPLE to 2 * SAMPLE rows, without broken and blank ones.

    If the table is smaller, all its rows are returned. The sample is always the same. Every nth row would not do: if
    the labels alternate, they could all be the same.
    """
    rng, threshold = random.Random(0), 1.0
    kept: list[tuple[float, Row | Broken]] = []
    every = range(len(table.columns))
    rows = table.rows(every, is_sample=True) if isinstance(table, Records) else table.rows(every)
    for number, row in enumerate(islice(rows, MOST_IF_SORTED)):
        if number == MOST_ROWS and not _seems_sorted(table.columns, _complete(kept)):
            break
        if (draw := rng.random()) < threshold:
            kept.append((draw, row))
        if len(kept) == 2 * SAMPLE:
            threshold /= 2
            kept = [(draw, row) for draw, row in kept if draw < threshold]
    return _complete(kept)


def _complete(kept: Sequence[tuple[float, Row | Broken]]) -> list[Row]:
    """Return the rows that are neither broken nor blank."""
    return [row for _, row in kept if not isinstance(row, Broken) and any(row)]


def _seems_sorted(columns: Sequence[str], rows: Sequence[Row]) -> bool:
    """Return whether all rows have the same value in a column that is named like labels, or in one of two columns."""
    of_labels = [len(columns) == 2 or not LABEL_WORDS.isdisjoint(re.split(r"[\W_]+", name.lower())) for name in columns]
    every = zip(of_labels, zip(*rows, strict=True), strict=False)  # there may be no rows
    return any(is_of_labels and len({*cells} - {""}) == 1 for is_of_labels, cells in every)


def _profile(index: int, name: str, cells: Sequence[str]) -> Profile:
    """Return the profile of a column with these cells."""
    filled = [cell for cell in cells if cell]
    values = frozenset(filled)
    kinds = Counter(map(kind_of, filled))
    n_text = kinds.pop(TEXT, 0)
    common = kinds.most_common(1)
    is_text = not common or n_text > (1 - MOSTLY) * len(filled)
    example = next((cell for cell in filled if len(cell) <= LONGEST_EXAMPLE), filled[0] if filled else "")
    return Profile(
        index=index,
        name=name,
        kind=EMPTY if not filled else TEXT if is_text else common[0][0],
        n_rows=len(cells),
        values=values,
        lengths=tuple(map(len, cells)),
        example=shortened(example, LONGEST_EXAMPLE),
        is_boilerplate=_begin_alike(values),
    )


def _begin_alike(values: frozenset[str]) -> bool:
    """Return whether all values share a long prefix that makes up much of their text."""
    if len(values) < 5:
        return False
    first, last = min(values), max(values)  # in alphabetical order; their common prefix is common to all values
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return shared >= 10 and shared >= 0.4 * sum(map(len, values)) / len(values)


def shortened(text: str, longest: int) -> str:
    """Return the text on one line of at most `longest` characters, with control characters escaped."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[: longest + 1])
    return line if len(line) <= longest else f"{line[: longest - 3]}..."
