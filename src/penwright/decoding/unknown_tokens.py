"""What a tokenizer cannot read, and what a model must not write."""

from penwright.tokenizers import Tokenizer

CONTROLS = {*map(chr, [*range(0x20), *range(0x7F, 0xA0)]), "\u2028", "\u2029"} - {"\t"}


def never_written(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The special tokens that stand for no text; only the end token may be written."""
    ids = (tokenizer.pad_id, tokenizer.start_id, tokenizer.unknown_id)
    return tuple(token for token in ids if token is not None)


def controls(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens with line breaks, which would make two lines of one, or other control characters but for the tab."""
    texts = (tokenizer.token_bytes(token).decode("utf-8", errors="ignore") for token in range(tokenizer.vocab_size))
    return tuple(token for token, text in enumerate(texts) if CONTROLS & set(text))


def unknown_warnings(tokenizer: Tokenizer, text: str) -> list[str]:
    """A warning that names the characters of the text that the model has never seen; none for most tokenizers."""
    unknown = tokenizer.unknown_characters(text)
    return [f"characters the model does not know: {' '.join(map(_readable, unknown))}"] if unknown else []


def _readable(character: str) -> str:
    return character if character.isprintable() and character != " " else f"U+{ord(character):04X}"
