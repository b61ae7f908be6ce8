"""Segments, which are translated in one pass, and whole translations, assembled from the results of segments."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import fsum
from typing import Literal, NamedTuple

from penwright.decoding.constraints.term_automaton import ConstraintAutomaton
from penwright.decoding.hypotheses import Hypothesis, Wanted
from penwright.model.transformer import EncoderDecoder
from penwright.text import WITHOUT_SPACES, brief, gaps_between, noted, words
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import unknown_warnings
from penwright.translation.constraints.glossary import with_hints
from penwright.translation.constraints.requirements import (
    NO_DRAFT,
    Constraint,
    ConstraintResult,
    Constraints,
    DraftReport,
    constraints_of,
)

LONGEST_LOOP = 6  # maximum number of words in a repeated phrase
MIN_REPEATS = 4  # consecutive occurrences of a word that trigger a warning; for a phrase, one fewer
STUTTER = re.compile(r"([^\W\d_]{1,6}?)\1{5,}")  # one to six letters that occur at least six times in a row
FEW_TOKENS = 8  # minimum source length, in tokens, for a warning about the length of the translation
SHORTEST, LONGEST = 0.3, 3.0  # usual range of the number of target tokens per source token


class Segment(NamedTuple):
    """A text that is translated in one pass."""

    source: str
    constraints: Constraints
    prefix: str = ""  # required beginning of the translation; white space at its end completes the last word


class SegmentResult(NamedTuple):
    """One translation of a segment."""

    text: str
    hypothesis: Hypothesis
    constraints: Sequence[Constraint] = ()
    outcomes: Sequence[ConstraintResult] = ()

    @property
    def missed(self) -> list[Constraint]:
        """The glossary constraints that are not satisfied."""
        pairs = zip(self.constraints, self.outcomes, strict=True)
        return [constraint for constraint, outcome in pairs if outcome.state == "missed" and not constraint.protected]


class ConstrainedSegment(NamedTuple):
    """A segment, all its constraints, and an automaton for the constraints that the search enforces or favors."""

    segment: Segment
    constraints: Sequence[Constraint]
    guide: ConstraintAutomaton | None
    draft: DraftReport = NO_DRAFT


def source_text(segment: Segment, end: int | None = None) -> str:
    """Return the source up to a character offset, with hints in place of the glossary terms if the model uses hints."""
    text = segment.source[:end]
    if not segment.constraints.hints:
        return text
    terms = [term for term in constraints_of(segment.source, segment.constraints) if not term.protected]
    return with_hints(text, [(*term[:2], form) for term in terms if term.end <= len(text) for form in term.forms[:1]])


def source_tokens(tokenizer: Tokenizer, segment: Segment) -> list[int]:
    """Return the tokens that the model reads for a segment, including hints and the end token."""
    return tokenizer.source(tokenizer.encode(source_text(segment)))


def longest_target(model: EncoderDecoder, tokenizer: Tokenizer) -> int:
    """Return the maximum length of a target in tokens: the context without the tokens before each translation."""
    return model.settings.context_length - len(tokenizer.target_prefix)


WantedSegment = Callable[[Segment], bool]  # a function that returns whether a segment is still needed


def symptoms(source: str, target: str, n_source: int, n_target: int) -> list[str]:
    """Return warnings about a target that repeats itself, copies the source, or has an unusual length in tokens."""
    symptoms = []
    loop = _loop(target)
    if loop and not _loop(source):
        symptoms.append(f'the translation repeats itself: "{loop}"')
    if _copied(source.split(), target.split()):
        symptoms.append("the translation copies the source")
    if n_source >= FEW_TOKENS and n_target < SHORTEST * n_source:
        symptoms.append(f"the translation is very short: {n_target} against {n_source} tokens in the source")
    if n_source >= FEW_TOKENS and n_target > LONGEST * n_source:
        symptoms.append(f"the translation is very long: {n_target} against {n_source} tokens in the source")
    return symptoms


def _loop(text: str) -> str:
    """Return the first repeated words or, if there are none, the first repeated letters."""
    stutter = STUTTER.search(text)
    return repeated(words(text)) or (stutter[1] if stutter else "")


def repeated(tokens: Sequence[str]) -> str:
    """Return the first word or phrase that is repeated several times in a row; "" if there is none."""
    for n in range(1, LONGEST_LOOP + 1):
        often = MIN_REPEATS if n == 1 else MIN_REPEATS - 1
        same = [before == after for before, after in zip(tokens, tokens[n:], strict=False)]
        start = 0
        for equal, run in groupby(same):
            length = len(list(run))
            if equal and length >= n * (often - 1):
                gap = "" if WITHOUT_SPACES.match(tokens[start]) else " "
                return gap.join(tokens[start : start + n])
            start += length
    return ""


def _copied(source: Sequence[str], target: Sequence[str]) -> bool:
    """Return whether the target has at least four words, nearly all of which also occur in the source."""
    shared = Counter(map(str.casefold, source)) & Counter(map(str.casefold, target))
    return len(target) >= 4 and shared.total() >= 0.8 * len(target)


class TranslatedToken(NamedTuple):
    """A token of a translation, with its log-probability."""

    text: str
    log_prob: float  # log-probability in nats
    token: int


@dataclass(frozen=True)
class Candidate:
    """A translation of a whole text, whose log-probability and score are sums over the parts of the text."""

    text: str
    log_prob: float  # total log-probability in nats
    score: float  # candidates are ranked by log-probability / length ** length_penalty
    finish: Literal["end", "length"]  # "length": a part of the text reached the length limit
    pieces: tuple[TranslatedToken, ...] = ()  # tokens; the end token of each part has an empty text
    outcomes: tuple[ConstraintResult, ...] = ()  # for each constraint, whether and how this text meets it

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
    """A possible next word of a translation."""

    word: str
    log_prob: float  # log-probability of the first token, in nats
    text: str  # the best translation that continues with this word
    score: float


class TextPart(NamedTuple):
    """A segment, its offset in the whole text, and the white space after the segment."""

    segment: Segment
    start: int
    gap: str


class SplitText(NamedTuple):
    """A text, and the parts into which each of its lines is split."""

    text: str
    lines: list[list[TextPart]]


def distinct_segments(texts: Sequence[SplitText]) -> list[Segment]:
    """Return the distinct segments of the texts."""
    return list(dict.fromkeys(part.segment for _, lines in texts for line in lines for part in line))


def still_wanted(texts: Sequence[SplitText], wanted: Wanted | None) -> WantedSegment | None:
    """Return a function that tells whether a text with this segment is still wanted; None if `wanted` is None."""
    if wanted is None:
        return None
    texts_of: dict[Segment, set[int]] = {}
    for number, (_, lines) in enumerate(texts):
        for line in lines:
            for part in line:
                texts_of.setdefault(part.segment, set()).add(number)
    return lambda segment: any(map(wanted, texts_of[segment]))


def assemble(
    tokenizer: Tokenizer, prepared: SplitText, results: Mapping[Segment, Sequence[SegmentResult]], reach: int
) -> Translation:
    """Assemble the translation of a text from the results of its parts, each of at most `reach` source tokens."""
    text, lines = prepared
    n_found = max((len(results[part.segment]) for line in lines for part in line), default=1)
    candidates = tuple(_candidate(tokenizer, lines, results, rank) for rank in range(n_found))
    parts = [part for line in lines for part in line]
    warnings = unknown_warnings(tokenizer, "".join(part.segment.source for part in parts))
    if any(len(line) > 1 for line in lines):
        warnings.append(f"translated in parts: the text is longer than the model's limit of {reach} tokens")
    if candidates[0].finish == "length":
        warnings.append("the translation reached the length limit and was cut off")
    for part in parts:
        best = results[part.segment][0]
        n_source, n_target = len(tokenizer.encode(part.segment.source)), len(best.hypothesis.tokens)
        warnings += symptoms(part.segment.source, best.text, n_source, n_target) if n_target else []
    warnings += [warning for outcome in candidates[0].outcomes for warning in outcome.warnings()]
    return Translation(text, candidates, tuple(dict.fromkeys(warnings)))


def _candidate(
    tokenizer: Tokenizer,
    lines: Sequence[Sequence[TextPart]],
    results: Mapping[Segment, Sequence[SegmentResult]],
    rank: int,
) -> Candidate:
    """Join one translation of each part: the one with this rank or, if there are too few, the last one."""
    text, used, outcomes = "", [], []
    for number, line in enumerate(lines):
        text += "\n" if number else ""
        chosen = [results[part.segment][: rank + 1][-1] for part in line]
        sources, gaps = [part.segment.source for part in line], [part.gap for part in line]
        gaps = gaps_between([result.text for result in chosen], gaps, sources)
        for part, result, gap in zip(line, chosen, gaps, strict=True):
            outcomes += [outcome.moved(part.start, len(text)) for outcome in result.outcomes]
            text += result.text + gap
            used.append(result.hypothesis)
    return Candidate(
        text,
        fsum(hypothesis.log_prob for hypothesis in used),
        fsum(hypothesis.score for hypothesis in used),
        "length" if any(hypothesis.finish == "length" for hypothesis in used) else "end",
        tuple(piece for hypothesis in used for piece in _pieces(tokenizer, hypothesis)),
        tuple(outcomes),
    )


def _pieces(tokenizer: Tokenizer, hypothesis: Hypothesis) -> list[TranslatedToken]:
    ended = hypothesis.finish == "end" and hypothesis.log_probs
    texts = [*map(tokenizer.token_text, hypothesis.tokens), *([""] if ended else [])]
    tokens = [*hypothesis.tokens, *([tokenizer.end_id] if ended else [])]
    return [TranslatedToken(*fields) for fields in zip(texts, hypothesis.log_probs, tokens, strict=True)]
