"""Detection of the layout of tables: the dialect of delimited text, header rows, and common column names."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from penwright.data.readers.delimited import Cells, Dialect, QuotedRows, read_cells
from penwright.languages import LANGUAGE_NAMES, split_words

SAMPLE_ROWS = 1000  # number of rows from which a layout is detected
DELIMITERS = ("\t", ";", "|", ",", "^", "~", "::", "||", "|||")
FEW_FIT = 0.3  # minimum share of rows with the most common number of cells, if the first row is a header
TABBED = 0.95  # minimum share of lines with the same number of tabs, if nothing else suggests a table
MANY_FIT = 0.6  # minimum share of rows with the most common number of cells, if there is no header
LONGEST_KNOWN = 30  # maximum length of a common column name, in characters
LONGEST_NAME = 100  # maximum length of any column name, in characters; in surveys, names are often whole questions
MOST_BEFORE = 20  # maximum number of rows before a header, such as titles and comments
ENOUGH = 3  # minimum number of values needed to judge the length of a column's texts
LONG = 20  # minimum length of nearly all values in a text column, in characters
REPEATS = 0.05  # maximum share of rows that may repeat the header
ALIKE = 0.9  # a column is of a kind, such as numbers, if at least this share of its values match that kind
KINDS = {
    "number": re.compile(r"[-+]?[$€£]?\d[\d.,\s]*+%?|[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(e[-+]?\d+)?|nan", re.IGNORECASE),
    "time": re.compile(r"\d{1,4}[-/.:]\d{1,2}([-/.:]\d{1,4})?([T ,]+\d{1,2}:\d{2}.*)?"),
    "link": re.compile(r"(https?://|www\.)\S+", re.IGNORECASE),
}
SOURCE_NAMES = split_words("source src input source_text src_text")
TARGET_NAMES = split_words("target tgt trg output translation target_text tgt_text trg_text reference")
TEXT_NAMES = split_words("""
    text sentence content review document body message comment tweet question poem lyrics verse
    文本 内容 內容 评论 句子 テキスト 本文 텍스트 문장 текст отзыв نص النص texto texte testo tekst metin
""")
LABEL_NAMES = split_words("""
    label class category sentiment intent topic labels class_index coarse_label
    标签 標籤 类别 類別 分类 情感 ラベル カテゴリ 레이블 라벨 метка класс категория تصنيف التصنيف الفئة
    etiqueta etikett etichetta etykieta étiquette etiket kategorie kategoria categoría catégorie
