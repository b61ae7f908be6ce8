"""Checks of a tokenizer.json before the library reads it: an untrusted file must not exhaust memory or time."""

from collections.abc import Mapping
from typing import Any

from penwright.tokenizers.kinds import MARKED_WORDS

Table = Mapping[str, Any]
MOST_PIECES = 1 << 22  # far more than any real vocabulary has
PLAIN = ("truncation", "padding")  # parts that Penwright never writes


def check_file(file: Table) -> None:
    """Raise ValueError unless the file has only parts that Penwright writes, and ids 0, 1, 2 ... without gaps."""
    for part in PLAIN:
        if file.get(part) is not None:
            raise ValueError(f"it has a {part}")
    if (file.get("post_processor") or {}).get("type", "TemplateProcessing") != "TemplateProcessing":
        raise ValueError("it has a post_processor that Penwright does not write")
    if file.get("normalizer") not in (None, {"type": "Prepend", "prepend": " "}):
        raise ValueError(f"it has a normalizer that Penwright does not write: {file['normalizer']!r}")
    _require_known_pattern(file.get("pre_tokenizer"))
    ids = _ids_of_pieces(file["model"]["vocab"])
    for token in file["added_tokens"]:
        ids.add(token["id"])
    if len(ids) > MOST_PIECES or not all(type(token_id) is int for token_id in ids) or ids != set(range(len(ids))):
        raise ValueError("its token ids are not 0, 1, 2 ... without gaps")
    if len(file["model"].get("merges") or ()) > MOST_PIECES:
        raise ValueError("it has too many merges")


def _ids_of_pieces(vocabulary: object) -> set[Any]:
    """Return the ids of a BPE or unigram vocabulary; raise ValueError if two are equal."""
    if isinstance(vocabulary, list):
        return set(range(len(vocabulary)))
    if not isinstance(vocabulary, dict):
        raise ValueError("it has no vocabulary")
    ids = set(vocabulary.values())
    if len(ids) != len(vocabulary):
        raise ValueError("two of its tokens have the same id")
    return ids


def _require_known_pattern(splitter: object) -> None:
    """Raise ValueError for a pattern that is not Penwright's: an untrusted one may take forever to match."""
    parts = splitter.get("pretokenizers", []) if isinstance(splitter, dict) else []
    for part in parts:
        if part["type"] == "Split" and part["pattern"] != {"Regex": MARKED_WORDS}:
            raise ValueError("it splits words by a pattern that is not Penwright's")
