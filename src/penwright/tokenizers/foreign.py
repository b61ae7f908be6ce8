"""Tokenizers of other projects: any tokenizer.json of the tokenizers library, with the conventions of its model."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Encoding
from tokenizers import Tokenizer as LibraryTokenizer

from penwright.errors import PenwrightError
from penwright.tokenizers.checks import FOREIGN, MOST_PIECES, Table, check_foreign_file, is_unmerged, no_panic, parts_of
from penwright.tokenizers.encoders import BYTE_OF, Ragged, ids_type
from penwright.tokenizers.tokenizer import Tokenizer, well_formed

SPACE = "\u2581"  # the character that stands for a space in SentencePiece pieces
# Prefix added to the names of special tokens. Since no text contains it, no text is encoded as a special token.
HIDDEN = "\uffff"
FIRST = '"prepend_scheme": "first"'  # in tokenizer.json: a space is added only before the first text of a prompt
PROBE = "A test: é, ﬁ, Ａ"  # every normalizer changes this text
DAMAGED = "the tokenizers library failed. The file is damaged: download it again"
UNSPLIT = "the tokenizer cannot split this text: a pattern in its tokenizer.json fails or takes too long"
CLOSING = (".", ",", "?", "!")  # no space precedes these WordPiece tokens if tokenizer.json sets `cleanup`
SPECIAL = re.compile(r"__\w+__|>>.+<<|<.+>|madeupword\d+")  # names of tokens that represent no text
TokenId = Annotated[int, Field(ge=0, lt=MOST_PIECES)]
TokenIds = tuple[TokenId, ...]


class Conventions(BaseModel):
    """The conventions of a model: its special tokens, and the tokens that it expects around a text."""

    model_config = ConfigDict(extra="forbid")

    pad: TokenId
    start: TokenId
    end: TokenId
    ends: TokenIds = ()  # additional tokens that end a text, such as an end-of-turn token
    begins: bool = True  # whether a prompt begins with the start token
    pair_ends: Annotated[int, Field(ge=1, le=2)] | None = None  # end tokens between the texts of a pair; None: one
    source_prefix: TokenIds = ()  # tokens before each source text, for example the language token
    target_prefix: TokenIds = ()  # tokens between the start token and each translation
    ids: TokenIds | None = None  # the model's id for each id of the tokenizers library; None: the same ids
    extra: dict[str, TokenId] = {}  # names and ids of tokens that tokenizer.json lacks
    target: dict[str, Any] | None = None  # tokenizer.json for translations, with its own `ids` and `extra`


class ForeignTokenizer(Tokenizer):
    """A tokenizer that another project trained. Unlike Penwright's own, it may normalize texts.

    As in all Penwright tokenizers, special tokens in a text are treated as ordinary text.
    """

    def __init__(self, file: Table) -> None:
        """Read the content of a tokenizer.json; its key "penwright" holds the conventions of the model."""
        self._file = file
        self._plain = {name: part for name, part in file.items() if name != FOREIGN}
        check_foreign_file(self._plain)
        self.conventions = Conventions.model_validate(file[FOREIGN])
        self._library = _library_of(self._plain)
        self.notes, self.joins_marks = (), False
        self.pad_id, self.start_id, self.end_id = (getattr(self.conventions, role) for role in ("pad", "start", "end"))
        self.pair_ends = self.conventions.pair_ends or 1
        self._read_vocabulary()
        self._target = self._target_tokenizer()

    def _read_vocabulary(self) -> None:
        """Store the name and the bytes of each token of the model."""
        extra = self.conventions.extra
        numbers = {
            piece.removeprefix(HIDDEN): n for piece, n in self._library.get_vocab(with_added_tokens=True).items()
        }
        given = self.conventions.ids
        self._ids = np.array(range(1 + max(numbers.values(), default=0)) if given is None else given)
        names = {int(self._ids[number]): piece for piece, number in numbers.items()}
        names |= {token: piece for piece, token in extra.items()}
        self.vocab_size = 1 + max(self.pad_id, self.start_id, self.end_id, *names)
        self.dtype = ids_type(self.vocab_size)
        added = self._library.get_added_tokens_decoder()
        self._specials = {
            int(self._ids[number]): token.content.removeprefix(HIDDEN)
            for number, token in added.items()
            if token.special
        }
        self._specials |= {token: piece for piece, token in extra.items() if SPECIAL.fullmatch(piece)}
        self._user_defined = frozenset(int(self._ids[number]) for number, token in added.items() if not token.special)
        self._pieces = [names.get(token, f"<unused {token}>") for token in range(self.vocab_size)]
        unknown = self._unknown_piece
        self.unknown_id = int(self._ids[numbers[unknown]]) if unknown in numbers else None
        if unknown is not None and self.unknown_id is not None:  # stands for all pieces that are not in the vocabulary
            self._pieces[self.unknown_id] = unknown
        spell, silent = self._speller(), self._specials.keys() | (set(range(self.vocab_size)) - names.keys())
        self._bytes = [
            b"" if token in silent else piece.encode() if token in self._user_defined else spell(piece)
            for token, piece in enumerate(self._pieces)
        ]
        if self.unknown_id is not None:
            self._bytes[self.unknown_id] = "\N{REPLACEMENT CHARACTER}".encode()

    def encode_ragged(self, texts: Sequence[str]) -> Ragged:
        """Encode many texts into one array; return it with the number of tokens of each text."""
        return self._ragged(self._library, texts)

    def encode_after_special(self, text: str) -> list[int]:
        """Encode a text that follows a special token, without the space that only the first text of a prompt gets."""
        ids: list[int] = self._ragged(self._without_first_space, [text]).tokens.tolist()
        return ids

    def _ragged(self, library: LibraryTokenizer, texts: Sequence[str]) -> Ragged:
        with no_panic(PenwrightError(UNSPLIT)):
            encodings = library.encode_batch_fast(list(map(_clean, texts)), add_special_tokens=False)
        lengths = np.array([len(each) for each in encodings], dtype=np.int64)
        numbers = np.fromiter((number for each in encodings for number in each.ids), np.int64, int(lengths.sum()))
        return Ragged(self._ids[numbers].astype(self.dtype), lengths)

    @cached_property
    def _without_first_space(self) -> LibraryTokenizer:
        splitter = json.dumps(self._plain.get("pre_tokenizer"))
        if FIRST not in splitter:
            return self._library
        file = {**self._plain, "pre_tokenizer": json.loads(splitter.replace(FIRST, FIRST.replace("first", "never")))}
        return _library_of(file)

    def sizes(self, text: str) -> list[int]:
        """Return, for each token, the number of UTF-8 bytes of text that it covers."""
        if self.kind == "bpe" and self._plain.get("normalizer") is None:
            return super().sizes(text)
        text, covered, sizes = _clean(text), 0, []
        for _, end in self._encoding(text).offsets:
            sizes.append(len(text[covered:end].encode()))
            covered = max(covered, end)
        return sizes

    def _encoding(self, text: str) -> Encoding:
        with no_panic(PenwrightError(UNSPLIT)):
            return self._library.encode(text, add_special_tokens=False)

    @property
    def begins(self) -> bool:
        """Whether each text begins with the start token."""
        return self.conventions.begins

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end a generated text, the end token first."""
        return (self.end_id, *self.conventions.ends)

    def source(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens of a source text, with the special tokens that the translation model expects around it."""
        return [*self.conventions.source_prefix, *tokens, self.end_id]

    @property
    def target_prefix(self) -> tuple[int, ...]:
        """The tokens between the start token and each translation, for example the language token."""
        return self.conventions.target_prefix

    @property
    def target(self) -> Tokenizer:
        """The tokenizer for translations, which may differ from that for source texts."""
        return self._target or self

    def unknown_characters(self, text: str) -> list[str]:
        """Return the distinct parts of the text that become the unknown token, in order of appearance."""
        return list(dict.fromkeys(self.unknown_parts(text)))

    def unknown_parts(self, text: str) -> list[str]:
        """Return each part of the text that becomes an unknown token: a character, several, or a whole word."""
        encoding = self._encoding(_clean(text))
        spans = zip(self._ids[encoding.ids].tolist() if encoding.ids else [], encoding.offsets, strict=True)
        return [text[slice(*span)] for token, span in spans if token == self.unknown_id]

    @property
    def pieces(self) -> list[str]:
        """The text of each token by id, as written in tokenizer.json."""
        return self._pieces

    @property
    def merges(self) -> list[tuple[str, str]]:
        """The BPE merges in order of priority; empty for other kinds of tokenizers."""
        merges = (self._plain["model"].get("merges") or []) if self._plain["model"]["type"] == "BPE" else []
        return [tuple(each.split(" ", 1) if isinstance(each, str) else each) for each in merges]

    @property
    def user_defined(self) -> frozenset[int]:
        """The ids of added tokens that stand for ordinary text. The tokenizer never splits them."""
        return self._user_defined

    @property
    def plain_file(self) -> Table:
        """The content of tokenizer.json for other programs, without Penwright's additions."""
        return self._plain

    def has(self, token: int) -> bool:
        """Return whether the tokenizer defines a token with this id."""
        return self._pieces[token] != f"<unused {token}>"

    @property
    def is_plain(self) -> bool:
        """Whether other programs can use the tokenizer.json."""
        return self.conventions.ids is None

    @property
    def library(self) -> LibraryTokenizer:
        """A copy of the underlying tokenizer, for other programs."""
        return LibraryTokenizer.from_str(json.dumps(self._plain))

    @property
    def content(self) -> bytes:
        """The content of the file that `save` writes."""
        return json.dumps(self._file, ensure_ascii=False).encode()

    @property
    def plain_content(self) -> bytes:
        """The content of a tokenizer.json that the tokenizers library reads, with the same token ids for each text."""
        return json.dumps(_with_hidden_specials(self._plain), ensure_ascii=False).encode()

    @property
    def _unknown_piece(self) -> str | None:
        model = self._plain["model"]
        if model["type"] == "Unigram":
            return None if model.get("unk_id") is None else model["vocab"][model["unk_id"]][0]
        return model.get("unk_token")

    def _speller(self) -> Callable[[str], bytes]:
        """Set the kind of the tokenizer, and return a function that maps a vocabulary piece to its bytes."""
        model, types = self._plain["model"], {part["type"] for part in parts_of(self._plain, "decoder")}
        splitters = parts_of(self._plain, "pre_tokenizer")
        if model["type"] == "WordPiece":
            self.kind, self.prefix_space = "wordpiece", True
            prefix = model.get("continuing_subword_prefix") or "##"
            closing = CLOSING if any(part.get("cleanup") for part in parts_of(self._plain, "decoder")) else ()

            def spell(piece: str) -> bytes:
                is_joined = piece.startswith(prefix) or piece in closing
                return (piece.removeprefix(prefix) if is_joined else f" {piece}").encode()

            return spell
        if "ByteLevel" in types:
            self.kind, self.prefix_space = "bpe", any(part.get("add_prefix_space") for part in splitters)
            return lambda piece: b"".join(BYTE_OF.get(letter) or letter.encode() for letter in piece)
        if is_unmerged(self._plain):
            self.kind, self.prefix_space = "characters", False
            return str.encode
        self.kind = "sentencepiece"
        normalizers = parts_of(self._plain, "normalizer")
        self.prefix_space = any(part["type"] == "Prepend" for part in normalizers) or any(
            part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never" for part in splitters
        )
        falls_back = bool(model.get("byte_fallback"))
        return lambda piece: _fallback_byte(piece) if falls_back and _is_byte(piece) else _spaced(piece)

    def _target_tokenizer(self) -> "ForeignTokenizer | None":
        if self.conventions.target is None:
            return None
        own = self.conventions.model_dump(exclude={"target", "ids", "extra"}, exclude_none=True)
        return ForeignTokenizer({**self.conventions.target, FOREIGN: own | self.conventions.target[FOREIGN]})


def _library_of(file: Table) -> LibraryTokenizer:
    """Return the tokenizer of a tokenizer.json, for texts without special tokens."""
    with no_panic(ValueError(DAMAGED)):
        library = LibraryTokenizer.from_str(json.dumps(_with_hidden_specials(file)))
        library.encode_special_tokens = True
        with suppress(Exception):  # a tokenizer without unknown token refuses unknown characters
            library.encode(PROBE, add_special_tokens=False)
    return library


def _clean(text: str) -> str:
    return well_formed(text).replace(HIDDEN, "\N{REPLACEMENT CHARACTER}")


def _with_hidden_specials(file: Table) -> Table:
    """Return the tokenizer.json, changed so that no text is encoded as a special token.

    Only unigram models need a change: their special tokens are also pieces of the vocabulary.
    """
    added = file["added_tokens"]
    special = {token["content"] for token in added if token["special"]}
    if file["model"]["type"] != "Unigram":
        return file
    hidden = [{**each, "content": HIDDEN + each["content"]} if each["special"] else each for each in added]
    vocabulary = [[HIDDEN + piece if piece in special else piece, score] for piece, score in file["model"]["vocab"]]
    return {**file, "added_tokens": hidden, "post_processor": None, "model": {**file["model"], "vocab": vocabulary}}


def _is_byte(piece: str) -> bool:
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")


def _fallback_byte(piece: str) -> bytes:
    return bytes([int(piece[3:5], 16)])


def _spaced(piece: str) -> bytes:
    return piece.replace(SPACE, " ").encode()
