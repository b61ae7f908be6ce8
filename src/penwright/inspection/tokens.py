"""Tokens in readable form, with their offsets in the text."""

import codecs
from dataclasses import dataclass

import numpy as np

from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import well_formed

_AS_BYTES = "penwright.as_bytes"


@dataclass(frozen=True)
class Token:
    """A token and the characters that it covers in whole or in part: from `start` up to, but not including, `end`."""

    text: str  # readable text; the name of a special token; bytes of an incomplete character as ⟨c3⟩
    id: int
    start: int
    end: int


def tokens_of(tokenizer: Tokenizer, text: str) -> tuple[Token, ...]:
    """Return the tokens of a text, without special ones; several may cover the same character.

    Offsets refer to the text that the tokenizer reads, in which an unpaired surrogate becomes U+FFFD.
    """
    ids, text = tokenizer.encode(text), well_formed(text)
    character_of_byte = np.repeat(np.arange(len(text)), [len(character.encode()) for character in text])
    found: list[Token] = []
    end = 0
    for token, size in zip(ids, tokenizer.sizes(text), strict=True):
        start, end = end, end + size
        at = found[-1].end if found else 0
        place = (int(character_of_byte[start]), int(character_of_byte[end - 1]) + 1) if size else (at, at)
        found.append(Token(readable(tokenizer, token), token, *place))
    return tuple(found)


def special_token(tokenizer: Tokenizer, token: int, place: int) -> Token:
    """Return a token that covers no text."""
    return Token(readable(tokenizer, token), token, place, place)


def readable(tokenizer: Tokenizer, token: int) -> str:
    """Return a token in readable form: its text, the name of a special token, or bytes like ⟨c3⟩."""
    piece = tokenizer.token_bytes(token)
    if not piece or token == tokenizer.unknown_id:
        return tokenizer.token_text(token)
    return piece.decode("utf-8", errors=_AS_BYTES)


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Return the readable form of every token, by id."""
    return [readable(tokenizer, token) for token in range(tokenizer.vocab_size)]


def special_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the tokens that have no text."""
    return [token for token in range(tokenizer.vocab_size) if not tokenizer.token_bytes(token)]


def _as_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(f"⟨{byte:02x}⟩" for byte in error.object[error.start : error.end]), error.end


codecs.register_error(_AS_BYTES, _as_bytes)
