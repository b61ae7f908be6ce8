"""Whole documents: paragraphs that were wrapped are read as one, split into sentences, and wrapped again."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap

import sentencex

_BULLET = re.compile(r"(?:[-*+•–—>#|]+|\(?(?:\d{1,3}|[A-Za-z])[.)])\s+")
_END = (".", "!", "?", ":", ";", "…", "。", "！", "？", '"', "”", "»", "“")
SHORT, FULL = 40, 60  # characters of a line that may have been wrapped; of one that ends a sentence as well


@dataclass(frozen=True)
class Block:
    """Lines that belong together: a paragraph, an item of a list, a blank line."""

    first: str  # the white space and bullet before the first line
    rest: str  # the white space before the others
    text: str  # without them, on one line
    width: int  # of the longest line; 0 where there is one line only

    def lines(self, text: str) -> str:
        """This text with its bullet and indentation, wrapped as the block was."""
        text = " ".join(text.split()) if self.width else text
        if not self.width:
            return self.first + text
        found = wrap(text, self.width, initial_indent=self.first, subsequent_indent=self.rest, break_long_words=False)
        return "\n".join(found or [self.first])


def blocks(document: str) -> list[Block]:
    """In order; their lines, joined by line breaks, are the document."""
    groups: list[list[str]] = []
    for line in document.split("\n"):
        if groups and _goes_on(groups[-1], line):
            groups[-1].append(line)
        else:
            groups.append([line])
    return [_block(group) for group in groups]


def sentences(text: str, language: str) -> list[str]:
    """Parts that together give the text again, each a sentence with the white space around it."""
    found: list[str] = list(sentencex.segment(language, text))
    return found if "".join(found) == text else [text]


def _goes_on(group: Sequence[str], line: str) -> bool:
    """Whether a line is the next one of a wrapped paragraph: as far in, after a line that was full."""
    before, text = group[-1].rstrip(), line.strip()
    if not text or not before or _BULLET.match(text):
        return False
    columns = {_indent(group[-1])} | ({_hanging(before)} if len(group) == 1 else set())
    return _indent(line) in columns and len(before) >= (FULL if before.endswith(_END) else SHORT)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _hanging(line: str) -> str:
    bullet = _BULLET.match(line.lstrip())
    return " " * (len(_indent(line)) + len(bullet[0] if bullet else ""))


def _block(group: Sequence[str]) -> Block:
    first, indent = group[0], _indent(group[0])
    bullet = _BULLET.match(first.lstrip())
    head = indent + (bullet[0] if bullet else "")
    rest = _indent(group[1]) if len(group) > 1 else ""
    text = " ".join([first[len(head) :].rstrip(), *(line.strip() for line in group[1:])])
    return Block(head, rest, text, max(map(len, group)) if len(group) > 1 else 0)


def translated(document: str, language: str, translate: Callable[[Sequence[str]], Sequence[str]]) -> str:
    """The document, sentence by sentence; `language` is a code such as "en", for what is known about its sentences."""
    parts = blocks(document)
    cut = [sentences(part.text, language) if part.text.strip() else [] for part in parts]
    new = iter(translate([sentence.strip() for group in cut for sentence in group]))
    texts = ["".join(_in_place(sentence, next(new)) for sentence in group) for group in cut]
    return "\n".join(part.lines(text) for part, text in zip(parts, texts, strict=True))


def _in_place(sentence: str, new: str) -> str:
    """With the white space that was around the sentence."""
    core = sentence.strip()
    start = sentence.find(core)
    return sentence[:start] + new + sentence[start + len(core) :]
