"""Ways to find alternative translations: other next words, penalties on tokens of earlier results, and sampling."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
import torch

from penwright.config import DecodingSettings
from penwright.decoding.batches import TargetBatch, batches_by_length, right_padded
from penwright.decoding.beam_search import beam_search
from penwright.decoding.engine import DecodeEngine
from penwright.decoding.hypotheses import BeamSettings, Hypothesis
from penwright.decoding.sampling.logits_process import NEG_INF, History, Logits
from penwright.decoding.sampling.sampler import RowRng, Sampling
from penwright.decoding.sampling.topk import MaskedTopK, TokenSelector
from penwright.decoding.sampling.utf8 import Situations, Utf8Rules
from penwright.errors import UsageError
from penwright.model import evaluating
from penwright.model.transformer import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.translation.constraints.search import BATCH_TOKENS, Searcher, untranslated
from penwright.translation.results import ConstrainedSegment, Segment, SegmentResult, source_tokens


class TokenSampler:
    """A sampler of the next tokens, which replaces top-k selection in a search with a single beam."""

    def __init__(self, sampling: Sampling, rng: RowRng):
        self._sampling, self._rng = sampling, rng
        self._history: History | None = None

    def choose(self, logits: Logits, utf8_rules: Utf8Rules, situations: Situations, _: int) -> MaskedTopK:
        """Draw the next token of each row; mask forbidden logits in place."""
        logsumexp = logits.logsumexp(-1)
        utf8_rules.forbid(logits, situations)
        if self._sampling.uses_history and self._history is None:
            self._history = History([[]] * len(logits), logits)
        tokens = self._sampling.choose(logits, self._history, self._rng)
        if self._history is not None:
            self._history.push(tokens)
        return MaskedTopK(logits.gather(1, tokens[:, None]), tokens[:, None], logsumexp)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the state of these rows, in this order."""
        for part in (self._rng, self._history):
            if part is not None:
                part.select(rows)


class AlternativeSearch:
    """A search for alternative translations."""

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer, engine: DecodeEngine | None = None):
        self._model, self._tokenizer = model, tokenizer
        self._searcher = Searcher(model, tokenizer, engine)

    @torch.inference_mode()
    def complete_prefix(self, segment: Segment, n: int, settings: BeamSettings) -> list[SegmentResult]:
        """Return the best translation for each of the `n` most likely tokens after the prefix, most likely first."""
        constrained = self._searcher.all_constraints(segment)
        guide = constrained.guide or self._searcher.empty_automaton
        source = source_tokens(self._tokenizer, segment)
        with evaluating(self._model) as device:
            before = (self._tokenizer.start_id, *self._tokenizer.target_prefix)
            target = torch.tensor([[*before, *guide.prefix]], device=device)
            hidden = self._model.hidden(target, self._model.encode(*right_padded([source], device)))
            logits = self._model.output(hidden[:, -1])[0]
        utf8_rules, limit = self._utf8_rules(settings.banned), self._searcher.limit(len(source), guide)
        utf8_rules.forbid(logits[None], utf8_rules.situations(np.zeros(1, np.uint8), np.array([limit])))
        logits[self._tokenizer.end_id] = NEG_INF
        if guide.whole_prefix:
            logits[~guide.borders.ends.to(logits.device)] = NEG_INF
        tokens = logits.topk(min(n, int((logits > NEG_INF).sum()))).indices.tolist()
        guides = [replace(guide, prefix=(*guide.prefix, token), whole_prefix=False) for token in tokens]
        results = self._searcher.search([constrained._replace(guide=extended) for extended in guides], settings, None)
        return [best[0] for best in results]

    def diverse(
        self, segments: Sequence[Segment], n: int, strength: float, settings: BeamSettings, max_new_tokens: int | None
    ) -> dict[Segment, list[SegmentResult]]:
        """Return up to `n` different translations of each segment.

        The translations are found one after another. A token is penalized by `strength` nats for each earlier
        translation that has it at the same step (after Vijayakumar et al. 2018).
        """
        _require_some(n)
        copied = untranslated(segments)
        segments = [segment for segment in segments if segment not in copied]
        constrained = list(map(self._searcher.all_constraints, segments))
        written: list[list[SegmentResult]] = [[] for _ in segments]
        for _ in range(n):
            penalized = [
                self._discouraged(each, before, strength) for each, before in zip(constrained, written, strict=True)
            ]
            for results, before in zip(
                self._searcher.search(penalized, settings, max_new_tokens), written, strict=True
            ):
                before.append(results[0])
        distinct = [list({results.text: results for results in texts}.values()) for texts in written]
        return copied | dict(zip(segments, distinct, strict=True))

    def _discouraged(
        self, constrained: ConstrainedSegment, before: Sequence[SegmentResult], strength: float
    ) -> ConstrainedSegment:
        """Return the segment with penalties for tokens of earlier translations, at the steps where they occurred."""
        end = self._tokenizer.end_id
        steps = zip_longest(*((*result.hypothesis.tokens, end) for result in before), fillvalue=end)
        costs = [{token: strength * step.count(token) for token in step} for step in steps]
        return constrained._replace(
            guide=replace(constrained.guide or self._searcher.empty_automaton, discouraged=costs)
        )

    @torch.inference_mode()
    def sample(
        self, segments: Sequence[Segment], sampling: Sampling, settings: DecodingSettings, n: int
    ) -> dict[Segment, list[SegmentResult]]:
        """Sample `n` translations of each segment.

        The same seed gives the same translations, whether a segment is translated alone or in a batch.
        """
        _require_some(n)
        results = untranslated(segments)
        segments = [segment for segment in segments if segment not in results]
        tokens = [source_tokens(self._tokenizer, segment) for segment in segments]
        with evaluating(self._model):
            for batch in batches_by_length([len(t) for t in tokens], BATCH_TOKENS // n):
                longest = settings.max_new_tokens
                limits = [self._searcher.limit(len(tokens[k]), asked_for=longest) for k in batch for _ in range(n)]
                rows = self._searcher.rows([tokens[number] for number in batch for _ in range(n)], max(limits))
                rng = RowRng(settings.seed, [*range(n)] * len(batch))
                sampled = iter(self._draw(rows, sampling, rng, limits))
                for number in batch:
                    constrained = self._searcher.soft_constraints(segments[number])
                    results[segments[number]] = [self._searcher.to_result(constrained, next(sampled)) for _ in range(n)]
        return results

    def _draw(self, rows: TargetBatch, sampling: Sampling, rng: RowRng, limits: Sequence[int]) -> list[Hypothesis]:
        """Sample a translation for each row: run a beam search with one beam, and draw its tokens at random."""
        sampler = TokenSampler(sampling, rng)
        selector = TokenSelector(self._utf8_rules(sampling.banned), sampler.choose, sampler.select)
        hypotheses = beam_search(rows, limits, BeamSettings(1), end_id=self._tokenizer.end_id, selector=selector)
        return [best for (best,) in hypotheses]

    def _utf8_rules(self, banned: tuple[int, ...]) -> Utf8Rules:
        return Utf8Rules.of(self._tokenizer, banned, self._tokenizer.end_ids)


def _require_some(n: int) -> None:
    if n < 1:
        raise UsageError(f"the number of translations ({n}) must be at least 1")
