"""Document translation: unwrap paragraphs, translate them sentence by sentence, and wrap the result again.

Texts that are too long for a model are split between sentences if possible, otherwise between clauses, words or
characters.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise, repeat
from typing import Literal

import sentencex

from penwright.languages import without_region
from penwright.text import display_width, gaps_between, wrap
from penwright.translation.html_tags import pieces as html_pieces
from penwright.translation.html_tags import texts_of, with_texts

Form = Literal["text", "html", "subtitles"]  # how a document is laid out
Translate = Callable[[Sequence[str]], Sequence[str]]

_BULLET = re.compile(r"(?:[-*+•–—>#|]+|\(?(?:\d{1,3}|[A-Za-z])[.)])\s+")
_SPACES = re.compile(r"[ \t\r\n\v\f]+")  # white space at which lines can break, unlike the no-break space ("5 km")
_END = tuple('.!?:;…"”»“。！？：；」』）؟؛۔।॥׃')
SHORT, FULL = 40, 60  # minimum width in columns of a wrapped line: FULL if it ends a sentence, otherwise SHORT
SUBTITLE = 42  # least width in columns of a subtitle of several lines
_CLAUSE = re.compile(r"[,;:،؛]\s+|[、，；：]\s*|\s+(?=[-–—]\s)")
_WORD = re.compile(r"\s+")
_HARD_BREAK = "  "  # two spaces at the end of a line, a line break in Markdown


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
    lines = document.split("\n")
    is_wrapped = _is_wrapped(lines)
    for line in lines:
        if groups and is_wrapped and _continues(groups[-1], line):
            groups[-1].append(line)
        else:
            groups.append([line])
    return [_block(group) for group in groups]


def _is_wrapped(lines: Sequence[str]) -> bool:
    """Return whether most lines with a line below them end within a sentence. Otherwise, each line is a paragraph."""
    upper = [line.rstrip() for line, below in pairwise(lines) if below.strip() and display_width(line) >= SHORT]
    return 2 * sum(line.endswith(_END) for line in upper) <= len(upper)


def _continues(group: Sequence[str], line: str) -> bool:
    """Return whether a line continues a wrapped paragraph: it has the same indentation and follows a full line.

    A line that ends a sentence is full if the next word would have made it the longest line.
    """
    before, text = group[-1].rstrip(), line.strip()
    if not text or not before or _BULLET.match(text) or group[-1].endswith(_HARD_BREAK):
        return False
    indents = {_indent(group[-1])} | ({_hanging(before)} if len(group) == 1 else set())
    if before.endswith(_END):
        least = max(FULL, max(map(display_width, [*group, line])) - display_width(text.split()[0]))
    else:
        least = SHORT
    return _indent(line) in indents and display_width(before) >= least


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
    lines = [first[len(head) :], *(line.strip() for line in group[1:])]
    if len(group) > 1:
        lines[0] = lines[0].rstrip()
    gaps = gaps_between(lines, [*[" "] * (len(lines) - 1), ""], lines)
    text = "".join(line + gap for line, gap in zip(lines, gaps, strict=True))
    return TextBlock(head, rest, text, max(map(display_width, group)) if len(group) > 1 else 0)


def subtitle_blocks(document: str) -> list[TextBlock]:
    """Split subtitles (SubRip, WebVTT) into blocks: the text below each time, and all other lines, without text."""
    found, shown = list[TextBlock](), list[list[str]]()
    is_shown = False
    for line in [*document.split("\n"), ""]:
        if is_shown and line.strip():
            if not shown or _BULLET.match(line):  # each speaker begins a line with a dash
                shown.append([])
            shown[-1].append(line.strip())
            continue
        found += [replace(_block(lines), width=max(SUBTITLE, *map(display_width, lines))) for lines in shown]
        found.append(TextBlock(line, "", "", 0))
        shown, is_shown = [], "-->" in line
    return found[:-1]  # without the line added above


def translated(document: str, language: str | None, translate: Translate, form: Form = "text") -> str:
    """Translate a document sentence by sentence; `language` is passed to sentences().

    Lines without letters and digits, such as "* * *", stay as they are, and so do tags, and the times of subtitles.
    Windows line ends become newlines.
    """
    document = document.replace("\r\n", "\n")
    if form == "html":
        pieces = html_pieces(document)
        texts = texts_of(pieces)
        return with_texts(pieces, dict(zip(texts, _by_sentences(texts, language, translate), strict=True)))
    parts = subtitle_blocks(document) if form == "subtitles" else blocks(document)
    texts = _by_sentences([part.text for part in parts], language, translate)
    return "\n".join(part.lines(text) for part, text in zip(parts, texts, strict=True))


def _by_sentences(texts: Sequence[str], language: str | None, translate: Translate) -> list[str]:
    cut = [sentences(text, language) if any(map(str.isalnum, text)) else [] for text in texts]
    new = iter(translate([sentence.strip() for group in cut for sentence in group]))
    done = ([next(new) for _ in group] for group in cut)
    return [_reassemble(group, own) if group else text for group, own, text in zip(cut, done, texts, strict=True)]


def _reassemble(sentences: Sequence[str], new: Sequence[str]) -> str:
    """Join the translations with the white space that surrounded the source sentences."""
    first, cores = "".join(sentences[:1]), [sentence.strip() for sentence in sentences]
    gaps = gaps_between(new, [sentence[len(sentence.rstrip()) :] for sentence in sentences], cores)
    return _indent(first) + "".join(text + gap for text, gap in zip(new, gaps, strict=True))


def segments(text: str, fits: Callable[[str], bool], language: str | None) -> list[str]:
    """Split a text into parts that fit the model. The joined parts equal the text.

    White space between two parts belongs to the first part. A single character is a part even if it does not fit.
    """
    if fits(text):
        return [text]
    return [part for sentence in sentences(text, language) for part in _cut(sentence, fits)]


def sentences(text: str, language: str | None) -> list[str]:
    """Split a text into sentences with the white space around them. The joined sentences equal the text.

    `language` is a code like "de-CH" or "deu_Latn". For None and unknown languages, the text is split as if it were
    English.
    """
    sentences: list[str] = list(sentencex.segment(without_region(language or "en"), text))
    return sentences if "".join(sentences) == text else [text]


def keep_spans_whole(spans: Sequence[tuple[int, int]], parts: Sequence[str]) -> list[str]:
    """Split the text again, so that no part ends within a span. A span that was cut becomes a part of its own.

    White space after the span belongs to its part.

    The spans must not overlap.
    """
    cuts = [0, *accumulate(map(len, parts))]
    text = "".join(parts)
    dropped, added = set[int](), set[int]()
    for start, end in spans:
        inside = cuts[bisect_right(cuts, start) : bisect_left(cuts, end)]
        if inside:
            dropped.update(inside)
            space = _WORD.match(text, end)
            added.update((start, space.end() if space else end))
    return [text[start:end] for start, end in pairwise(sorted({*cuts} - dropped | added))]


def _cut(text: str, fits: Callable[[str], bool]) -> list[str]:
    if len(text) < 2 or fits(text):
        return [text]
    middle = _border(text)
    return _cut(text[:middle], fits) + _cut(text[middle:], fits)


def _border(text: str) -> int:
    """Return the split point nearest to the middle: between clauses if possible, else between words or characters."""
    for pattern in (_CLAUSE, _WORD):
        borders = [match.end() for match in pattern.finditer(text) if match.end() < len(text)]
        if borders:
            return min(borders, key=lambda border: abs(border - len(text) // 2))
    return len(text) // 2
