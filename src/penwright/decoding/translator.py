"""Text in, translation out: an encoder-decoder with its tokenizer. One line in is one line out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum
from typing import Literal, NamedTuple

from penwright.config import DecodingSettings
from penwright.decoding.beam import BeamSettings, Hypothesis
from penwright.decoding.demands import Demands, Outcome
from penwright.decoding.searching import Found, Job, Searcher
from penwright.decoding.segments import around, segments
from penwright.decoding.symptoms import symptoms
from penwright.decoding.unknown import never_written, unknown_warnings
from penwright.errors import UsageError
from penwright.models import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import well_formed

USUAL_DEMANDS = Demands()  # no glossary; what Protection names stays as it is
SHORTEST_REACH = 5  # a character can be four bytes, and there is the end token


class Piece(NamedTuple):
    """A token of a translation."""

    text: str
    log_prob: float  # in nats


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


class _Part(NamedTuple):
    """A job, where it stands in the whole text, and the white space after it."""

    job: Job
    start: int
    gap: str


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
        self.context_length = model.settings.context_length
        self.reach = min(self.context_length, max(max_source_tokens or self.context_length, SHORTEST_REACH))

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
    ) -> list[Translation]:
        """A translation for each text, in their order; what is not given comes from the defaults.

        Line breaks stay where they are, and a blank line gives an empty one. Demands and prefixes are for
        all texts, or one for each. A translation begins with its prefix; one that ends in white space ends a word.
        """
        defaults = self.defaults
        settings = BeamSettings(
            beam_size=defaults.beam_size if beam_size is None else beam_size,
            n_best=n_best,
            length_penalty=defaults.length_penalty if length_penalty is None else length_penalty,
            banned=never_written(self.tokenizer),
        )
        if not 1 <= n_best <= settings.beam_size:
            raise UsageError(f"n_best ({n_best}) must be between 1 and beam_size ({settings.beam_size})")
        texts = [texts] if isinstance(texts, str) else texts
        prefixes = [prefixes] * len(texts) if isinstance(prefixes, str) else prefixes
        demands = [demands] * len(texts) if isinstance(demands, Demands) else demands
        lines = [self._lines(*each) for each in zip(texts, prefixes, demands, strict=True)]
        jobs = dict.fromkeys(part.job for text in lines for line in text for part in line)
        limit = max_new_tokens or defaults.max_new_tokens
        found = Searcher(self.model, self.tokenizer).find(list(jobs), settings, limit)
        return [self._put_together(text, parts, found) for text, parts in zip(texts, lines, strict=True)]

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
        texts = [self.tokenizer.token_text(token) for token in hypothesis.tokens]
        texts += [""] if hypothesis.finish == "end" and hypothesis.log_probs else []
        return [Piece(*each) for each in zip(texts, hypothesis.log_probs, strict=True)]
