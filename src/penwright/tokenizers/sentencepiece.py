"""Conversion of SentencePiece models to tokenizer.json, which the tokenizers library reads, and back."""

import base64
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from penwright.tokenizers.checks import MOST_PIECES, Table, parts_of

UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # piece types; GGUF uses the same numbers
PREFIX = {"type": "Prepend", "prepend": "\u2581"}
LONGEST_PIECE = 1_000  # in characters: each piece is split at each of its characters
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
    charsmap: bytes = b""  # compiled normalization rules
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
    if trainer.get(24):
        raise ValueError("it puts spaces at the ends of words (treat_whitespace_as_suffix), which is not supported")
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


def as_tokenizer_json(
    model: SentencePieceModel, prefix: Literal["always", "library", "first"] = "always"
) -> dict[str, Any]:
    """Return a tokenizer.json that encodes texts in the same way as a SentencePiece model.

    If the model adds a space before each text, `prefix` says whether it does so after special tokens, too. A model that
    strips the spaces around texts always does. With "library", it adds one even before a text that begins with a space,
    as the SentencePiece library and llama.cpp do; some classes of transformers do not.
    """
    pieces = model.pieces
    unknown = next((number for number, piece in enumerate(pieces) if piece.type == UNKNOWN), None)
    added = [(number, piece) for number, piece in enumerate(pieces) if piece.type in (UNKNOWN, CONTROL, USER_DEFINED)]
    scheme = "never" if not model.adds_prefix else "first" if prefix == "first" and not model.trims else "always"
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False}
    is_doubled = prefix == "library" and model.adds_prefix and not model.trims
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(number, piece.text, piece.type != USER_DEFINED) for number, piece in added],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model) + ([PREFIX] if is_doubled else [])},
        "pre_tokenizer": metaspace | ({"prepend_scheme": "never"} if is_doubled else {}),
        "post_processor": None,
        "decoder": metaspace,
        "model": _unigram(pieces, unknown) if model.type == UNIGRAM else _bpe(pieces, unknown),
    }


def added_token(number: int, text: str, special: bool = True) -> dict[str, Any]:
    """Return an entry of added_tokens in a tokenizer.json."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **plain, "special": special}


def _normalizers(model: SentencePieceModel) -> list[dict[str, Any]]:
    # The library's Precompiled step leaves out some combining marks, and does not compose Korean or half-width kana.
    compose = {"type": "NFC"}
    rules: list[dict[str, Any]] = [
        compose,
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()},
        compose,
    ]
    # in this order: a pattern of many spaces before \z would take quadratic time
    trims = [_replacement(" {2,}", " "), _replacement(r"\A | \z", "")]
    return (rules if model.charsmap else []) + (trims if model.trims else [])


def _replacement(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _unigram(pieces: Sequence[SentencePiece], unknown: int | None) -> dict[str, Any]:
    vocabulary = [[piece.text, piece.score] for piece in pieces]
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": _falls_back(pieces)}


def _bpe(pieces: Sequence[SentencePiece], unknown: int | None) -> dict[str, Any]:
    """Return a BPE model. Its merges are all pairs of pieces that together form a piece, best score first."""
    if any(len(piece.text) > LONGEST_PIECE for piece in pieces):
        raise ValueError(f"it has a piece of more than {LONGEST_PIECE:,} characters")
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


def from_tokenizer_json(file: Table) -> SentencePieceModel:
    """Return the model of a tokenizer.json that `as_tokenizer_json` made. BPE scores are negated ranks of merges."""
    model, added = file["model"], {token["content"]: token["special"] for token in file["added_tokens"]}
    is_unigram = model["type"] == "Unigram"
    if is_unigram:
        scores, unknown = dict(model["vocab"]), model["unk_id"]
    else:
        products = dict.fromkeys("".join(pair) for pair in model["merges"])
        scores = {piece: -float(rank) for rank, piece in enumerate(products)}
        unknown = model["vocab"].get(model["unk_token"])
    names = list(scores) if is_unigram else sorted(model["vocab"], key=model["vocab"].__getitem__)

    def kind(number: int, name: str) -> int:
        if number == unknown:
            return UNKNOWN
        if name in added:
            return CONTROL if added[name] else USER_DEFINED
        return BYTE if model["byte_fallback"] and re.fullmatch("<0x..>", name) else NORMAL

    rules = {part["type"]: part for part in parts_of(file, "normalizer")}
    return SentencePieceModel(
        [SentencePiece(name, scores.get(name, 0.0), kind(number, name)) for number, name in enumerate(names)],
        UNIGRAM if is_unigram else BPE,
        base64.b64decode(rules["Precompiled"]["precompiled_charsmap"]) if "Precompiled" in rules else b"",
        adds_prefix="Prepend" in rules or file["pre_tokenizer"]["prepend_scheme"] != "never",
        trims="Replace" in rules,
    )


def as_protobuf(model: SentencePieceModel) -> bytes:
    """Serialize the model as a SentencePiece file (sentencepiece_model.proto)."""
    pieces = [
        _field(1, piece.text.encode()) + _key(2, FIXED32) + struct.pack("<f", piece.score) + _field(3, piece.type)
        for piece in model.pieces
    ]
    trainer = _field(3, model.type) + _field(35, int(_falls_back(model.pieces)))
    trainer += b"".join(_field(45, piece.text.encode()) for piece in model.pieces if piece.type == UNKNOWN)
    normalizer = _field(2, model.charsmap) + _field(3, int(model.adds_prefix)) + _field(4, int(model.trims))
    return b"".join(_field(1, piece) for piece in pieces) + _field(2, trainer) + _field(3, normalizer)


def _field(number: int, value: Value) -> bytes:
    """Return a field of a protobuf message: a number, or bytes."""
    if isinstance(value, int):
        return _key(number, VARINT) + _as_varint(value)
    return _key(number, LENGTH) + _as_varint(len(value)) + value


def _key(number: int, wire_type: int) -> bytes:
    return _as_varint(number << 3 | wire_type)


def _as_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
