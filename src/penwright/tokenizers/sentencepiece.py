"""Conversion of SentencePiece models to tokenizer.json, which the tokenizers library reads."""

import base64
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from penwright.tokenizers.checks import MOST_PIECES

UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.Type; GGUF uses the same numbers
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types of protobuf
Value = int | bytes


class SentencePiece(NamedTuple):
    """A piece of the vocabulary; its id is its position in the list."""

    text: str
    score: float
    type: int = NORMAL


class SentencePieceModel(NamedTuple):
    """The parts of a SentencePiece model that determine how it encodes a text."""

    pieces: Sequence[SentencePiece]
    type: int = BPE
    charsmap: bytes = b""  # compiled rules of the normalizer
    adds_prefix: bool = True  # whether a space is added before each text
    trims: bool = True  # whether spaces around a text, and repeated spaces in it, are removed


def parse_sentencepiece(content: bytes) -> SentencePieceModel:
    """Parse a SentencePiece model (sentencepiece_model.proto); raise ValueError if it is damaged or unsupported."""
    pieces, trainer, normalizer = [], dict[int, Value](), dict[int, Value]()
    for number, value in _fields(content):
        if number == 1 and isinstance(value, bytes):
            pieces.append(_piece(dict(_fields(value))))
        elif number == 2 and isinstance(value, bytes):
            trainer = dict(_fields(value))
        elif number == 3 and isinstance(value, bytes):
            normalizer = dict(_fields(value))
    kind, charsmap = trainer.get(3, UNIGRAM), normalizer.get(2, b"")
    if kind not in (UNIGRAM, BPE) or not pieces or len(pieces) > MOST_PIECES or not isinstance(charsmap, bytes):
        raise ValueError(
            f"it is not a SentencePiece model of type unigram or BPE (type {kind!r}, {len(pieces)} pieces)"
        )
    return SentencePieceModel(
        pieces, int(kind), charsmap, adds_prefix=bool(normalizer.get(3, True)), trims=bool(normalizer.get(4, True))
    )


def _fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the fields of a protobuf message by number, without interpreting their types."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value: Value
                value, at = _varint(message, at)
            case 1:
                value, at = message[at : at + 8], at + 8
            case 2:
                length, at = _varint(message, at)
                value, at = message[at : at + length], at + length
            case 5:
                value, at = message[at : at + 4], at + 4
            case other:
                raise ValueError(f"it has a field of wire type {other}")
        if at > len(message):
            raise ValueError("it is truncated")
        yield key >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("it is truncated")
        byte, at = message[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("it has a number of more than 64 bits")


def _piece(fields: dict[int, Value]) -> SentencePiece:
    text, score, kind = fields.get(1, b""), fields.get(2, bytes(4)), fields.get(3, NORMAL)
    if not (isinstance(text, bytes) and isinstance(score, bytes) and len(score) == 4 and isinstance(kind, int)):
        raise ValueError("one of its pieces is damaged")
    return SentencePiece(text.decode(), struct.unpack("<f", score)[0], kind)


def as_tokenizer_json(model: SentencePieceModel) -> dict[str, Any]:
    """Return a tokenizer.json that gives the same results as the model."""
    pieces = model.pieces
    unknown = next((number for number, piece in enumerate(pieces) if piece.type == UNKNOWN), None)
    added = [(number, piece) for number, piece in enumerate(pieces) if piece.type in (UNKNOWN, CONTROL, USER_DEFINED)]
    scheme = "always" if model.adds_prefix else "never"
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(number, piece.text, piece.type != USER_DEFINED) for number, piece in added],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": metaspace,
        "post_processor": None,
        "decoder": metaspace,
        "model": _unigram(pieces, unknown) if model.type == UNIGRAM else _bpe(pieces, unknown),
    }


def added_token(number: int, text: str, special: bool = True) -> dict[str, Any]:
    """Return an entry of added_tokens in a tokenizer.json."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **plain, "special": special}


def _normalizers(model: SentencePieceModel) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = [
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()}
    ]
    trims: list[dict[str, Any]] = [
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    return (rules if model.charsmap else []) + (trims if model.trims else [])


def _unigram(pieces: Sequence[SentencePiece], unknown: int | None) -> dict[str, Any]:
    vocabulary = [[piece.text, piece.score] for piece in pieces]
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": _falls_back(pieces)}


def _bpe(pieces: Sequence[SentencePiece], unknown: int | None) -> dict[str, Any]:
    """Return a BPE model. Its merges are all pairs of pieces that together form a piece, best score first."""
    ids = {piece.text: number for number, piece in enumerate(pieces)}
    whole = {piece.text for piece in pieces if piece.type in (NORMAL, USER_DEFINED, UNUSED)}
    merges = [
        (-piece.score, ids[left], ids[right], left, right)
        for piece in pieces
        if piece.type == NORMAL
        for left, right in ((piece.text[:at], piece.text[at:]) for at in range(1, len(piece.text)))
        if left in whole and right in whole
    ]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None if unknown is None else pieces[unknown].text,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": _falls_back(pieces),
        "vocab": ids,
        "merges": [[left, right] for *_, left, right in sorted(merges)],
    }


def _falls_back(pieces: Sequence[SentencePiece]) -> bool:
    return any(piece.type == BYTE for piece in pieces)
