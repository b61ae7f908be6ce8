"""The rules that drop items from a corpus, and the report on the items that were read, dropped and held out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penwright.data.files import SourceFile
from penwright.data.paths import STANDARD_INPUT
from penwright.data.readers.formats import FORMATS, PLAIN
from penwright.data.splits import Hashes, Mask
from penwright.text import count

Rule = tuple[str, Callable[[Mask], Mask]]  # a reason, and a function that selects which kept items to drop
SHOWN = 8  # maximum number of files to describe individually
NAMES = {
    "parquet": "Parquet",
    "utf-8": "UTF-8",
    "ascii": "ASCII",
    "koi8_r": "KOI8-R",
    "cp874": "Windows-874",
    **{f"cp{page}": f"Windows-{page}" for page in range(1250, 1257)},
    "cp932": "Shift-JIS",
    "euc_jp": "EUC-JP",
    "gb18030": "GB18030",
    "big5": "Big5",
    "big5hkscs": "Big5-HKSCS",
    "cp949": "EUC-KR",
}


@dataclass(frozen=True)
class Dropped:
    """The number of examples dropped for one reason."""

    reason: str
    count: int
    first: str = ""  # location of the first dropped example


@dataclass(frozen=True)
class Cleaning:
    """Rules for dropping examples. Only `deduplicate` applies to documents."""

    max_characters: int = (
        5000  # maximum number of characters in a side of an example: a source, a labelled text, an answer, ...
    )
    max_ratio: float | None = 9.0  # maximum length ratio of source and target, if one exceeds 30 characters
    deduplicate: bool = True


STANDARD = Cleaning()
LONGEST_TEXT = 1_000_000  # default of `max_characters` for labelled texts and conversations
KEEP_ALL = Cleaning(max_characters=10**12, max_ratio=None, deduplicate=False)  # no limits: keep all usable examples


def broken_rules(numbers: NDArray[np.integer[Any]], reasons: Mapping[str, int]) -> list[Rule]:
    """Return one rule for each reason why items can be broken; the rule drops these items."""

    def rule(number: int) -> Callable[[Mask], Mask]:
        return lambda _: numbers == number

    return [(reason, rule(number)) for reason, number in reasons.items()]


def leave_out(rules: Sequence[Rule], keep: Mask, location: Callable[[int], str]) -> list[Dropped]:
    """Apply the rules in order, removing items from `keep`. Return the number of items that each rule drops."""
    dropped = []
    for reason, rule in rules:
        fails = rule(keep) & keep
        if fails.any():
            dropped.append(Dropped(reason, int(fails.sum()), location(int(np.argmax(fails)))))
            keep &= ~fails
    return dropped


def duplicates(hashes: Hashes, keep: Mask) -> Mask:
    """Return a mask of the kept items whose hash equals that of an earlier kept item."""
    kept = np.flatnonzero(keep)
    repeated = keep.copy()
    repeated[kept[np.unique(hashes[kept], return_index=True)[1]]] = False
    return repeated


@dataclass(frozen=True)
class Report:
    """The result of reading the files of a corpus."""

    unit: str  # noun for an example, such as "pair"
    files: tuple[SourceFile, ...]
    n_read: int
    n_kept: int
    dropped: tuple[Dropped, ...]
    split: str  # description of the held-out set, and how it was chosen
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        shown = [describe(file) for file in self.files[:SHOWN]]
        if len(self.files) > SHOWN:
            rest = self.files[SHOWN:]
            shown.append(f"and {count(len(rest), 'more file')}, {sum(file.n_bytes for file in rest):,} bytes")
            shown += [describe(file) for file in rest if oddities(file)][:SHOWN]
        return [*shown, self._kept(), *self.notes, self.split]

    @property
    def losses(self) -> str:
        """The number of examples that were kept, and why others were dropped; "" if none were dropped."""
        return self._kept() if self.dropped else ""

    def _kept(self) -> str:
        kept = f"{self.n_kept:,} of {count(self.n_read, self.unit)} kept"
        return "; ".join([kept, *(f"{each.count:,} dropped: {each.reason}{_place(each)}" for each in self.dropped)])

    def as_dict(self) -> dict[str, object]:
        """Return the report as a dictionary, ready for JSON."""
        record = asdict(self) | {"text": self.lines()}
        for file in record["files"]:
            del file["copy"]  # temporary copies are deleted when the process ends
        return record


def describe(file: SourceFile) -> str:
    """Describe a file in one line: its size, encoding and corrections."""
    encoding = " and ".join(NAMES.get(each, each) for each in file.encoding.split("|"))
    encoding += " (detected for each line)" if "|" in file.encoding else ""
    facts = [f"{file.n_bytes:,} bytes"]
    if file.format:
        facts.append(FORMATS[file.format].description)
    if file.remark:
        facts.append(file.remark)
    if file.encoding and FORMATS.get(file.format, PLAIN).is_decoded:
        facts.append(f"{encoding} guessed from the letters (if wrong, set the encoding)" if file.guessed else encoding)
    if file.n_lines:
        facts.append(count(file.n_lines, "line"))
    name = "standard input" if file.path == STANDARD_INPUT else file.path
    return f"{name}: {', '.join([*facts, *oddities(file)])}"


def oddities(file: SourceFile) -> list[str]:
    """Return the corrections made while reading a file."""
    facts = []
    if file.n_replaced:
        location = "" if file.first_replaced is None else f", the first at byte {file.first_replaced:,}"
        facts.append(f"{count(file.n_replaced, 'invalid byte sequence')} replaced by U+FFFD{location}")
    if file.n_nul:
        facts.append(f"{count(file.n_nul, 'NUL character')} removed")
    if file.n_crlf and file.n_crlf < file.n_lines - 1:  # no remark if all lines end in CRLF, as on Windows
        facts.append(f"{count(file.n_crlf, 'line')} ended in CRLF")
    if file.n_cr:
        facts.append(f"{count(file.n_cr, 'line')} ended in CR")
    return facts


def reasons(dropped: Sequence[Dropped]) -> str:
    """Return the reasons why no examples are left, for an error message."""
    return "; ".join(f"{each.count:,} dropped: {each.reason}{_place(each)}" for each in dropped) or "no rows were read"


def _place(dropped: Dropped) -> str:
    return f" (first: {dropped.first})" if dropped.first else ""
