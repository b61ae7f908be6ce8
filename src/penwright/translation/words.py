"""Word spans of a text, and the tokens that belong to each word.

Chinese, Japanese, Thai, Lao, Khmer and Burmese do not separate words. In these scripts, words end where tokens of the
model end (`pieces_of_words`). Without tokens, each character is a word (`text.py`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from penwright.text import ENDS_ALONE, WORD
from penwright.tokenizers import Tokenizer


class WordSpan(NamedTuple):
    """The character offsets of a word: from `start` up to, but not including, `end`."""

    start: int
    end: int


def word_spans(text: str) -> list[WordSpan]:
    """Return the spans of the words of a text, as `text.words` splits it."""
    return [WordSpan(*match.span()) for match in WORD.finditer(text)]


def complete_last_word(text: str) -> str:
    """Append a space to complete the last word of a text, unless its script has no spaces."""
    return text if not text or text[-1].isspace() or ENDS_ALONE.search(text) else f"{text} "


def pieces_of_words(text: str, tokenizer: Tokenizer) -> list[WordSpan]:
    """Return the spans of the words of a text, joining words that share a token."""
    return joined(text, word_spans(text), tokenizer.sizes(text))


def joined(text: str, spans: Sequence[WordSpan], sizes: Iterable[int]) -> list[WordSpan]:
    """Join adjacent spans unless a token ends between them. `sizes` holds the size of each token in bytes."""
    ends, starts = set(accumulate(sizes)), byte_places(text)
    found: list[WordSpan] = []
    for span in spans:
        touches = bool(found) and found[-1].end == span.start
        if touches and starts[span.start] not in ends:
            found[-1] = WordSpan(found[-1].start, span.end)
        else:
            found.append(span)
    return found


def span_indices(text: str, spans: Sequence[WordSpan], sizes: Iterable[int]) -> list[int]:
    """Return the index of the span in which each token ends (of the preceding span if it ends between spans).

    `sizes` holds the size of each token in bytes.
    """
    places = byte_places(text)
    starts = [places[span.start] for span in spans]
    return [max(0, bisect_left(starts, end) - 1) for end in accumulate(sizes)]


def byte_places(text: str) -> list[int]:
    """Return the UTF-8 byte offsets of each character and of the end."""
    return [*accumulate((len(character.encode()) for character in text), initial=0)]
