"""What a translation is, and how that of a whole text is put together from what was found for its parts."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import fsum
from typing import Literal, NamedTuple

from penwright.decoding.brief import brief, noted
from penwright.decoding.hypotheses import Hypothesis, Wanted
from penwright.decoding.unknown_tokens import unknown_warnings
from penwright.text import WITHOUT_SPACES, gaps_between, words
from penwright.tokenizers import Tokenizer
from penwright.translation.constraints.requirements import ConstraintResult
from penwright.translation.constraints.search import WantedJob
from penwright.translation.constraints.segments import Segment, SegmentResult

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


class TranslatedToken(NamedTuple):
    """A token of a translation."""

    text: str
    log_prob: float  # in nats
    token: int


@dataclass(frozen=True)
class Candidate:
    """One way to translate a whole text; of a text in parts, log-probabilities and scores are sums over the parts."""

    text: str
    log_prob: float  # in nats
    score: float  # what candidates are ranked by: log-probability / length ** length_penalty
    finish: Literal["end", "length"]  # "length": a part was cut because it did not come to an end
    pieces: tuple[TranslatedToken, ...] = ()  # with the end token of each part, whose text is empty
    outcomes: tuple[ConstraintResult, ...] = ()  # of the demands on this text

    def __repr__(self) -> str:
        return f"<Candidate {brief(self.text)} (score {self.score:.3f}, finish={self.finish!r})>"


@dataclass(frozen=True)
class Translation:
    """The n best translations of a text, best first."""

    source: str
    candidates: tuple[Candidate, ...]
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        n = len(self.candidates)
        more = f" ({n} candidates{noted(self.warnings)})" if n > 1 or self.warnings else ""
        return f"<Translation {brief(self.source)} -> {brief(self.text)}{more}>"

    @property
    def text(self) -> str:
        """The best translation."""
        return self.candidates[0].text


class Alternative(NamedTuple):
    """A word that a translation could go on with."""

    word: str
    log_prob: float  # of its first token, in nats
    text: str  # the whole translation with it
    score: float


class TextPart(NamedTuple):
    """A job, where it stands in the whole text, and the white space after it."""

    job: Segment
    start: int
    gap: str


class SplitText(NamedTuple):
    """A text, and the parts of each of its lines."""

    text: str
    lines: list[list[TextPart]]


def jobs_of(texts: Sequence[SplitText]) -> list[Segment]:
    """Each once, however often it occurs."""
    return list(dict.fromkeys(part.job for _, lines in texts for line in lines for part in line))


def wanted_job(texts: Sequence[SplitText], wanted: Wanted | None) -> WantedJob | None:
    """A job is wanted as long as any text that it is part of."""
    if wanted is None:
        return None
    texts_of: dict[Segment, set[int]] = {}
    for number, (_, lines) in enumerate(texts):
        for line in lines:
            for part in line:
                texts_of.setdefault(part.job, set()).add(number)
    return lambda job: any(map(wanted, texts_of[job]))


def put_together(
    tokenizer: Tokenizer, prepared: SplitText, found: Mapping[Segment, Sequence[SegmentResult]], reach: int
) -> Translation:
    """The translation of a text from what was found for its parts, which have less than `reach` tokens each."""
    text, lines = prepared
    n_found = max((len(found[part.job]) for line in lines for part in line), default=1)
    candidates = tuple(_candidate(tokenizer, lines, found, rank) for rank in range(n_found))
    parts = [part for line in lines for part in line]
    warnings = unknown_warnings(tokenizer, "".join(part.job.source for part in parts))
    if any(len(line) > 1 for line in lines):
        warnings.append(f"translated in parts of less than {reach} tokens, as the model has learned to read")
    if candidates[0].finish == "length":
        warnings.append("the translation did not come to an end and was cut")
    for part in parts:
        best = found[part.job][0]
        n_source, n_target = len(tokenizer.encode(part.job.source)), len(best.hypothesis.tokens)
        warnings += symptoms(part.job.source, best.text, n_source, n_target) if n_target else []
    warnings += [warning for outcome in candidates[0].outcomes for warning in outcome.warnings()]
    return Translation(text, candidates, tuple(dict.fromkeys(warnings)))


def _candidate(
    tokenizer: Tokenizer,
    lines: Sequence[Sequence[TextPart]],
    found: Mapping[Segment, Sequence[SegmentResult]],
    rank: int,
) -> Candidate:
    """The translations of all parts that have this rank, or the last of a part that has fewer."""
    text, used, results = "", [], []
    for number, line in enumerate(lines):
        text += "\n" if number else ""
        chosen = [found[part.job][: rank + 1][-1] for part in line]
        sources, gaps = [part.job.source for part in line], [part.gap for part in line]
        gaps = gaps_between([each.text for each in chosen], gaps, sources)
        for part, each, gap in zip(line, chosen, gaps, strict=True):
            results += [outcome.moved(part.start, len(text)) for outcome in each.outcomes]
            text += each.text + gap
            used.append(each.hypothesis)
    return Candidate(
        text,
        fsum(hypothesis.log_prob for hypothesis in used),
        fsum(hypothesis.score for hypothesis in used),
        "length" if any(hypothesis.finish == "length" for hypothesis in used) else "end",
        tuple(piece for hypothesis in used for piece in _pieces(tokenizer, hypothesis)),
        tuple(results),
    )


def _pieces(tokenizer: Tokenizer, hypothesis: Hypothesis) -> list[TranslatedToken]:
    ended = hypothesis.finish == "end" and hypothesis.log_probs
    texts = [*map(tokenizer.token_text, hypothesis.tokens), *([""] if ended else [])]
    tokens = [*hypothesis.tokens, *([tokenizer.end_id] if ended else [])]
    return [TranslatedToken(*each) for each in zip(texts, hypothesis.log_probs, tokens, strict=True)]
