"""The kinds of tokenizers, and checks of an untrusted tokenizer.json, which must not exhaust memory or time."""

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any, Literal
from unicodedata import normalize

from tokenizers import Tokenizer as LibraryTokenizer

Kind = Literal["characters", "bytes", "bpe", "unigram"]
Table = Mapping[str, Any]
PAD, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
SPECIALS = [PAD, START, END]  # <unk> exists only in character vocabularies, where it is an ordinary token
# GPT-2's pattern, except that a combining mark (an accent, or a vowel sign of Hebrew, Arabic, Hindi or Thai) does not
# end a word.
MARKED_WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
MOST_PIECES = 1 << 22  # maximum size of a vocabulary, far above that of any real one
FOREIGN = "penwright"  # key in the tokenizer.json of another project; its value tells Penwright how to use the file
LONGEST_PATTERN = 2_000  # maximum length of a regular expression, in characters
MOST_GROWTH = 100  # maximum growth of a text by normalizer and pre-tokenizer; also the maximum length of a replacement
GROWTH = {"BertNormalizer": 3, "ByteLevel": 4, "Metaspace": 2}  # the most characters that these steps make of one
PLAIN = ("truncation", "padding")  # entries of a tokenizer.json that Penwright never writes


def kind_of(library: LibraryTokenizer) -> Kind:
    """Return the kind of a tokenizer, inferred from its components; raise ValueError for an unknown combination."""
    parts = json.loads(library.to_str())
    splitter = parts["pre_tokenizer"]
    match parts["model"]["type"], splitter and (splitter["type"], splitter.get("use_regex")):
        case "BPE", None:
            return "characters"
        case "BPE", ("ByteLevel", False):
            return "bytes"
        case "BPE", ("ByteLevel", True) | ("Sequence", None):
            return "bpe"
        case "Unigram", ("ByteLevel", True) | ("Sequence", None):
            return "unigram"
        case other:
            raise ValueError(f"its combination of components is not supported: {other}")


def check_file(file: Table) -> None:
    """Raise ValueError if the file has entries that Penwright never writes, or gaps in its token ids."""
    for part in PLAIN:
        if file.get(part) is not None:
            raise ValueError(f"it defines {part}")
    if (file.get("post_processor") or {}).get("type", "TemplateProcessing") != "TemplateProcessing":
        raise ValueError("it has a post_processor that Penwright does not use")
    if file.get("normalizer") not in (None, {"type": "Prepend", "prepend": " "}):
        raise ValueError(f"it has a normalizer that Penwright does not use: {file['normalizer']!r}")
    _require_known_pattern(file.get("pre_tokenizer"))
    ids = _ids_of_pieces(file["model"]["vocab"])
    for token in file["added_tokens"]:
        ids.add(token["id"])
    if len(ids) > MOST_PIECES or not all(type(token_id) is int for token_id in ids) or ids != set(range(len(ids))):
        raise ValueError("its token ids are not consecutive numbers from 0")
    if len(file["model"].get("merges") or ()) > MOST_PIECES:
        raise ValueError("it has too many merges")


def _ids_of_pieces(vocabulary: object) -> set[Any]:
    """Return the ids of a BPE or unigram vocabulary; raise ValueError if two ids are equal."""
    if isinstance(vocabulary, list):
        return set(range(len(vocabulary)))
    if not isinstance(vocabulary, dict):
        raise ValueError("it has no vocabulary")
    ids = set(vocabulary.values())
    if len(ids) != len(vocabulary):
        raise ValueError("two of its tokens have the same id")
    return ids


def _require_known_pattern(splitter: object) -> None:
    """Raise ValueError for a pattern that is not Penwright's: an untrusted pattern may take forever to match."""
    parts = splitter.get("pretokenizers", []) if isinstance(splitter, dict) else []
    for part in parts:
        if part["type"] == "Split" and part["pattern"] != {"Regex": MARKED_WORDS}:
            raise ValueError("it splits words with a pattern that is not Penwright's")


