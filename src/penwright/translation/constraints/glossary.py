"""Glossaries: terms and their required translations, and hints, which put translations into the source.

A glossary file has one term per line, in columns separated by tabs:

    dog	Hund|Hunde|Hunden
    US	Vereinigte Staaten	exact

The columns are the term, its translation (alternative forms separated by |), and optionally a case rule. With `any`,
the default, the term matches regardless of case. Its translation is written as in the file, but capitalized at the
beginning of a text. With `exact`, the term matches only as written in the file. With `follow`, the translation has
the case of the term: capitalized or ALL CAPS. Blank lines, lines that begin with #, and a header such as "en	de" are
ignored.

A source with hints has each translation in place of its term, as in "a ⟦ Hund⟧ barks".
"""

import re
from bisect import bisect, bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from penwright.errors import PenwrightError, near_miss
from penwright.languages import languages_between
from penwright.text import WITHOUT_SPACES, is_mark

Case = Literal["any", "exact", "follow"]
Place = tuple[int, int, *tuple[Any, ...]]  # character offsets, end excluded, and whatever else belongs to the place
_LETTERS = rf"(?:(?!{WITHOUT_SPACES.pattern})\w)+"  # letters of scripts that separate words by spaces
_WORD = re.compile(rf"{_LETTERS}(?:-{_LETTERS})*|[^\s]")
OPEN, CLOSE = "\u27e6", "\u27e7"
LONGEST_ENDING = 4  # maximum number of letters that an inflected form has after its stem


class Entry(NamedTuple):
    """A line of a glossary."""

    source: str
    targets: tuple[str, ...]
    case: Case = "any"

    def required_forms(self, matched: str) -> tuple[str, ...]:
        """Return the required forms of the translation. With `follow`, they have the case of the term in the text."""
        if self.case != "follow":
            return self.targets
        if matched.isupper() and len(matched) > 1:
            return tuple(target.upper() for target in self.targets)
        return tuple(map(capitalize, self.targets)) if matched[:1].isupper() else self.targets


class TermOccurrence(NamedTuple):
    """An occurrence of a term in a text."""

    start: int
    end: int
    entry: Entry


@dataclass(frozen=True, eq=False)
class Glossary:
    """A set of terms and their required translations."""

    entries: tuple[Entry, ...] = ()

    @classmethod
    def read(cls, path: Path) -> "Glossary":
        """Read a glossary file.

        Raises PenwrightError, with the line number, for an invalid line, a line that is not UTF-8, or a term with
        two different translations or case rules.
        """
        try:
            content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
        except FileNotFoundError:
            raise PenwrightError(f"there is no glossary {path}{near_miss(path)}") from None
        except OSError as error:
            raise PenwrightError(f"the glossary {path} cannot be read: {error.strerror}") from None
        return cls.parse(content, str(path))

    @classmethod
    def parse(cls, content: bytes, name: str) -> "Glossary":
        """Parse the content of a glossary; `name` identifies it in errors. Raises PenwrightError as `read` does."""
        entries: dict[tuple[str, bool], tuple[int, Entry]] = {}
        for index, (number, line) in enumerate(_lines(content, name)):
            entry = _entry(line, f"{name} line {number}")
            if index == 0 and are_column_names(entry.source, "|".join(entry.targets)):
                continue
            key = (entry.source, True) if entry.case == "exact" else (entry.source.casefold(), False)
            before, same = entries.setdefault(key, (number, entry))
            if (same.targets, same.case) != (entry.targets, entry.case):
                raise PenwrightError(
                    f'{name} line {number}: "{entry.source}" is already in line {before} with a different translation '
                    "or case rule. Keep one of the lines, or join the forms with |"
                )
        return cls(tuple(entry for _, entry in entries.values()))

    def find(self, text: str, spans: Sequence[Place] = (), taken: Sequence[Place] = ()) -> list[TermOccurrence]:
        """Return the terms that occur in the text as whole words, in order. If two overlap, the longer one is kept.

        A term is left out if it overlaps one of `taken`, or one of `spans` that is not a shorter part of it. Both are
        in order, without overlaps.
        """
        words = list(_WORD.finditer(text))
        folded = [word[0].casefold() for word in words]
        occurrences = [
            TermOccurrence(words[first].start(), words[first + length - 1].end(), entry)
            for first, word in enumerate(folded)
            for length, entries in self._by_first_word.get(word, {}).items()
            for entry in entries.get(tuple(folded[first : first + length]), ())
        ]
        matching = [p for p in occurrences if p.entry.case != "exact" or text[p.start : p.end] == p.entry.source]
        matching = [p for p in matching if not is_mark(text[p.end : p.end + 1])]  # marks continue a word
        return without_overlaps(p for p in matching if not overlapping(taken, p) and _contains(p, spans))

    @cached_property
    def _by_first_word(self) -> dict[str, dict[int, dict[tuple[str, ...], list[Entry]]]]:
        """The entries as nested dictionaries: by first word of the term, then by number of words, then by all words."""
        index: dict[str, dict[int, dict[tuple[str, ...], list[Entry]]]] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.case != "exact"):
            words = tuple(_WORD.findall(entry.source.casefold()))
            index.setdefault(words[0], {}).setdefault(len(words), {}).setdefault(words, []).append(entry)
        return index


