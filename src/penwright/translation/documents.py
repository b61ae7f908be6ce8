"""Whole documents: paragraphs that were wrapped are read as one, split into sentences, and wrapped again."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from penwright.text import columns, gaps_between, wrapped
from penwright.translation.segments import sentences

_BULLET = re.compile(r"(?:[-*+•–—>#|]+|\(?(?:\d{1,3}|[A-Za-z])[.)])\s+")
_SPACES = re.compile(r"[ \t\r\n\v\f]+")  # others are meant: that of "5 km" may not be broken
_END = tuple('.!?:;…"”»“。！？：；」』）؟؛۔।॥׃')
SHORT, FULL = 40, 60  # columns of a line that may have been wrapped; of one that ends a sentence as well


@dataclass(frozen=True)
class TextBlock:
    """Lines that belong together: a paragraph, an item of a list, a blank line."""

    first: str  # the white space and bullet before the first line
    rest: str  # the white space before the others
    text: str  # without them, on one line
    width: int  # of the longest line, in columns; 0 where there is one line only

    def lines(self, text: str) -> str:
        """This text with its bullet and indentation, wrapped as the block was."""
        if not self.width:
            return self.first + text
        room = max(1, self.width - max(columns(self.first), columns(self.rest)))
        starts = chain([self.first], repeat(self.rest))
        lines = wrapped(_SPACES.sub(" ", text).strip(" "), room)
        return "\n".join([start + line for start, line in zip(starts, lines, strict=False)] or [self.first])


def blocks(document: str) -> list[TextBlock]:
    """In order; their lines, joined by line breaks, are the document."""
    groups: list[list[str]] = []
    for line in document.split("\n"):
        if groups and _goes_on(groups[-1], line):
            groups[-1].append(line)
        else:
            groups.append([line])
    return [_block(group) for group in groups]


def _goes_on(group: Sequence[str], line: str) -> bool:
    """Whether a line is the next one of a wrapped paragraph: as far in, after a line that was full."""
    before, text = group[-1].rstrip(), line.strip()
    if not text or not before or _BULLET.match(text):
        return False
    places = {_indent(group[-1])} | ({_hanging(before)} if len(group) == 1 else set())
    return _indent(line) in places and columns(before) >= (FULL if before.endswith(_END) else SHORT)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _hanging(line: str) -> str:
    bullet = _BULLET.match(line.lstrip())
    return " " * (len(_indent(line)) + len(bullet[0] if bullet else ""))


def _block(group: Sequence[str]) -> TextBlock:
    first, indent = group[0], _indent(group[0])
    bullet = _BULLET.match(first.lstrip())
    head = indent + (bullet[0] if bullet else "")
    rest = _indent(group[1]) if len(group) > 1 else ""
    lines = [first[len(head) :].rstrip(), *(line.strip() for line in group[1:])]
    gaps = gaps_between(lines, [*[" "] * (len(lines) - 1), ""], lines)
    text = "".join(line + gap for line, gap in zip(lines, gaps, strict=True))
    return TextBlock(head, rest, text, max(map(columns, group)) if len(group) > 1 else 0)


def translated(document: str, language: str | None, translate: Callable[[Sequence[str]], Sequence[str]]) -> str:
    """The document, sentence by sentence; `language` as in sentences()."""
    parts = blocks(document.replace("\r\n", "\n"))
    cut = [sentences(part.text, language) if part.text.strip() else [] for part in parts]
    new = iter(translate([sentence.strip() for group in cut for sentence in group]))
    texts = [_put_together(group, [next(new) for _ in group]) for group in cut]
    return "\n".join(part.lines(text) for part, text in zip(parts, texts, strict=True))


def _put_together(sentences: Sequence[str], new: Sequence[str]) -> str:
    """The translations, with the white space that was around the sentences."""
    first, cores = "".join(sentences[:1]), [sentence.strip() for sentence in sentences]
    gaps = gaps_between(new, [sentence[len(sentence.rstrip()) :] for sentence in sentences], cores)
    return _indent(first) + "".join(text + gap for text, gap in zip(new, gaps, strict=True))