def check_foreign_file(file: Table) -> None:
    """Raise ValueError if a tokenizer from another project has a model or a decoder that Penwright does not support."""
    for part in PLAIN:
        if file.get(part) is not None:
            raise ValueError(f"it defines {part}")
    model = _model_of(file)
    if model["type"] not in ("BPE", "Unigram", "WordPiece"):
        raise ValueError(f"its model is of type {model['type']}. Penwright supports BPE, Unigram and WordPiece")
    if len(model["vocab"]) + len(file["added_tokens"]) > MOST_PIECES or len(model.get("merges") or ()) > MOST_PIECES:
        raise ValueError("it has too many tokens or merges")
    ids = {*range(len(model["vocab"]))} if model["type"] == "Unigram" else set(model["vocab"].values())
    ids |= {token["id"] for token in file["added_tokens"]}
    if not all(type(token) is int and 0 <= token < MOST_PIECES for token in ids):
        raise ValueError(f"its token ids are not between 0 and {MOST_PIECES:,}")
    known = {"ByteLevel", "WordPiece", "Metaspace"}
    decoders = parts_of(file, "decoder")
    is_read = model["type"] == "WordPiece" or is_unmerged(file)
    if not is_read and not known & {part["type"] for part in decoders} and not _spaces(decoders):
        raise ValueError(
            f"its decoder is {file.get('decoder')!r}. Penwright supports ByteLevel, WordPiece and Metaspace"
        )
    _check_steps(file)


def _model_of(file: Table) -> Table:
    """Return the model in the file; raise ValueError if one of its parts is missing."""
    model: object = file.get("model")
    if not isinstance(model, Mapping) or not {"type", "vocab"} <= model.keys():
        raise ValueError("it has no model with a type and a vocab")
    if not isinstance(file.get("added_tokens"), list):
        raise ValueError("it has no list of added_tokens")
    return model


def _check_steps(file: Table) -> None:
    """Raise ValueError if a text could exhaust memory, or if a pattern is too long."""
    if prod(_growth(step) for role in ("normalizer", "pre_tokenizer") for step in parts_of(file, role)) > MOST_GROWTH:
        raise ValueError(f"its normalizer makes more than {MOST_GROWTH} characters of one, which exhausts memory")
    for role in ("normalizer", "pre_tokenizer", "decoder"):
        for step in parts_of(file, role):
            pattern = step.get("pattern")
            if isinstance(pattern, Mapping) and len(str(pattern.get("Regex", ""))) > LONGEST_PATTERN:
                raise ValueError(f"its {role} has a pattern of more than {LONGEST_PATTERN} characters")


def _growth(step: Table) -> int:
    """Return the most characters that a step makes of one. A regular expression may match between two characters."""
    if step["type"] == "Precompiled":
        charsmap = b64decode(step["precompiled_charsmap"] or "")
        replacements = charsmap[4 + int.from_bytes(charsmap[:4], "little") :].decode("utf-8", "ignore")
        return max(map(_length, replacements.split("\0")), default=1)
    if step["type"] not in ("Replace", "Prepend"):
        return GROWTH.get(step["type"], 1)
    pattern, size = step.get("pattern", {}).get("String"), _length(step.get("content") or step.get("prepend") or "")
    if pattern == "" or size > MOST_GROWTH:
        raise ValueError(f"its normalizer replaces nothing, or inserts more than {MOST_GROWTH} characters")
    return max(1, -(-size // len(pattern)) if pattern else size + 1)


def _length(text: str) -> int:
    """Return the number of characters of a text when a later step decomposes it."""
    return len(normalize("NFKD", text))


@contextmanager
def no_panic(error: Exception) -> Iterator[None]:
    """Raise this error if the tokenizers library panics: a PanicException is not an Exception."""
    try:
        yield
    except BaseException as found:
        if type(found).__name__ == "PanicException":
            raise error from None
        raise


def _spaces(decoders: list[Table]) -> bool:
    """Return whether a decoder replaces SentencePiece's symbol for a space, like the decoder of Llama 2."""
    return any(part["type"] == "Replace" and part.get("pattern") == {"String": "\u2581"} for part in decoders)


def is_unmerged(file: Table) -> bool:
    """Return whether each character is a token, as in a tokenizer of type "characters"."""
    types = [part["type"] for part in parts_of(file, "decoder")]
    return types == ["Fuse"] and file["model"]["type"] == "BPE" and not file["model"].get("merges")


def parts_of(file: Table, name: str) -> list[Table]:
    """Return the components of a normalizer, pre-tokenizer or decoder. Only sequences, which can nest, have several."""
    part = file.get(name)
    if part is None:
        return []
    lists = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
    inner = part[lists[name]] if part["type"] == "Sequence" else None
    return [part] if inner is None else [step for each in inner for step in parts_of({name: each}, name)]
