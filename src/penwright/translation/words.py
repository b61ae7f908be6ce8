"""Where the words of a text stand, and which of its tokens belong to them.

Nobody's dictionary decides where a Chinese, Japanese, Thai, Lao, Khmer or Burmese word ends: a model's own tokens do,
where there are any (`pieces_of_words`); else each character is one (`text.py`).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from penwright.text import ENDS_ALONE, WORD
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import well_formed


class WordSpan(NamedTuple):
    """From a character to before another."""

    start: int
    end: int


def word_spans(text: str) -> list[WordSpan]:
    """Those of data.scripts.words()."""
    return [WordSpan(*match.span()) for match in WORD.finditer(text)]


def whole(text: str) -> str:
    """The text so that its last word cannot go on: with a space, unless the script has none."""
    return text if not text or text[-1].isspace() or ENDS_ALONE.search(text) else f"{text} "


def pieces_of_words(text: str, tokenizer: Tokenizer) -> list[WordSpan]:
    """Words, but what one token holds stays together."""
    return joined(text, word_spans(text), token_sizes(text, tokenizer))


def joined(text: str, spans: Sequence[WordSpan], sizes: Iterable[int]) -> list[WordSpan]:
    """Join spans that touch where no piece of the text ends; `sizes` are those of the pieces in bytes."""
    ends, starts = set(accumulate(sizes)), byte_places(text)
    found: list[WordSpan] = []
    for span in spans:
        touches = bool(found) and found[-1].end == span.start
        if touches and starts[span.start] not in ends:
            found[-1] = WordSpan(found[-1].start, span.end)
        else:
            found.append(span)
    return found


def token_sizes(text: str, tokenizer: Tokenizer) -> list[int]:
    """The bytes of each token of a text."""
    text = well_formed(text)
    if tokenizer.kind == "characters":  # of which some may be unknown
        return [len(character.encode()) for character in text]
    return [len(tokenizer.token_bytes(token)) for token in tokenizer.encode(text)]


def numbers_of(text: str, spans: Sequence[WordSpan], sizes: Iterable[int]) -> list[int]:
    """Return for each piece of a text, of so many bytes, the number of the span that it ends in or comes after."""
    places = byte_places(text)
    starts = [places[span.start] for span in spans]
    return [max(0, bisect_left(starts, end) - 1) for end in accumulate(sizes)]


def byte_places(text: str) -> list[int]:
    """Return how many bytes of UTF-8 stand before each character, and before the end."""
    return [*accumulate((len(character.encode()) for character in text), initial=0)]
