"""The checks of a tokenizer.json before the library reads it: a stranger's file must not exhaust memory or time."""

from collections.abc import Mapping
from typing import Any

from penwright.tokenizers.kinds import MARKED_WORDS

Table = Mapping[str, Any]
MOST_PIECES = 1 << 22  # far more than any vocabulary has
PLAIN = ("truncation", "padding")  # parts that no tokenizer of ours has


def require_sound(file: Table) -> None:
    """Raise ValueError unless the file has only parts of ours, and its ids are 0, 1, 2 ... without a gap."""
    for part in PLAIN:
        if file.get(part) is not None:
            raise ValueError(f"it has a {part}")
    if (file.get("post_processor") or {}).get("type", "TemplateProcessing") != "TemplateProcessing":
        raise ValueError("it has a post_processor that Penwright does not export")
    if file.get("normalizer") not in (None, {"type": "Prepend", "prepend": " "}):
        raise ValueError(f"its normalizer is {file['normalizer']!r}")
    _require_our_words(file.get("pre_tokenizer"))
    ids = _ids_of_pieces(file["model"]["vocab"])
    for token in file["added_tokens"]:
        ids.add(token["id"])
    if len(ids) > MOST_PIECES or not all(type(each) is int for each in ids) or ids != set(range(len(ids))):
        raise ValueError("the ids of its tokens are not 0, 1, 2 ... without a gap")
    if len(file["model"].get("merges") or ()) > MOST_PIECES:
        raise ValueError("it has too many merges")


def _ids_of_pieces(vocabulary: object) -> set[Any]:
    """The ids of BPE by their pieces, or those of Unigram by their places; raises ValueError where two are alike."""
    if isinstance(vocabulary, list):
        return set(range(len(vocabulary)))
    if not isinstance(vocabulary, dict):
        raise ValueError("it has no vocabulary")
    ids = set(vocabulary.values())
    if len(ids) != len(vocabulary):
        raise ValueError("two of its tokens have the same id")
    return ids


def _require_our_words(splitter: object) -> None:
    """Raise ValueError for a pattern that is not ours: one of a stranger may take for ever to match."""
    parts = splitter.get("pretokenizers", []) if isinstance(splitter, dict) else []
    for part in parts:
        if part["type"] == "Split" and part["pattern"] != {"Regex": MARKED_WORDS}:
            raise ValueError("it splits words by another pattern than Penwright's")
