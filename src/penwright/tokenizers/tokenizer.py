"""The class for all kinds of tokenizers, saved as a tokenizer.json that other libraries can read."""

import codecs
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from penwright.errors import PenwrightError
from penwright.storage import parse_json, read_bytes, write_bytes_atomically
from penwright.tokenizers.checks import END, FOREIGN, PAD, START, UNKNOWN, check_file, kind_of
from penwright.tokenizers.encoders import (
    Encoder,
    Ragged,
    TokenIds,
    WordEncoder,
    byte_encoder,
    bytes_of,
    character_encoder,
    ids_type,
)

CONTROLS = {*map(chr, [*range(0x20), *range(0x7F, 0xA0)]), "\u2028", "\u2029"} - {"\t"}


class Tokenizer:
    """A tokenizer with decode(encode(text)) == text, except for characters that a character tokenizer does not know.

    Special tokens are at the end of the vocabulary. No text is encoded as a special token, not even "</s>", and special
    tokens decode to nothing. (`transformers` needs `split_special_tokens=True` for this; the file cannot express it.)
    """

    def __init__(self, library: LibraryTokenizer, notes: tuple[str, ...] = ()) -> None:
        """Wrap a tokenizer of the tokenizers library; `notes` lists requirements that training could not meet."""
        library.encode_special_tokens = True
        self.kind: str = kind_of(library)
        # whether a combining mark continues a word instead of ending it
        self.joins_marks = isinstance(library.pre_tokenizer, pre_tokenizers.Sequence)
        # whether a space is added before each text
        self.prefix_space = isinstance(library.normalizer, normalizers.Prepend)
        self.notes, self.vocab_size = notes, library.get_vocab_size(with_added_tokens=True)
        self.dtype = ids_type(self.vocab_size)
        self._library = library
        self._specials = {token_id: token.content for token_id, token in library.get_added_tokens_decoder().items()}
        ids = {name: token_id for token_id, name in self._specials.items()}
        self.pad_id, self.start_id, self.end_id = ids[PAD], ids[START], ids[END]
        self.unknown_id = ids.get(UNKNOWN)
        self.pair_ends = 1  # number of end tokens between the texts of a pair
        pieces = {token_id: piece for piece, token_id in library.get_vocab().items() if token_id not in self._specials}
        self._bytes = self._bytes_of_all(pieces)
        self._encoder = self._make_encoder(pieces)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of the text, without special tokens. A lone surrogate is encoded as U+FFFD."""
        return list(self.encode_ragged([text]).tokens.tolist())

    def encode_after_special(self, text: str) -> list[int]:
        """Encode a text that follows a special token. Some imported tokenizers add no space before such a text."""
        return self.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[TokenIds]:
        """Encode many texts into arrays of `dtype`. This is much faster than encoding them one by one."""
        tokens, lengths = self.encode_ragged(texts)
        return np.split(tokens, np.cumsum(lengths)[:-1]) if texts else []

    def encode_ragged(self, texts: Sequence[str]) -> Ragged:
        """Encode many texts into one array; return it with the number of tokens of each text."""
        texts = texts if _is_well_formed("".join(texts)) else [well_formed(text) for text in texts]
        return self._encoder(list(map(with_space, texts)) if self.prefix_space else texts)

    @property
    def special_ids(self) -> dict[str, int]:
        """The ids of the special tokens, by name."""
        return {name: token_id for token_id, name in self._specials.items()}

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Return the text of these ids; unknown characters and invalid UTF-8 become U+FFFD."""
        text = b"".join(map(self._bytes.__getitem__, ids)).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.prefix_space else text

    def sizes(self, text: str) -> list[int]:
        """Return, for each token, the number of UTF-8 bytes of text that it covers."""
        if self.kind == "characters":  # the bytes of <unk> are not those of the character that it replaces
            return [len(character.encode()) for character in well_formed(text)]
        sizes = [len(self._bytes[token_id]) for token_id in self.encode(text)]
        return [sizes[0] - 1, *sizes[1:]] if self.prefix_space and sizes else sizes

    def prompt(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens of a prompt, preceded by a start token if the model was trained with one.

        No second start token is added to a prompt that begins with one. An empty prompt becomes a single start token.
        """
        is_whole = len(tokens) > 0 and (not self.begins or tokens[0] == self.start_id)
        return list(tokens) if is_whole else [self.start_id, *tokens]

    def source(self, tokens: Sequence[int]) -> list[int]:
        """Return the tokens of a source text, with the special tokens that the translation model expects around it."""
        return [*tokens, self.end_id]

    @property
    def begins(self) -> bool:
        """Whether each text begins with the start token. Some imported models do not use a start token."""
        return True

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens that end a generated text, the end token first. Some imported models have several."""
        return (self.end_id,)

    @property
    def n_before_source(self) -> int:
        """The number of special tokens before a source text, for example 1 for the language token."""
        return len(self.source(())) - 1

    @property
    def target_prefix(self) -> tuple[int, ...]:
        """The tokens between the start token and each translation, for example the language token."""
        return ()

    @property
    def target(self) -> "Tokenizer":
        """The tokenizer for translations. Only imported translators use a different one for source texts."""
        return self

    def token_bytes(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes of a token, which may be part of a character; b"" for special tokens."""
        return self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        r"""Return the token in readable form: special tokens by name, parts of characters like `\xc5`."""
        return self._specials.get(token_id) or self._bytes[token_id].decode("utf-8", errors="backslashreplace")

    def unknown_characters(self, text: str) -> list[str]:
        """Return the distinct characters of the text that become <unk>, in order of appearance."""
        if self.unknown_id is None:
            return []
        distinct = "".join(dict.fromkeys(well_formed(text)))
        return [
            character
            for character, token_id in zip(distinct, self.encode(distinct), strict=True)
            if token_id == self.unknown_id
        ]

    @property
    def pieces(self) -> list[str]:
        """The text of each token by id, as written in tokenizer.json: bytes as printable characters."""
        return [self._library.id_to_token(token_id) or "" for token_id in range(self.vocab_size)]

    @property
    def merges(self) -> list[tuple[str, str]]:
        """The BPE merges in order of priority; empty for other kinds of tokenizers."""
        return [(left, right) for left, right in json.loads(self._library.to_str())["model"].get("merges", [])]

    @property
    def splitter(self) -> Mapping[str, Any] | None:
        """The rule that splits texts into words, as written in tokenizer.json."""
        return json.loads(self._library.to_str())["pre_tokenizer"]

    @property
    def user_defined(self) -> frozenset[int]:
        """The ids of added tokens that stand for ordinary text. Only imported tokenizers have any; see `foreign.py`."""
        return frozenset()

    @property
    def is_plain(self) -> bool:
        """Whether other programs can use the tokenizer.json; False for imported translators with their own ids."""
        return True

    @property
    def library(self) -> LibraryTokenizer:
        """A copy of the underlying tokenizer for other programs. It adds the start token to each text."""
        library, start = LibraryTokenizer.from_str(self._library.to_str()), self.pieces[self.start_id]
        library.post_processor = TemplateProcessing(single=f"{start} $A", special_tokens=[(start, self.start_id)])
        return library

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the file that `save` writes."""
        return hashlib.sha256(self.content).hexdigest()

    def save(self, path: Path) -> None:
        """Save the tokenizer atomically; raise PenwrightError on failure."""
        try:
            write_bytes_atomically(path, self.content)
        except OSError as error:
            raise PenwrightError(f"the tokenizer cannot be saved as {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Load a saved tokenizer; raise PenwrightError if the file is missing, damaged or not Penwright's."""
        try:
            return cls.of_content(read_bytes(path))
        except OSError as error:
            raise PenwrightError(f"the tokenizer {path} cannot be read: {error}") from error
        except Exception as error:  # the tokenizers library raises plain Exception
            raise PenwrightError(
                f"{path} is damaged or was not made by Penwright: {error}. Restore the file that training wrote"
            ) from error

    @classmethod
    def of_content(cls, content: bytes) -> "Tokenizer":
        """Return the tokenizer with this file content. Invalid content may raise any exception."""
        file = parse_json(content)
        if FOREIGN in file:
            from penwright.tokenizers.foreign import ForeignTokenizer  # noqa: PLC0415 - a subclass of this one

            return ForeignTokenizer(file)
        check_file(file)
        return cls(LibraryTokenizer.from_str(content.decode()))

    @property
    def content(self) -> bytes:
        """The content of the file that `save` writes."""
        return self._library.to_str(pretty=True).encode("utf-8")

    @property
    def plain_content(self) -> bytes:
        """The content of a tokenizer.json that the tokenizers library reads, with the same token ids."""
        return self.content

    def _bytes_of_all(self, pieces: Mapping[int, str]) -> list[bytes]:
        table = [b""] * self.vocab_size
        for token_id, piece in pieces.items():
            table[token_id] = piece.encode("utf-8") if self.kind == "characters" else bytes_of(piece)
        if self.unknown_id is not None:
            table[self.unknown_id] = "\N{REPLACEMENT CHARACTER}".encode()
        return table

    def _make_encoder(self, pieces: Mapping[int, str]) -> Encoder:
        if self.unknown_id is not None:
            return character_encoder(pieces, self.unknown_id, self.dtype)
        if self.kind == "bytes":
            return byte_encoder(self.dtype)
        library = LibraryTokenizer.from_str(self._library.to_str())
        library.encode_special_tokens = True
        library.normalizer = None  # the words already include the prefix space
        return WordEncoder(library, self.dtype)


def with_space(text: str) -> str:
    """Put a space before the text, unless it is empty."""
    return f" {text}" if text else text


def well_formed(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, with U+FFFD."""
    if _is_well_formed(text):
        return text
    return text.encode("utf-16", errors="surrogatepass").decode("utf-16", errors="replace")


def _is_well_formed(text: str) -> bool:
    return text.encode("utf-8", "ignore").decode("utf-8") == text


class TextStream:
    """An incremental decoder that returns text when its characters are complete. The first may begin in `before`."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._decoder.decode(b"".join(map(tokenizer.token_bytes, before)))

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; "" while bytes of a character are missing."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """Return U+FFFD if the last character is incomplete, otherwise ""."""
        return self._decoder.decode(b"", final=True)


def never_generated(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the special tokens that must never be generated: padding, start and unknown.

    End tokens are left out, even if they also serve as padding, start or unknown token, as in GPT-2.
    """
    ids = (tokenizer.pad_id, tokenizer.start_id, tokenizer.unknown_id)
    return tuple(token for token in ids if token is not None and token not in tokenizer.end_ids)


def controls(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that contain line breaks or other control characters, except tabs."""
    texts = (tokenizer.token_bytes(token).decode("utf-8", errors="ignore") for token in range(tokenizer.vocab_size))
    return tuple(token for token, text in enumerate(texts) if CONTROLS & set(text))


def unknown_warnings(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return a list with a warning that names the characters unknown to the model; [] if all are known."""
    unknown = [
        "".join(c if c.isprintable() and c != " " else f"U+{ord(c):04X}" for c in part)
        for part in tokenizer.unknown_characters(text)
    ]
    return [f"characters the model does not know: {' '.join(unknown)}"] if unknown else []
