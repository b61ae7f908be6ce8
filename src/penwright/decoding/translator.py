"""Text in, translation out: an encoder-decoder with its tokenizer. One line in is one line out."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import fsum
from typing import Literal, NamedTuple

from penwright.config import DecodingSettings
from penwright.decoding.beam import BeamSettings, Hypothesis, Watch
from penwright.decoding.demands import USUAL_DEMANDS, Demands, Outcome
from penwright.decoding.documents import translated
from penwright.decoding.jobs import Found, Job
from penwright.decoding.sampling import Sampling
from penwright.decoding.searching import Searcher
from penwright.decoding.segments import around, segments
from penwright.decoding.step import Stepper
from penwright.decoding.symptoms import symptoms
from penwright.decoding.unknown import line_breaks, never_written, unknown_warnings
from penwright.decoding.variety import Variety
from penwright.errors import UsageError
from penwright.models import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import well_formed

SHORTEST_REACH = 5  # a character can be four bytes, and there is the end token


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


@dataclass(frozen=True)
class Translation:
    """The n best translations of a text, best first."""

    source: str
    candidates: tuple[Candidate, ...]
    warnings: tuple[str, ...] = ()

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


class _Part(NamedTuple):
    """A job, where it stands in the whole text, and the white space after it."""

    job: Job
    start: int
    gap: str


def _jobs(texts: Sequence[tuple[str, list[list[_Part]]]]) -> list[Job]:
    """Each once, however often it occurs."""
    return list(dict.fromkeys(part.job for _, lines in texts for line in lines for part in line))


class Translator:
    """Translates texts of any length, in batches of similar ones."""

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizer: Tokenizer,
        defaults: DecodingSettings | None = None,
        *,
        source_language: str = "en",
        max_source_tokens: int | None = None,
    ):
        """Sources longer than max_source_tokens (end token included; None: the context) are translated in parts.

        What a model makes of sources longer than any in its training is poor, so give the longest one there.
        """
        self.model, self.tokenizer, self.source_language = model, tokenizer, source_language
        self.defaults = defaults or DecodingSettings()
        self._stepper = Stepper(model)
        self.context_length = model.settings.context_length
        self.reach = min(self.context_length, max(max_source_tokens or self.context_length, SHORTEST_REACH))

    def watched(self, watch: Callable[[], None]) -> AbstractContextManager[None]:
        """Have this called before each step of search inside; what it raises ends the search."""
        return self._stepper.watched(watch)

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam_size: int | None = None,
        n_best: int = 1,
        length_penalty: float | None = None,
        max_new_tokens: int | None = None,
        demands: Demands | Sequence[Demands] = USUAL_DEMANDS,
        prefixes: str | Sequence[str] = "",
        watch: Watch | None = None,
    ) -> list[Translation]:
        """A translation for each text, in their order; what is not given comes from the defaults.

        Line breaks stay where they are, and a blank line gives an empty one. Demands and prefixes are for
        all texts, or one for each. A translation begins with its prefix; one that ends in white space ends a word.
        `watch` sees the steps of search, and ends it by raising.
        """
        defaults, usual = self.defaults, self._settings()
        settings = replace(
            usual,
            beam_size=usual.beam_size if beam_size is None else beam_size,
            n_best=n_best,
            length_penalty=usual.length_penalty if length_penalty is None else length_penalty,
        )
        if not 1 <= n_best <= settings.beam_size:
            raise UsageError(f"n_best ({n_best}) must be between 1 and beam_size ({settings.beam_size})")
        parts = self._prepared(texts, demands, prefixes)
        found = self._searcher.find(_jobs(parts), settings, max_new_tokens or defaults.max_new_tokens, watch)
        return [self._put_together(text, lines, found) for text, lines in parts]

    def sample(
        self,
        texts: Sequence[str],
        n: int = 1,
        settings: DecodingSettings | None = None,
        demands: Demands = USUAL_DEMANDS,
    ) -> list[Translation]:
        """For each text n translations as chance draws them, by the seed and temperature of the settings."""
        settings = settings or self.defaults
        sampling = Sampling(self._banned, settings)
        parts = self._prepared(texts, demands, "")
        found = self._variety.sample(_jobs(parts), sampling, settings.seed, n)
        return [self._put_together(text, lines, found) for text, lines in parts]

    def diverse(
        self, texts: Sequence[str], n: int, strength: float = 1.0, demands: Demands = USUAL_DEMANDS
    ) -> list[Translation]:
        """For each text up to n translations that differ: each token of one costs the next `strength` nats there."""
        parts = self._prepared(texts, demands, "")
        found = self._variety.diverse(_jobs(parts), n, strength, self._settings())
        return [self._put_together(text, lines, found) for text, lines in parts]

    def alternatives(self, source: str, prefix: str, n: int = 5, demands: Demands = USUAL_DEMANDS) -> list[Alternative]:
        """The n likeliest next words after the beginning of a translation, each with the best way to go on.

        A prefix that ends in white space ends a word; else its last word may go on. Raises UsageError for a source of
        several lines, or longer than the model reads at once.
        """
        parts = [part for _, lines in self._prepared([source], demands, prefix) for line in lines for part in line]
        if len(parts) != 1:
            raise UsageError("alternatives are for one sentence: give a single line that is not too long")
        found = self._variety.go_on(parts[0].job, 2 * n, self._settings())
        alternatives: dict[str, Alternative] = {}
        for each in found:
            word = next(iter(each.text[len(prefix.rstrip()) :].split(maxsplit=1)), "")
            n_given = len(self.tokenizer.encode(prefix.strip()))
            log_prob = each.hypothesis.log_probs[n_given]
            alternatives.setdefault(word, Alternative(word, log_prob, each.text, each.hypothesis.score))
        return [alternative for word, alternative in alternatives.items() if word][:n]

    def translate_document(self, document: str, demands: Demands = USUAL_DEMANDS) -> str:
        """Sentence by sentence; blank lines, indentation and bullets stay, and wrapped paragraphs are wrapped again."""

        def translate(sentences: Sequence[str]) -> list[str]:
            return [translation.text for translation in self.translate(sentences, demands=demands)]

        return translated(document, self.source_language, translate)

    def _settings(self) -> BeamSettings:
        defaults = self.defaults
        return BeamSettings(defaults.beam_size, 1, defaults.length_penalty, self._banned, defaults.coverage_penalty)

    @cached_property
    def _banned(self) -> tuple[int, ...]:
        return never_written(self.tokenizer) + line_breaks(self.tokenizer)

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(self.model, self.tokenizer, self._stepper)

    @cached_property
    def _variety(self) -> Variety:
        return Variety(self.model, self.tokenizer, self._stepper)

    def _prepared(
        self, texts: Sequence[str], demands: Demands | Sequence[Demands], prefixes: str | Sequence[str]
    ) -> list[tuple[str, list[list[_Part]]]]:
        """Each text with the parts of its lines."""
        texts = [texts] if isinstance(texts, str) else texts
        prefixes = [prefixes] * len(texts) if isinstance(prefixes, str) else prefixes
        demands = [demands] * len(texts) if isinstance(demands, Demands) else demands
        each = zip(texts, prefixes, demands, strict=True)
        return [(text, self._lines(text, prefix, demanded)) for text, prefix, demanded in each]

    def _lines(self, text: str, prefix: str, demands: Demands) -> list[list[_Part]]:
        """The parts of each line; the first part of all has the prefix."""
        lines, start = [], 0
        for line in well_formed(text).split("\n"):
            lines.append(self._parts(line, start, demands))
            start += len(line) + 1
        first = next((line for line in lines if line), None)
        if first is not None:
            first[0] = first[0]._replace(job=first[0].job._replace(prefix=well_formed(prefix)))
        return lines

    def _parts(self, line: str, start: int, demands: Demands) -> list[_Part]:
        stripped = line.strip()
        start += line.find(stripped)
        cut = segments(stripped, self._fits, self.source_language) if stripped else []
        if len(cut) > 1:
            cut = around(demands.protection.spans(stripped), cut)
        starts = accumulate(map(len, cut), initial=start)
        return [
            _Part(Job(part.strip(), demands), place + len(part) - len(part.lstrip()), part[len(part.rstrip()) :])
            for part, place in zip(cut, starts, strict=False)
            if part.strip()
        ]

    def _fits(self, text: str) -> bool:
        return len(self.tokenizer.encode(text.strip())) < self.reach  # one is left for the end token

    def _put_together(
        self, text: str, lines: Sequence[Sequence[_Part]], found: Mapping[Job, Sequence[Found]]
    ) -> Translation:
        n_found = max((len(found[part.job]) for line in lines for part in line), default=1)
        candidates = tuple(self._candidate(lines, found, rank) for rank in range(n_found))
        parts = [part for line in lines for part in line]
        warnings = unknown_warnings(self.tokenizer, "".join(part.job.source for part in parts))
        if any(len(line) > 1 for line in lines):
            warnings.append(f"translated in parts, since the model reads {self.reach} tokens at once")
        if candidates[0].finish == "length":
            warnings.append("the translation did not come to an end and was cut")
        for part in parts:
            best = found[part.job][0]
            n_source, n_target = len(self.tokenizer.encode(part.job.source)), len(best.hypothesis.tokens)
            warnings += symptoms(part.job.source, best.text, n_source, n_target) if n_target else []
        warnings += [warning for outcome in candidates[0].outcomes for warning in outcome.warnings()]
        return Translation(text, candidates, tuple(dict.fromkeys(warnings)))

    def _candidate(
        self, lines: Sequence[Sequence[_Part]], found: Mapping[Job, Sequence[Found]], rank: int
    ) -> Candidate:
        """The translations of all parts that have this rank, or the last of a part that has fewer."""
        text, used, results = "", [], []
        for number, line in enumerate(lines):
            text += "\n" if number else ""
            for part in line:
                chosen = found[part.job][: rank + 1][-1]
                results += [outcome.moved(part.start, len(text)) for outcome in chosen.outcomes]
                text += chosen.text + part.gap
                used.append(chosen.hypothesis)
        return Candidate(
            text,
            fsum(hypothesis.log_prob for hypothesis in used),
            fsum(hypothesis.score for hypothesis in used),
            "length" if any(hypothesis.finish == "length" for hypothesis in used) else "end",
            tuple(piece for hypothesis in used for piece in self._pieces(hypothesis)),
            tuple(results),
        )

    def _pieces(self, hypothesis: Hypothesis) -> list[Piece]:
        ended = hypothesis.finish == "end" and hypothesis.log_probs
        texts = [*map(self.tokenizer.token_text, hypothesis.tokens), *([""] if ended else [])]
        tokens = [*hypothesis.tokens, *([self.tokenizer.end_id] if ended else [])]
        return [Piece(*each) for each in zip(texts, hypothesis.log_probs, tokens, strict=True)]
