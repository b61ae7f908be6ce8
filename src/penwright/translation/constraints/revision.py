"""Revision of drafts that miss glossary words: find where the words belong, and swap them in.

When a term is hidden from the model, the word of the draft that loses the most probability is the translation of the
term (after Li et al. 2019, "On the Word Alignment from Neural Machine Translation").
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import fsum
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from penwright.decoding.batches import TargetBatch, batches_by_length, right_padded
from penwright.decoding.engine import DecodeEngine
from penwright.decoding.hypotheses import Hypothesis
from penwright.model import evaluating
from penwright.model.transformer import EncoderDecoder
from penwright.text import WITHOUT_SPACES
from penwright.tokenizers import Tokenizer
from penwright.translation.constraints.glossary import capitalize
from penwright.translation.constraints.requirements import Constraint, DraftReport, TargetWord, tokens_before
from penwright.translation.results import (
    ConstrainedSegment,
    Segment,
    SegmentResult,
    longest_target,
    source_text,
    source_tokens,
)

BATCH_TOKENS = 2048  # maximum number of target tokens per batch, padding included; limits the memory for logits
MIN_LOSS = 1.0  # minimum drop in a word's log-probability, in nats, when the tokens that it translates are hidden


class HiddenSource(NamedTuple):
    """A sentence pair in which some source tokens are hidden from the model."""

    source: Sequence[int]  # source tokens, including the end token
    target: Sequence[int]  # target tokens, without the start token
    hidden: range


class Scorer:
    """A scorer of given translations that uses the optimized decoding steps of beam search."""

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer, engine: DecodeEngine | None = None):
        self._model, self.tokenizer, self._engine = model, tokenizer, engine or DecodeEngine(model)

    @torch.inference_mode()
    def log_probs(self, pairs: Sequence[HiddenSource]) -> list[list[float]]:
        """Return the log-probability of each target token, in nats."""
        log_probs: list[list[float]] = [[] for _ in pairs]
        with evaluating(self._model) as device:
            for batch in batches_by_length([max(len(p.source), len(p.target)) for p in pairs], BATCH_TOKENS):
                members = [pairs[number] for number in batch]
                targets = right_padded([pair.target for pair in members], device).tokens
                rows = TargetBatch(
                    self._model,
                    [pair.source for pair in members],
                    start_id=self.tokenizer.start_id,
                    target_prefix=self.tokenizer.target_prefix,
                    max_new_tokens=targets.shape[1],
                    engine=self._engine,
                    masked=[pair.hidden for pair in members],
                )
                for number, row in zip(batch, self._along(rows, targets).tolist(), strict=True):
                    log_probs[number] = row[: len(pairs[number].target)]
        return log_probs

    def _along(self, rows: TargetBatch, targets: Int[Tensor, "rows length"]) -> Float[Tensor, "rows length"]:
        """Return the log-probability of each target token, padding included."""
        log_probs = torch.empty(targets.shape, device=targets.device)
        for n, tokens in enumerate(targets.T):
            logits = (rows.step(targets[:, n - 1]) if n else rows.first()).float()
            log_probs[:, n] = logits.gather(1, tokens[:, None])[:, 0] - self._engine.logsumexp(logits)
        return log_probs


def words_of(tokens: Sequence[int], tokenizer: Tokenizer) -> list[TargetWord]:
    """Return the words of a target, without punctuation."""
    text, words, start = "", [], 0
    for number, token in enumerate(tokens):
        piece = tokenizer.token_bytes(token).decode("utf-8", "ignore")
        if piece[:1].isspace() or (piece and not piece[0].isalnum()) or WITHOUT_SPACES.match(piece):
            words.append(TargetWord(text.strip(), start, number - start))
            text, start = "", number
        text += piece
    words.append(TargetWord(text.strip(), start, len(tokens) - start))
    return [word for word in words if word.text and word.text[0].isalnum()]


def replaced_words(
    scorer: Scorer, pairs: Sequence[HiddenSource], seen: Sequence[Sequence[float]]
) -> list[TargetWord | None]:
    """Return for each pair the target word that translates the hidden tokens, or None if no word is clearly best.

    `seen` holds the log-probabilities of the target tokens in nats, computed without hiding source tokens.
    """
    hidden = scorer.log_probs(pairs)
    replaced: list[TargetWord | None] = []
    for pair, before, after in zip(pairs, seen, hidden, strict=True):
        losses = [one - other for one, other in zip(before, after, strict=True)]
        words = [(sum(losses[w.first : w.first + w.length]), w) for w in words_of(pair.target, scorer.tokenizer)]
        loss, word = max(words, default=(0.0, None), key=lambda each: each[0])
        replaced.append(word if loss > MIN_LOSS else None)
    return replaced


class Revision:
    """A reviser of drafts, which uses the scores of the model that generated them."""

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer, engine: DecodeEngine | None = None):
        self._model, self._tokenizer, self._scorer = model, tokenizer, Scorer(model, tokenizer, engine)

    def drafts(self, segments: Sequence[Segment], results: Sequence[SegmentResult]) -> list[DraftReport]:
        """Return a report on each draft: the glossary words that it lacks, and the words that it has instead."""
        targets = [result.hypothesis.tokens for result in results]
        missed = [result.missed for result in results]
        pairs = [
            HiddenSource(source_tokens(self._tokenizer, segment), target, self._tokens_of(segment, constraint))
            for segment, target, constraints in zip(segments, targets, missed, strict=True)
            for constraint in constraints
        ]
        seen = [
            result.hypothesis.log_probs[: len(result.hypothesis.tokens)] for result in results for _ in result.missed
        ]
        words = iter(replaced_words(self._scorer, pairs, seen))
        return [
            _draft(
                {constraint: self._after_prefix(segment, next(words)) for constraint in constraints},
                words_of(target, self._tokenizer),
                result,
            )
            for segment, target, constraints, result in zip(segments, targets, missed, results, strict=True)
        ]

    def _after_prefix(self, segment: Segment, word: TargetWord | None) -> TargetWord | None:
        """Return the word, or None if it is in the prefix, which must not be replaced."""
        n_prefix = len(self._tokenizer.target.encode(segment.prefix.strip()))
        return word if word is not None and word.first >= n_prefix else None

    def swapped(
        self,
        constrained: Sequence[ConstrainedSegment],
        drafts: Sequence[Hypothesis],
        length_penalty: float,
        limit: int | None,
    ) -> list[Hypothesis | None]:
        """Swap required words into each draft; return None for a draft in which the place of a word is unknown.

        `limit` is the maximum length in tokens, end token included.
        """
        longest = longest_target(self._model, self._tokenizer)
        longest = min(limit or longest, longest)
        end = self._tokenizer.end_id
        targets = [
            self._swap(segment, hypothesis.tokens) for segment, hypothesis in zip(constrained, drafts, strict=True)
        ]
        targets = [target if len(target) < longest else [] for target in targets]
        pairs = [
            HiddenSource(source_tokens(self._tokenizer, each.segment), [*target, end], range(0))
            for each, target in zip(constrained, targets, strict=True)
            if target
        ]
        scored = iter(self._scorer.log_probs(pairs))
        return [scored_hypothesis(target, next(scored), length_penalty) if target else None for target in targets]

    def _swap(self, constrained: ConstrainedSegment, tokens: Sequence[int]) -> list[int]:
        """Swap required words into the tokens. Return [] if a word's place is unknown or used twice."""
        spots = constrained.draft.spots
        if len(spots) < len(constrained.draft.missed) or len({word.first for _, word in spots}) < len(spots):
            return []
        swapped = list(tokens)
        for constraint, word in sorted(spots, key=lambda spot: -spot[1].first):
            is_first = constraint.follows_case and not word.first
            form = capitalize(constraint.forms[0]) if is_first else constraint.forms[0]
            new = self._tokenizer.target.encode(f" {form}" if word.first else form)
            swapped[word.first : word.first + word.length] = new
        return swapped

    def _tokens_of(self, segment: Segment, constraint: Constraint) -> range:
        """Return the source tokens of a term, or of the hint in its place."""
        before, through = (source_text(segment, end) for end in (constraint.start, constraint.end))
        return range(
            tokens_before(self._tokenizer, before, len(before)), tokens_before(self._tokenizer, through, len(through))
        )


