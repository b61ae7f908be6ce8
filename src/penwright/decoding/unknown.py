"""What a tokenizer cannot read, and what a model must not write."""

from penwright.tokenizers import Tokenizer


def never_written(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The special tokens that stand for no text; only the end token may be written."""
    ids = (tokenizer.pad_id, tokenizer.start_id, tokenizer.unknown_id)
    return tuple(token for token in ids if token is not None)


def line_breaks(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that would make two lines of one."""
    return tuple(t for t in range(tokenizer.vocab_size) if set(tokenizer.token_bytes(t)) & set(b"\n\r"))


def unknown_warnings(tokenizer: Tokenizer, text: str) -> list[str]:
    """A warning that names the characters of the text that the model has never seen; none for most tokenizers."""
    unknown = tokenizer.unknown_characters(text)
    return [f"characters the model does not know: {' '.join(map(_readable, unknown))}"] if unknown else []


def _readable(character: str) -> str:
    return character if character.isprintable() and character != " " else f"U+{ord(character):04X}"
