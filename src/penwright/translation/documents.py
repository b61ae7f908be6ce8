"""Document translation: unwrap paragraphs, translate them sentence by sentence, and wrap the result again."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from penwright.text import display_width, gaps_between, wrap
from penwright.translation.segments import sentences

_BULLET = re.compile(r"(?:[-*+•–—>#|]+|\(?(?:\d{1,3}|[A-Za-z])[.)])\s+")
_SPACES = re.compile(r"[ \t\r\n\v\f]+")  # white space at which lines can break, unlike the no-break space ("5 km")
_END = tuple('.!?:;…"”»“。！？：；」』）؟؛۔।॥׃')
SHORT, FULL = 40, 60  # minimum width in columns of a wrapped line: SHORT within a sentence, FULL at the end of one


@dataclass(frozen=True)
class TextBlock:
    """Lines that belong together: a paragraph, a list item or a blank line."""

    first: str  # indentation and bullet of the first line
    rest: str  # indentation of all lines but the first
    text: str  # the content of the block, unwrapped
    width: int  # width of the longest line, in columns; 0 for a single line

    def lines(self, text: str) -> str:
        """Return `text` with the bullet, indentation and line width of the block."""
        if not self.width:
            return self.first + text
        room = max(1, self.width - max(display_width(self.first), display_width(self.rest)))
        starts = chain([self.first], repeat(self.rest))
        lines = wrap(_SPACES.sub(" ", text).strip(" "), room)
        return "\n".join([start + line for start, line in zip(starts, lines, strict=False)] or [self.first])


def blocks(document: str) -> list[TextBlock]:
    """Split a document into blocks of lines. Joining all lines with line breaks restores the document."""
    groups: list[list[str]] = []
    for line in document.split("\n"):
        if groups and _continues(groups[-1], line):
            groups[-1].append(line)
        else:
            groups.append([line])
    return [_block(group) for group in groups]


def _continues(group: Sequence[str], line: str) -> bool:
    """Return whether a line continues a wrapped paragraph: it has the same indentation and follows a full line."""
    before, text = group[-1].rstrip(), line.strip()
    if not text or not before or _BULLET.match(text):
        return False
    places = {_indent(group[-1])} | ({_hanging(before)} if len(group) == 1 else set())
    return _indent(line) in places and display_width(before) >= (FULL if before.endswith(_END) else SHORT)


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
    return TextBlock(head, rest, text, max(map(display_width, group)) if len(group) > 1 else 0)


def translated(document: str, language: str | None, translate: Callable[[Sequence[str]], Sequence[str]]) -> str:
    """Translate a document sentence by sentence; `language` is passed to sentences()."""
    parts = blocks(document.replace("\r\n", "\n"))
    cut = [sentences(part.text, language) if part.text.strip() else [] for part in parts]
    new = iter(translate([sentence.strip() for group in cut for sentence in group]))
    texts = [_reassemble(group, [next(new) for _ in group]) for group in cut]
    return "\n".join(part.lines(text) for part, text in zip(parts, texts, strict=True))


def _reassemble(sentences: Sequence[str], new: Sequence[str]) -> str:
    """Join the translations with the white space that surrounded the source sentences."""
    first, cores = "".join(sentences[:1]), [sentence.strip() for sentence in sentences]
    gaps = gaps_between(new, [sentence[len(sentence.rstrip()) :] for sentence in sentences], cores)
    return _indent(first) + "".join(text + gap for text, gap in zip(new, gaps, strict=True))