""")
RATING_NAMES = split_words("target y gold polarity spam tag stars rating is_spam note noten bewertung nota puntuación")
DETAIL_NAMES = frozenset(
    split_words("lang language source domain split country licence license subset license_id locale")
)
INSTRUCTION_NAMES = split_words("instruction prompt")
PROMPT_NAMES = (*INSTRUCTION_NAMES, *split_words("question query"))  # column names for prompts
ANSWER_NAMES = split_words("response completion answer output chosen")
INPUT_NAMES = split_words("input context")  # column names for the text that an instruction is about (Alpaca, Dolly)
PAIRS_OF_TEXTS = (
    ("premise", "hypothesis"),
    ("query", "passage"),
    ("question", "passage"),
    ("question", "sentence"),
    ("query", "document"),
    ("question", "answer"),
    ("claim", "evidence"),
    ("context", "response"),
)
OTHER_NAMES = split_words("id idx index title description name date rating stars score pos")
TELLING_NAMES = frozenset((*SOURCE_NAMES, *TARGET_NAMES, *TEXT_NAMES, *LABEL_NAMES))
HEADER_NAMES = TELLING_NAMES | LANGUAGE_NAMES | set(OTHER_NAMES)


@dataclass(frozen=True)
class Fit:
    """The result of splitting some lines with a dialect."""

    dialect: Dialect
    width: int  # number of cells in most rows
    share: float  # share of rows with about `width` cells: at most 10 % more or fewer
    proper: float  # share of rows in which all quote marks are correctly placed
    first: Cells
    n: int  # number of rows

    def rank(self, text: str) -> tuple[float, float, bool, int, float, int]:
        """Return a sort key for comparing the results of several delimiters. The best result sorts last."""
        mark = self.dialect.delimiter
        # Delimiters that are followed by a space may be punctuation.
        n_prose = text.count(f"{mark} ") / text.count(mark)
        known = self.is_named, len(mark), -round(n_prose, 1), -DELIMITERS.index(mark)
        return round(self.share, 3), round(self.proper, 1), *known

    @property
    def is_named(self) -> bool:
        """Whether the first row is a header of common names. Texts without quotes may make the other rows wider."""
        return 1 < len(self.first) <= self.width and is_known_header(self.first)

    def is_prose(self, text: str) -> bool:
        """Return whether the delimiter is punctuation of a single column of text.

        Either the header is one cell, and other rows lack the delimiter too. Or the first row is not a header, spaces
        follow the delimiter, and many rows lack it.
        """
        mark = self.dialect.delimiter
        if len(self.first) == 1 and self.first[0].strip("\ufeff ").lower() in TEXT_NAMES:
            return round(self.share * self.n) < self.n - 1
        is_row = len(self.first) != self.width or any(" " in cell.strip() for cell in self.first)
        is_spaced = text.count(f"{mark} ") >= ALIKE * text.count(mark)
        return mark in ",;" and is_row and is_spaced and not self.is_named and self.share < ALIKE


def find_dialect(lines: Sequence[str], delimiter: str | None = None, *, is_cut: bool = False) -> Dialect:
    """Return the dialect that splits the largest share of these lines into rows of the same width.

    If a `delimiter` is given, only the quoting is detected. `is_cut` means that the file continues after these lines.
    """
    lines = [line for line in lines if line.strip()]
    marks = (
        [delimiter] if delimiter is not None else [mark for mark in DELIMITERS if any(mark in line for line in lines)]
    )
    fits = [fit for mark in marks if (fit := _best_quoting(lines, mark, is_cut))]
    if delimiter is not None:
        return fits[0].dialect if fits else Dialect(delimiter)
    text = "\n".join(lines)
    fits = [fit for fit in fits if fit.width > 1 and fit.share >= (FEW_FIT if fit.is_named else MANY_FIT)]
    fits = [fit for fit in fits if not fit.is_prose(text)]
    best = max(fits, key=lambda fit: fit.rank(text), default=None)
    return best.dialect if best else Dialect("", '"')


def is_tabbed(lines: Sequence[str]) -> bool:
    """Return whether tabs split nearly all lines into the same number of cells.

    At least two columns must be filled in most lines, since running text may begin or end with tabs.
    """
    rows = [line.split("\t") for line in lines if line.strip()]
    widths = Counter(map(len, rows))
    width = max(widths, key=lambda width: widths[width], default=1)
    whole = [row for row in rows if len(row) == width]
    n_filled = sum(2 * sum(bool(row[column].strip()) for row in whole) > len(whole) for column in range(width))
    return n_filled > 1 and len(whole) >= TABBED * len(rows)


def _best_quoting(lines: Sequence[str], delimiter: str, is_cut: bool) -> Fit | None:
    """Split the lines with this delimiter and the best-fitting quote marks; return None if there are no rows.

    Quote marks in TSV files, and single quotes in all files, are text unless clearly written by a CSV writer.
    """
    plain = _fit(lines, Dialect(delimiter), is_cut)
    quoted = [fit for dialect in _quotings(lines, delimiter) if (fit := _fit(lines, dialect, is_cut))]
    best = max(quoted, key=lambda fit: (fit.share, fit.proper, fit.dialect.quote != ""), default=plain)
    if plain is None or best is None or best.dialect.quote == "":
        return best if plain is None else plain
    is_escaped = best.dialect.escape != "" and best.proper == 1
    is_doubtful = (delimiter == "\t" and not is_escaped) or best.dialect.quote == "'"
    if best.share == plain.share and is_doubtful:
        return best if _has_written_quotes(lines, best.dialect) else plain
    return best if best.share >= plain.share else plain


def _quotings(lines: Sequence[str], delimiter: str) -> Iterator[Dialect]:
    text = "\n".join(lines)
    if delimiter == "\t" and ("\\\t" in text or re.search(r"(^|\t)\\N(\t|$)", text, re.MULTILINE)):
        yield Dialect(delimiter, escape="\\")
    quoted = Dialect(delimiter, '"')
    if '"' in text or delimiter != "\t":
        yield quoted
        if '\\"' in text:
            yield replace(quoted, escape="\\")
        if f'{delimiter} "' in text:
            yield replace(quoted, has_space_after_delimiter=True)
    if re.search(rf"(^|{re.escape(delimiter)})'", text, re.MULTILINE):
        yield Dialect(delimiter, "'")


def _fit(lines: Sequence[str], dialect: Dialect, is_cut: bool) -> Fit | None:
    if dialect.quote:
        reader = QuotedRows(lines, dialect, None, is_cut)
        rows = [(cells, reader.is_proper) for cells in reader]
    else:
        rows = [(cells, True) for cells in read_cells(lines, dialect)]
    if not rows:
        return None
    widths = Counter(len(cells) for cells, _ in rows)
    width = max((width for width in widths if width > 1), key=lambda width: (widths[width], width), default=1)
    proper = sum(is_proper for _, is_proper in rows) / len(rows)
    near = sum(n for other, n in widths.items() if abs(other - width) <= width // 10)
    return Fit(dialect, width, near / len(rows), proper, rows[0][0], len(rows))


def _has_written_quotes(lines: Sequence[str], dialect: Dialect) -> bool:
    """Return whether the quote marks are CSV quoting rather than part of the text.

    They must enclose whole cells. In addition, all cells must be quoted, or some quote marks doubled.
    """
    if not dialect.quote:
        return True
    quote = dialect.quote
    rows = [line.split(dialect.delimiter) for line in lines]
    cells = [cell for row in rows for cell in row if cell.startswith(quote)]
    proper = [
        len(cell) > 1 and cell.endswith(quote) and quote not in cell[1:-1].replace(2 * quote, "") for cell in cells
    ]
    if not cells or not all(proper):
        return False
    width = max(map(len, rows))
    everywhere = len(cells) == sum(map(len, rows)) if quote == '"' else len(cells) >= len(rows) - 1 > width
    return everywhere or any(2 * quote in cell[1:-1] for cell in cells)


def find_header(rows: Sequence[Sequence[str]], width: int, names: Sequence[str] = ()) -> int | None:
    """Return the index of the header among the first rows of a table with `width` columns, or None.

    A row that contains one of `names` is a header.
    """
    header = None
    for number, row in enumerate(rows[:MOST_BEFORE]):
        cells = [cell.strip() for cell in row]
        n_filled = sum(map(bool, cells))
        if any(cell in names for cell in cells if cell):
            return number
        if not n_filled or len(cells) < max(2, width - 1) <= width or (n_filled == 1 and width > 2):
            continue  # skip titles and comments
        if header is not None and list(row) == list(rows[header]):
            return header
        if is_header(cells, rows[number + 1 :]):
            header = number  # preliminary: this row may be a title, and the next row the header
            if is_known_header(cells):
                return header
        elif n_filled > 1:
            return header
    return header


def is_known_header(cells: Sequence[str]) -> bool:
    """Return whether all names are common column names, or one name reveals the purpose of its column."""
    names = [cell.strip().strip("\ufeff").lower().replace(" ", "_") for cell in cells]
    names = [name for name in names if name]
    if not names or max(map(len, names)) > LONGEST_KNOWN:
        return False
    unique = len(set(names)) == len(names)
    identifiers = all(re.fullmatch(r"#?\w+", name) for name in names)
    return (unique and HEADER_NAMES.issuperset(names)) or (identifiers and not TELLING_NAMES.isdisjoint(names))


def is_header(cells: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Return whether these cells are column names, rather than values like the ones below them."""
    if is_known_header(cells):
        return True
    if max(map(len, cells)) > LONGEST_NAME:
        return False
    others = [row for row in below if list(row) != list(cells)]
    n_repeats, n_different = len(below) - len(others), len(set(map(tuple, others)))
    # Ignore later copies of the header, unless other rows are often repeated too.
    if n_repeats <= REPEATS * len(below) and 2 * n_different > len(others):
        below = others
    votes = 0
    for column, name in enumerate(cells):
        values = [row[column].strip() for row in below if len(row) > column]
        vote = _vote(name, [value for value in values if value], len(values))
        if vote is None:
            return False
        votes += vote
    return votes > 0


