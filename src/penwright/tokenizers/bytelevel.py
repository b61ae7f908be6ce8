"""How bytes are spelled as printable characters in tokenizer.json (the alphabet of GPT-2)."""


def _spelling() -> list[str]:
    """Printable bytes stand for themselves, the other 68 for the characters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


SPELLING = _spelling()
_BYTE = {character: byte for byte, character in enumerate(SPELLING)}


def bytes_of(piece: str) -> bytes:
    return bytes(_BYTE[character] for character in piece)