def _draft(
    replaced: Mapping[Constraint, TargetWord | None], words: Sequence[TargetWord], draft: SegmentResult
) -> DraftReport:
    """Return the report on one draft.

    The next search must avoid each replaced word, unless it occurs several times in the draft or is itself required.
    """
    located = {constraint: word for constraint, word in replaced.items() if word is not None}
    required = {form.casefold() for constraint in draft.constraints for form in constraint.forms}
    counts = Counter(word.text.casefold() for word in words)
    unwanted = {
        w.text for w in located.values() if counts[w.text.casefold()] == 1 and w.text.casefold() not in required
    }
    return DraftReport(
        tuple(located.items()),
        sorted(unwanted),
        frozenset(constraint.forms for constraint in replaced),
        len(draft.hypothesis.tokens) + 1,
    )


def with_swapped(constrained: Sequence[SegmentResult], swapped: Sequence[SegmentResult]) -> list[SegmentResult]:
    """Return the results. The draft with swapped-in words comes first if it is likelier than all constrained results.

    Log-probabilities are compared without a length penalty, since a constrained search tends to find long hypotheses.
    """
    complete = [result for result in swapped if not result.missed]
    likelier = [
        result
        for result in complete
        if constrained[0].missed or result.hypothesis.log_prob > constrained[0].hypothesis.log_prob
    ]
    return [*likelier, *(result for result in constrained if result.text not in {other.text for other in likelier})]


def scored_hypothesis(tokens: Sequence[int], log_probs: Sequence[float], length_penalty: float) -> Hypothesis:
    """Build a finished hypothesis from its tokens and their log-probabilities."""
    total = fsum(log_probs)
    return Hypothesis(tuple(tokens), total, total / len(log_probs) ** length_penalty, "end", tuple(log_probs))
