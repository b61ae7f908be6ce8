"""GPT-2's alphabet: the printable characters that stand for bytes in tokenizer.json."""


def _spelling() -> list[str]:
    """Return the character of each byte: itself if printable; the other 68 bytes get the characters from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


SPELLING = _spelling()
_BYTE = {character: byte for byte, character in enumerate(SPELLING)}


def bytes_of(piece: str) -> bytes:
    """Return the bytes that a piece of the vocabulary stands for."""
    return bytes(_BYTE[character] for character in piece)
