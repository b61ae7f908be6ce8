"""What is wrong with a translation, as far as one can see without knowing the languages."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from penwright.text import WITHOUT_SPACES, words

LONGEST_LOOP = 6  # words
TOO_OFTEN = 4  # times that a word or phrase comes one after another; of more than one word: 3
STUTTER = re.compile(r"([^\W\d_]{1,6}?)\1{5,}")  # letters that come six times or more within a word
FEW_TOKENS = 8  # of a source that is too short to judge a length by
SHORTEST, LONGEST = 0.3, 3.0  # target tokens for each source token


def symptoms(source: str, target: str, n_source: int, n_target: int) -> list[str]:
    """Warnings about a target that repeats itself, copies its source, or is oddly short or long; lengths in tokens."""
    found = []
    loop = _loop(target)
    if loop and not _loop(source):
        found.append(f'the translation repeats itself: "{loop}"')
    if _copied(source.split(), target.split()):
        found.append("the translation copies the source")
    if n_source >= FEW_TOKENS and n_target < SHORTEST * n_source:
        found.append(f"the translation is very short: {n_target} tokens for {n_source}")
    if n_source >= FEW_TOKENS and n_target > LONGEST * n_source:
        found.append(f"the translation is very long: {n_target} tokens for {n_source}")
    return found


def _loop(text: str) -> str:
    """The first words, or else letters, that come again and again."""
    stutter = STUTTER.search(text)
    return repeated(words(text)) or (stutter[1] if stutter else "")


def repeated(said: Sequence[str]) -> str:
    """The first words that come again and again, one after another; nothing where there are none."""
    for n in range(1, LONGEST_LOOP + 1):
        often = TOO_OFTEN if n == 1 else TOO_OFTEN - 1
        same = [before == after for before, after in zip(said, said[n:], strict=False)]
        start = 0
        for equal, run in groupby(same):
            length = len(list(run))
            if equal and length >= n * (often - 1):
                gap = "" if WITHOUT_SPACES.match(said[start]) else " "
                return gap.join(said[start : start + n])
            start += length
    return ""


def _copied(source: Sequence[str], target: Sequence[str]) -> bool:
    """Four words or more, and nearly all of them the source's."""
    shared = Counter(map(str.casefold, source)) & Counter(map(str.casefold, target))
    return len(target) >= 4 and shared.total() >= 0.8 * len(target)
