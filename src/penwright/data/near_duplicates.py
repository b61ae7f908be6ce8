"""Held-out texts that are nearly the same as a training text, so that scores may be too optimistic."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from penwright.text import BETWEEN_TEXTS, brief, count

WORDS = re.compile(r"[^\W\d_]+")
SHINGLE = 4  # number of words in a shingle
SIMILAR = 0.6  # minimum share of the shingles of two texts that both have (Jaccard similarity)
MOST_CHARACTERS = 20_000_000  # maximum number of characters of training texts to compare
MOST_OWNERS = 50  # maximum number of held-out texts to look up for a shingle, which may be boilerplate
N_EXAMPLES = 2
ADVICE = "so the scores may be too optimistic. If a column says which texts belong together, name it: --group COLUMN"


def near_duplicates_note(training: Iterable[str], held_out: Iterable[str]) -> str:
    """Return a note on held-out texts that are nearly the same as a training text; "" if there are none.

    Two texts are nearly the same if at least 60 % of their sequences of four words are in both. Case, digits and
    punctuation do not count.
    """
    texts = list(held_out)
    shingles = [_shingles(text) for text in texts]
    owners: dict[str, list[int]] = {}
    for number, own in enumerate(shingles):
        for shingle in own:
            owners.setdefault(shingle, []).append(number)
    found: dict[int, str] = {}
    for text in _first_characters(training):
        own = _shingles(text)
        common = Counter(number for shingle in own for number in owners.get(shingle, ())[:MOST_OWNERS])
        for number, n_common in common.items():
            if n_common >= SIMILAR * (len(own) + len(shingles[number]) - n_common):
                found.setdefault(number, text)
    if not found:
        return ""
    pairs = (f"{_shown(text)} and {_shown(texts[number])}" for number, text in list(found.items())[:N_EXAMPLES])
    are = "is" if len(found) == 1 else "are"
    nearly = f"{len(found):,} of {count(len(texts), 'held-out text')} {are} nearly the same as a training text"
    return f"{nearly} (such as {'; '.join(pairs)}), {ADVICE}"


def _shingles(text: str) -> set[str]:
    words = WORDS.findall(text.lower())
    return {" ".join(words[start : start + SHINGLE]) for start in range(max(1, len(words) - SHINGLE + 1))} - {""}


def _first_characters(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts until MOST_CHARACTERS characters have been read."""
    n_characters = 0
    for text in texts:
        n_characters += len(text)
        if n_characters > MOST_CHARACTERS:
            return
        yield text


def _shown(text: str) -> str:
    return brief(" ".join(text.replace(BETWEEN_TEXTS, " | ").split()))
