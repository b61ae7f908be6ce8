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
    """Spans that touch where no piece of the text ends become one; `sizes` are those of the pieces in bytes."""
    ends = set(accumulate(sizes))
    found: list[WordSpan] = []
    for span in spans:
        touches = bool(found) and found[-1].end == span.start
        if touches and len(text[: span.start].encode()) not in ends:
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
    """For each piece of a text, of so many bytes, the number of the span that it ends in, or that stands before it."""
    starts = [len(text[: span.start].encode()) for span in spans]
    return [max(0, bisect_left(starts, end) - 1) for end in accumulate(sizes)]
