"""What a translation is, and how that of a whole text is put together from what was found for its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Literal, NamedTuple

from penwright.data.scripts import gaps_between
from penwright.decoding.brief import brief, noted
from penwright.decoding.hypotheses import Hypothesis, Wanted
from penwright.decoding.obeying.demands import Outcome
from penwright.decoding.obeying.jobs import Found, Job
from penwright.decoding.obeying.searching import WantedJob
from penwright.decoding.symptoms import symptoms
from penwright.decoding.unknown import unknown_warnings
from penwright.tokenizers import Tokenizer


class Piece(NamedTuple):
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
    pieces: tuple[Piece, ...] = ()  # with the end token of each part, whose text is empty
    outcomes: tuple[Outcome, ...] = ()  # of the demands on this text

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


class Part(NamedTuple):
    """A job, where it stands in the whole text, and the white space after it."""

    job: Job
    start: int
    gap: str


class Prepared(NamedTuple):
    """A text, and the parts of each of its lines."""

    text: str
    lines: list[list[Part]]


def jobs_of(texts: Sequence[Prepared]) -> list[Job]:
    """Each once, however often it occurs."""
    return list(dict.fromkeys(part.job for _, lines in texts for line in lines for part in line))


def wanted_job(texts: Sequence[Prepared], wanted: Wanted | None) -> WantedJob | None:
    """A job is wanted as long as any text that it is part of."""
    if wanted is None:
        return None
    texts_of: dict[Job, set[int]] = {}
    for number, (_, lines) in enumerate(texts):
        for line in lines:
            for part in line:
                texts_of.setdefault(part.job, set()).add(number)
    return lambda job: any(map(wanted, texts_of[job]))


def put_together(
    tokenizer: Tokenizer, prepared: Prepared, found: Mapping[Job, Sequence[Found]], reach: int
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
    tokenizer: Tokenizer, lines: Sequence[Sequence[Part]], found: Mapping[Job, Sequence[Found]], rank: int
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


def _pieces(tokenizer: Tokenizer, hypothesis: Hypothesis) -> list[Piece]:
    ended = hypothesis.finish == "end" and hypothesis.log_probs
    texts = [*map(tokenizer.token_text, hypothesis.tokens), *([""] if ended else [])]
    tokens = [*hypothesis.tokens, *([tokenizer.end_id] if ended else [])]
    return [Piece(*each) for each in zip(texts, hypothesis.log_probs, tokens, strict=True)]