def capitalize(text: str) -> str:
    """Return the text with its first character in upper case."""
    return text[:1].upper() + text[1:]


def without_overlaps(occurrences: Iterable[TermOccurrence]) -> list[TermOccurrence]:
    """Keep the longer of two occurrences that overlap, or the first if both are equally long."""
    kept: list[TermOccurrence] = []
    for occurrence in sorted(occurrences, key=lambda occurrence: occurrence.start - occurrence.end):
        at = bisect(kept, occurrence.start, key=lambda other: other.start)
        if all(
            occurrence.end <= other.start or other.end <= occurrence.start for other in kept[max(0, at - 1) : at + 1]
        ):
            kept.insert(at, occurrence)
    return kept


def overlapping(ranges: Sequence[Place], place: Place) -> Sequence[Place]:
    """Return the ranges that overlap a place. The ranges are in order, without overlaps."""
    first = bisect(ranges, place[0], key=lambda each: each[1])
    return ranges[first : bisect_left(ranges, place[1], key=lambda each: each[0])]


def _contains(term: TermOccurrence, spans: Sequence[Place]) -> bool:
    """Return whether all spans that overlap the term are shorter parts of it."""
    inside = overlapping(spans, term)
    return all(term.start <= start and end <= term.end and (start, end) != term[:2] for start, end, *_ in inside)


def _lines(content: bytes, name: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(content.split(b"\n"), start=1):
        try:
            text = line.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            raise PenwrightError(f"{name} line {number} is not UTF-8: save the glossary as UTF-8") from None
        if text.strip() and not text.startswith("#"):
            yield number, text


def _entry(line: str, location: str) -> Entry:
    columns = [unquoted(column) for column in line.split("\t")]
    if len(columns) == 1:
        raise PenwrightError(
            f'{location} has no tab between the term and its translation; add one: "{line.strip()[:60]}"'
        )
    source, targets = columns[0], tuple(form.strip() for form in columns[1].split("|"))
    if not _WORD.search(source) or not all(targets):
        side = "term" if not _WORD.search(source) else "translation"
        raise PenwrightError(f'{location} has an empty {side}: "{line.strip()[:60]}"')
    cases: dict[str, Case] = {"": "any", **{case: case for case in get_args(Case)}}
    case = cases.get(" ".join(columns[2:]).strip())
    if case is None:
        raise PenwrightError(f"{location}: the third column must be a case rule, one of {', '.join(get_args(Case))}")
    return Entry(source, targets, case)


def unquoted(cell: str) -> str:
    """Return a cell without white space around it, and without the quote marks of a CSV writer."""
    cell = cell.strip()
    is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return cell[1:-1].replace('""', '"').strip() if is_quoted else cell


def are_column_names(first: str, second: str) -> bool:
    """Return whether two cells name the sides of a dictionary, or two languages."""
    from penwright.data.readers.layout import SOURCE_NAMES, TARGET_NAMES  # noqa: PLC0415 - loading a translator needs no data

    cells, languages = (first.casefold(), second.casefold()), languages_between((first, second))
    roles = {cells, cells[::-1]} & {*product((*SOURCE_NAMES, "term", "word"), TARGET_NAMES)}
    return bool(roles) or (languages is not None and languages.source != languages.target)


def with_hints(text: str, hints: Iterable[tuple[int, int, str]]) -> str:
    """Replace terms by hints. A hint consists of the range of a term in characters, and its translation.

    A space before the translation lets the tokenizer split it as it does within a sentence.
    """
    for start, end, target in sorted(hints, reverse=True):
        if words := re.sub(f"[{OPEN}{CLOSE}]", "", target).strip():
            before = text[:start].rstrip(" ")
            text = f"{before}{' ' if before else ''}{OPEN} {words}{CLOSE}{text[end:]}"
    return text


def inflected(form: str) -> str:
    """Return a regular expression for the inflected forms of a word: its stem, followed by a few letters."""
    stem = form[: max(4, len(form) - 2)]
    return rf"(?<!\w){re.escape(stem)}\w{{0,{LONGEST_ENDING}}}(?!\w)"
