"""Text in, translation out: an encoder-decoder with its tokenizer. One line in is one line out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Literal, NamedTuple

import torch

from penwright.config import DecodingSettings
from penwright.decoding.beam import BeamSettings, Hypothesis, beam_search
from penwright.decoding.decodable import Translating, evaluating
from penwright.decoding.padding import batches_by_length
from penwright.decoding.segments import segments
from penwright.decoding.step import Stepper
from penwright.decoding.unknown import never_written, unknown_warnings
from penwright.errors import UsageError
from penwright.models import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import well_formed

SHORTEST_REACH = 5  # a character can be four bytes, and there is the end token
BATCH_TOKENS = 4096  # of the sources of one batch, with padding, times beam_size


@dataclass(frozen=True)
class Candidate:
    """One way to translate a whole text; of a text in parts, log-probabilities and scores are sums over the parts."""

    text: str
    log_prob: float  # in nats
    score: float  # what candidates are ranked by: log-probability / length ** length_penalty
    finish: Literal["end", "length"]  # "length": a part was cut because it did not come to an end


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
    """What is translated in one go, and the white space after it."""

    source: str
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
        self._stepper = Stepper(model)
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
    ) -> list[Translation]:
        """A translation for each text, in their order; what is not given comes from the defaults.

        Line breaks stay where they are, and a blank line gives an empty one.
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
        lines = [[self._parts(line) for line in well_formed(text).split("\n")] for text in texts]
        sources = dict.fromkeys(part.source for text in lines for line in text for part in line)
        found = self._search(list(sources), settings, max_new_tokens or defaults.max_new_tokens)
        return [self._put_together(text, parts, found) for text, parts in zip(texts, lines, strict=True)]

    def _parts(self, line: str) -> list[_Part]:
        line = line.strip()
        cut = segments(line, self._fits, self.source_language) if line else []
        return [_Part(part.strip(), part[len(part.rstrip()) :]) for part in cut if part.strip()]

    def _fits(self, text: str) -> bool:
        return len(self.tokenizer.encode(text.strip())) < self.reach  # one is left for the end token

    def _search(
        self, sources: Sequence[str], settings: BeamSettings, max_new_tokens: int | None
    ) -> Mapping[str, list[Hypothesis]]:
        """The hypotheses of each source, each searched once however often it occurs."""
        tokens = [[*self.tokenizer.encode(source), self.tokenizer.end_id] for source in sources]
        found: dict[str, list[Hypothesis]] = {}
        with evaluating(self.model), torch.inference_mode():
            for batch in batches_by_length([len(t) for t in tokens], BATCH_TOKENS // settings.beam_size):
                limits = [self._limit(len(tokens[number]), max_new_tokens) for number in batch]
                model = Translating(
                    self.model,
                    [tokens[number] for number in batch],
                    start_id=self.tokenizer.start_id,
                    max_new_tokens=max(limits),
                    stepper=self._stepper,
                )
                hypotheses = beam_search(model, limits, settings, end_id=self.tokenizer.end_id)
                found |= zip([sources[number] for number in batch], hypotheses, strict=True)
        return found

    def _limit(self, n_source: int, max_new_tokens: int | None) -> int:
        """The longest target: twice the source is more than any language pair needs, and short ones vary most."""
        return min(max_new_tokens or 2 * n_source + 20, self.context_length)

    def _put_together(self, text: str, lines: list[list[_Part]], found: Mapping[str, list[Hypothesis]]) -> Translation:
        n_found = max((len(found[part.source]) for line in lines for part in line), default=1)
        candidates = tuple(self._candidate(lines, found, rank) for rank in range(n_found))
        warnings = unknown_warnings(self.tokenizer, "".join(part.source for line in lines for part in line))
        if any(len(line) > 1 for line in lines):
            warnings.append(f"translated in parts, since the model reads {self.reach} tokens at once")
        if candidates[0].finish == "length":
            warnings.append("the translation did not come to an end and was cut")
        return Translation(text, candidates, tuple(warnings))

    def _candidate(self, lines: list[list[_Part]], found: Mapping[str, list[Hypothesis]], rank: int) -> Candidate:
        """The translations of all parts that have this rank, or the last of a part that has fewer."""
        used: list[Hypothesis] = []
        texts = []
        for line in lines:
            chosen = [found[part.source][: rank + 1][-1] for part in line]
            words = [self.tokenizer.decode(hypothesis.tokens) for hypothesis in chosen]
            texts.append("".join(word + part.gap for word, part in zip(words, line, strict=True)))
            used += chosen
        return Candidate(
            "\n".join(texts),
            fsum(hypothesis.log_prob for hypothesis in used),
            fsum(hypothesis.score for hypothesis in used),
            "length" if any(hypothesis.finish == "length" for hypothesis in used) else "end",
        )
