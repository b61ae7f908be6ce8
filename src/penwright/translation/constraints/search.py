"""Constrained beam search for translations of segments. A batch holds segments of similar length."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch

from penwright.decoding.batches import TargetBatch, batches_by_length
from penwright.decoding.beam_search import beam_search
from penwright.decoding.constraints.term_automaton import ConstraintAutomaton
from penwright.decoding.engine import DecodeEngine
from penwright.decoding.hypotheses import BeamSettings, Extension, Hypothesis, Wanted, Watch
from penwright.decoding.sampling.topk import TokenSelector, masked_topk
from penwright.decoding.sampling.utf8 import Utf8Rules
from penwright.model import evaluating
from penwright.model.transformer import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.translation.alignment import TokenPair, coverage, cross_attention
from penwright.translation.constraints.protection import ProtectedSpan
from penwright.translation.constraints.requirements import (
    NO_DRAFT,
    AutomatonBuilder,
    Constraint,
    ConstraintResult,
    DraftReport,
    constraint_results,
    constraints_of,
)
from penwright.translation.constraints.revision import Revision, with_swapped
from penwright.translation.results import (
    ConstrainedSegment,
    Segment,
    SegmentResult,
    WantedSegment,
    longest_target,
    source_tokens,
)

MAX_LOSS = 2.0  # maximum loss of log-probability, in nats, when required words are swapped into a draft
BATCH_TOKENS = 4096  # maximum number of source tokens in a batch, padding included, times beam_size


class Searcher:
    """A search for the n best translations of each segment. The segments must fit the model."""

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer, engine: DecodeEngine | None = None):
        self._model, self._tokenizer, self._engine = model, tokenizer, engine
        self._revision = Revision(model, tokenizer, engine)

    def find(
        self,
        segments: Sequence[Segment],
        settings: BeamSettings,
        limit: int | None,
        watch: Watch | None = None,
        wanted: WantedSegment | None = None,
    ) -> dict[Segment, list[SegmentResult]]:
        """Return the distinct results of each segment, best first.

        The first search does not require the glossary words. If its draft misses some, their places in the draft are
        found, and the words are swapped in. If n_best is 1 and this hardly lowers the probability, the new draft is
        the result. Otherwise, the search runs again with all constraints.

        `watch` is called during both searches, with indices into the segments of the current one. Segments that are no
        longer `wanted` keep the results found so far.
        """
        copied = untranslated(segments)
        others = [segment for segment in segments if segment not in copied]
        unconstrained = self.search(list(map(self.soft_constraints, others)), settings, limit, watch, wanted)
        results = copied | dict(zip(others, unconstrained, strict=True))
        missed = [segment for segment in others if segment.constraints.is_hard and results[segment][0].missed]
        missed = [segment for segment in missed if wanted is None or wanted(segment)]
        drafts = self._revision.drafts(missed, [results[segment][0] for segment in missed])
        constrained = [self.all_constraints(segment, draft) for segment, draft in zip(missed, drafts, strict=True)]
        hypotheses = [results[segment][0].hypothesis for segment in missed]
        swapped = {
            each.segment: self._distinct(each, [hypothesis] if hypothesis else [])
            for each, hypothesis in zip(
                constrained,
                self._revision.swapped(constrained, hypotheses, settings.length_penalty, limit),
                strict=True,
            )
        }
        if settings.n_best == 1 and watch is None:
            results |= {
                segment: one for segment, one in swapped.items() if one and _is_as_good(one[0], results[segment][0])
            }
            constrained = [each for each in constrained if results[each.segment] is not swapped[each.segment]]
        for each, better in zip(constrained, self.search(constrained, settings, limit, watch, wanted), strict=True):
            results[each.segment] = with_swapped(better, swapped[each.segment])[: settings.n_best]
        return results

    @property
    def empty_automaton(self) -> ConstraintAutomaton:
        """An automaton without required terms."""
        return self._guides.nothing()

    @cached_property
    def _guides(self) -> AutomatonBuilder:
        return AutomatonBuilder(self._tokenizer)

    def soft_constraints(self, segment: Segment) -> ConstrainedSegment:
        """Constrain a segment only by its protected spans, its prefix, and optional glossary words."""
        constraints = constraints_of(segment.source, segment.constraints)
        enforced = [constraint for constraint in constraints if constraint.protected or not segment.constraints.is_hard]
        return self._constrained(segment, constraints, enforced, NO_DRAFT)

    def all_constraints(self, segment: Segment, draft: DraftReport = NO_DRAFT) -> ConstrainedSegment:
        """Constrain a segment by all its glossary words, its protected spans and its prefix."""
        constraints = constraints_of(segment.source, segment.constraints)
        return self._constrained(segment, constraints, constraints, draft)

    def _constrained(
        self, segment: Segment, constraints: Sequence[Constraint], enforced: Sequence[Constraint], draft: DraftReport
    ) -> ConstrainedSegment:
        guide = self._guides.guide(segment.source, enforced, segment.constraints.bias, draft) if enforced else None
        return ConstrainedSegment(
            segment, constraints, self._guides.beginning(segment.prefix, guide) if segment.prefix else guide, draft
        )

    def search(
        self,
        segments: Sequence[ConstrainedSegment],
        settings: BeamSettings,
        limit: int | None,
        watch: Watch | None = None,
        wanted: WantedSegment | None = None,
    ) -> list[list[SegmentResult]]:
        """Run a single search for all segments; return the distinct results of each, best first."""
        # keep all beams, because duplicate texts are dropped later
        several = settings.n_best > 1 or settings.coverage_penalty > 0
        wider = replace(settings, n_best=settings.beam_size) if several else settings
        tokens = [source_tokens(self._tokenizer, each.segment) for each in segments]
        distinct: list[list[SegmentResult]] = [[] for _ in segments]
        batches = batches_by_length([len(each) for each in tokens], BATCH_TOKENS // settings.beam_size)
        with evaluating(self._model), torch.inference_mode():
            for batch in batches:
                sources, members = [tokens[number] for number in batch], [segments[number] for number in batch]
                hypotheses = self._hypotheses(
                    sources, members, wider, limit, _in_batch(batch, watch), _by_number(members, wanted)
                )
                for number, n_best in zip(batch, hypotheses, strict=True):
                    ranked = self._by_coverage(tokens[number], n_best, settings.coverage_penalty)
                    distinct[number] = self._distinct(segments[number], ranked)[: settings.n_best]
        return distinct

    def _hypotheses(
        self,
        sources: Sequence[Sequence[int]],
        segments: Sequence[ConstrainedSegment],
        settings: BeamSettings,
        limit: int | None,
        watch: Watch | None,
        wanted: Wanted | None,
    ) -> list[list[Hypothesis]]:
        """Search for the translations of one batch of segments."""
        limits = [self._limit(len(source), each, limit) for source, each in zip(sources, segments, strict=True)]
        choose = self._engine.masked_topk if self._engine else masked_topk
        return beam_search(
            self.rows(sources, max(limits)),
            limits,
            settings,
            end_id=self._tokenizer.end_id,
            guides=[each.guide for each in segments],
            selector=TokenSelector(Utf8Rules.of(self._tokenizer, settings.banned, self._tokenizer.end_ids), choose),
            watch=watch,
            wanted=wanted,
        )

    def _by_coverage(
        self, source: Sequence[int], hypotheses: Sequence[Hypothesis], penalty: float
    ) -> Sequence[Hypothesis]:
        if penalty == 0:
            return hypotheses
        text = source[self._tokenizer.n_before_source : -1]
        pairs = [TokenPair(text, hypothesis.tokens) for hypothesis in hypotheses]
        maps = cross_attention(self._model, self._tokenizer, pairs)
        scored = [
            replace(hypothesis, score=hypothesis.score + penalty * coverage(each))
            for hypothesis, each in zip(hypotheses, maps, strict=True)
        ]
        return sorted(scored, key=lambda hypothesis: (hypothesis.finish != "end", -hypothesis.score))

    def rows(self, sources: Sequence[Sequence[int]], max_new_tokens: int) -> TargetBatch:
        """Encode a batch of sources, and return the batch of targets to decode."""
        return TargetBatch(
            self._model,
            sources,
            start_id=self._tokenizer.start_id,
            target_prefix=self._tokenizer.target_prefix,
            max_new_tokens=max_new_tokens,
            engine=self._engine,
        )

    def limit(self, n_source: int, guide: ConstraintAutomaton | None = None, asked_for: int | None = None) -> int:
        """Return the maximum length of a target, in tokens.

        Twice the source length is more than any language pair needs. The ratio varies most for short sources, so 20
        tokens are added. `asked_for` does not count the tokens of the prefix.
        """
        n_prefix, n_required = (len(guide.prefix), guide.start().prospects.needed) if guide else (0, 0)
        most = n_prefix + (asked_for or 2 * n_source + 20 + n_required)
        return min(most, longest_target(self._model, self._tokenizer))

    def _limit(self, n_source: int, constrained: ConstrainedSegment, asked_for: int | None) -> int:
        """Return the maximum length of a target, close to the length of the draft if there is a draft.

        Without this limit, the search favors long hypotheses, which spread the cost of a constraint over more tokens.
        """
        longest = self.limit(n_source, constrained.guide, asked_for)
        if constrained.draft.n_tokens is None or constrained.guide is None:
            return longest
        needed, n_tokens = constrained.guide.start().prospects.needed, constrained.draft.n_tokens
        return min(longest, n_tokens + max(4, n_tokens // 4) + needed)

    def _distinct(self, constrained: ConstrainedSegment, hypotheses: Sequence[Hypothesis]) -> list[SegmentResult]:
        texts: dict[str, SegmentResult] = {}
        for hypothesis in hypotheses:
            result = self.to_result(constrained, hypothesis)
            texts.setdefault(result.text, result)
        return list(texts.values())

    def to_result(self, constrained: ConstrainedSegment, hypothesis: Hypothesis) -> SegmentResult:
        """Return a hypothesis as text, with the results of its constraints."""
        text, results = constraint_results(
            constrained.segment.source,
            constrained.constraints,
            hypothesis,
            self._tokenizer,
            constrained.draft,
            constrained.segment.prefix,
        )
        return SegmentResult(text, hypothesis, constrained.constraints, results)


def _in_batch(batch: Sequence[int], watch: Watch | None) -> Watch | None:
    """Wrap `watch` for one batch: convert indices in the batch into indices among all segments."""
    if watch is None:
        return None

    def _notify(index: int, extension: Extension) -> None:
        watch(batch[index], extension)

    return _notify


def _by_number(segments: Sequence[ConstrainedSegment], wanted: WantedSegment | None) -> Wanted | None:
    return None if wanted is None else lambda number: wanted(segments[number].segment)


def _is_as_good(swapped: SegmentResult, draft: SegmentResult) -> bool:
    """Return whether the draft with swapped-in words has all required words and is nearly as likely as the original.

    In that case, another search would not find a much better translation.
    """
    return not swapped.missed and swapped.hypothesis.log_prob > draft.hypothesis.log_prob - MAX_LOSS


def untranslated(segments: Sequence[Segment]) -> dict[Segment, list[SegmentResult]]:
    """Return the segments that are a single protected span, with their source as the only result."""
    return {segment: _untranslated(segment) for segment in segments if _is_protected(segment)}


def _is_protected(segment: Segment) -> bool:
    return not segment.prefix and segment.constraints.protection.spans(segment.source) == [
        ProtectedSpan(0, len(segment.source))
    ]


def _untranslated(segment: Segment) -> list[SegmentResult]:
    """Return the source itself as the only result."""
    constraint = Constraint(0, len(segment.source), (segment.source,), True)
    result = ConstraintResult(
        segment.source, 0, len(segment.source), True, "found", segment.source, 0, len(segment.source)
    )
    return [SegmentResult(segment.source, Hypothesis((), 0.0, 0.0, "end"), [constraint], [result])]