def _vote(name: str, values: Sequence[str], n_rows: int) -> int | None:
    """Return a column's vote on whether `name` is its header. Return None if `name` looks like one of the values."""
    if not values:
        return 0
    kind, different = _kind_of(values), set(values)
    if kind:
        is_index = kind == "number" and len(values) == n_rows
        return None if KINDS[kind].fullmatch(name) else 2 if name or is_index else 0
    if len(different) <= max(1, n_rows // 5):
        if name in different:
            return None
        if _usual_shortest(values) < LONG:
            return 2 if name and n_rows >= 2 * ENOUGH else 0
    return _vote_of_texts(name, values) if name and len(values) >= ENOUGH else 0


def _vote_of_texts(name: str, values: Sequence[str]) -> int:
    """Return a text column's vote on whether `name` is its header: yes if it is much shorter than nearly all texts."""
    shortest = _usual_shortest(values)
    if shortest < LONG:
        return 0
    if len(name) >= shortest:
        return -1
    return 1 if 2 * len(name) <= shortest and not name.endswith((".", "!", "?", "…", "。")) else 0


def _usual_shortest(values: Sequence[str]) -> int:
    """Return the length of the shortest value, ignoring the shortest 5 % of the values."""
    return sorted(map(len, values))[len(values) // 20]


def _kind_of(values: Sequence[str]) -> str | None:
    return next(
        (kind for kind, form in KINDS.items() if sum(map(bool, map(form.fullmatch, values))) >= ALIKE * len(values)),
        None,
    )
