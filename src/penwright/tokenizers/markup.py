"""Texts with special tokens: templates and answers of chats, and pairs of texts with an end token between them."""

from collections.abc import Sequence
from typing import TypeVar

from penwright.text import BETWEEN_TEXTS
from penwright.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")


class Markup(str):
    """Text of a chat template, in which names of special tokens are recognized. Messages are never Markup."""

    __slots__ = ()


class AfterAnswer(Markup):
    """Template text that follows the special token at the end of an answer."""

    __slots__ = ()


class Separator(Markup):
    """The name of a special token between two texts that are encoded independently."""

    __slots__ = ()


class Answer(str):
    """An answer in a conversation. It is encoded as a continuation of the template text before it."""

    before: Markup

    def __new__(cls, text: str, before: str = "") -> "Answer":
        """Create an answer. `before` is the template text that precedes it."""
        answer = super().__new__(cls, text)
        answer.before = Markup(before)
        return answer


def text_in_pieces(text: str, tokenizer: Tokenizer) -> tuple[str, ...]:
    """Split a text into pieces for a token store. Between the texts of a pair, insert the name of the end token."""
    between = next(name for name, number in tokenizer.special_ids.items() if number == tokenizer.end_id)
    between = Separator(between * tokenizer.pair_ends)
    first, *others = text.split(BETWEEN_TEXTS)
    return (first, *(piece for other in others for piece in (between, other)), Markup(""))


def encode_text(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a text, or of a pair of texts, without the start token and the final end token."""
    ends = [tokenizer.end_id] * tokenizer.pair_ends
    first, *others = (tokenizer.encode(each) for each in text.split(BETWEEN_TEXTS))
    return [*first, *(token for tokens in others for token in (*ends, *tokens))]


def cut_pair(tokens: Sequence[T], end: T, room: int) -> list[T]:
    """Truncate a pair to at most `room` tokens. The longer text is shortened first, from its end."""
    tokens = list(tokens)
    if len(tokens) <= room or end not in tokens:
        return tokens[:room]
    border, n_ends = tokens.index(end), tokens.count(end)
    second, left = tokens[border + n_ends :], room - n_ends
    n_first = min(border, max(left // 2, left - len(second)))
    return [*tokens[:n_first], *[end] * n_ends, *second[: left - n_first]]
