"""Held-out texts that are nearly the same as a training text, so that scores may be too optimistic."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from penwright.text import BETWEEN_TEXTS, brief, count

WORDS = re.compile(r"[^\W\d_]+")
SHINGLE = 4  # number of words in a shingle
SIMILAR = 0.6  # minimum share of the shingles of two texts that both have (Jaccard similarity)
MOST_CHARACTERS = 5_000_000  # maximum number of characters to compare, of training texts and of held-out texts
MOST_OWNERS = 20  # maximum number of sets of shingles to look up for a shingle, which may be boilerplate
N_EXAMPLES = 2
ADVICE = ". If a column says which texts belong together, name it: --group COLUMN"
Shingles = frozenset[int]  # the hashes of all sequences of SHINGLE words in a text


def near_duplicates_note(training: Iterable[str], held_out: Iterable[str], unit: str = "text") -> str:
    """Return a note on held-out texts that are nearly the same as a training text; "" if there are none.

    Two texts are nearly the same if at least 60 % of their sequences of four words are in both. Case, digits and
    punctuation do not count. Of large corpora, only the first texts are compared. `unit` is "source" for pairs, which
    have no groups.
    """
    left = iter(held_out)
    texts: dict[Shingles, list[str]] = {}
    for text in _first_characters(left):
        texts.setdefault(_shingles(text), []).append(text)
    is_all = next(left, None) is None
    similar = _found(training, texts)
    if not similar:
        return ""
    pairs = [(similar[each], same[0]) for each, same in texts.items() if each in similar][:N_EXAMPLES]
    shown = "; ".join(f"{_shown(one)} and {_shown(other)}" for one, other in pairs)
    n_found, n_texts = (sum(len(texts[each]) for each in some) for some in (similar, texts))
    of = f"{n_found:,} of {'' if is_all else 'the first '}{count(n_texts, f'held-out {unit}')}"
    are = "is" if n_found == 1 else "are"
    found = f"{of} {are} nearly the same as a training {unit} (such as {shown}), so the scores may be too optimistic"
    return f"{found}{ADVICE if unit == 'text' else ''}"


def _found(training: Iterable[str], held_out: Iterable[Shingles]) -> dict[Shingles, str]:
    """Return the held-out sets of shingles that a training text nearly has, with the first such text."""
    owners: dict[int, list[Shingles]] = {}
    for each in held_out:
        for shingle in each:
            owners.setdefault(shingle, []).append(each)
    found: dict[Shingles, str] = {}
    for text in _first_characters(training):
        own = _shingles(text)
        common = Counter(each for shingle in own for each in owners.get(shingle, ())[:MOST_OWNERS])
        for each, n_common in common.items():
            if n_common >= SIMILAR * (len(own) + len(each) - n_common):
                found[each] = text
                for shingle in each:  # so that the next training text meets others
                    owners[shingle].remove(each)
    return found


def _shingles(text: str) -> Shingles:
    words = WORDS.findall(text.lower())
    if len(words) < SHINGLE:
        return frozenset([hash(tuple(words))] if words else [])
    return frozenset(map(hash, zip(*(words[start:] for start in range(SHINGLE)), strict=False)))


def _first_characters(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts until MOST_CHARACTERS characters have been read. The last text may be cut."""
    left = MOST_CHARACTERS
    for text in texts:
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return


def _shown(text: str) -> str:
    return brief(" ".join(text.replace(BETWEEN_TEXTS, " | ").split()))
