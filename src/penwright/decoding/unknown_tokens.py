"""Characters that a tokenizer cannot read, and tokens that a model must not generate."""

from penwright.tokenizers import Tokenizer

CONTROLS = {*map(chr, [*range(0x20), *range(0x7F, 0xA0)]), "\u2028", "\u2029"} - {"\t"}


def never_generated(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the special tokens that stand for no text, except the end token, which may be generated."""
    ids = (tokenizer.pad_id, tokenizer.start_id, tokenizer.unknown_id)
    return tuple(token for token in ids if token is not None)


def controls(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that contain control characters other than the tab. Line breaks would make two lines of one."""
    texts = (tokenizer.token_bytes(token).decode("utf-8", errors="ignore") for token in range(tokenizer.vocab_size))
    return tuple(token for token, text in enumerate(texts) if CONTROLS & set(text))


def unknown_warnings(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return a warning that lists the characters of the text that the model does not know, if there are any."""
    unknown = tokenizer.unknown_characters(text)
    return [f"characters the model does not know: {' '.join(map(_readable, unknown))}"] if unknown else []


def _readable(character: str) -> str:
    return character if character.isprintable() and character != " " else f"U+{ord(character):04X}"
