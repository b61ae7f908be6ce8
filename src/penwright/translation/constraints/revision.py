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

from penwright.decoding.batches import TargetBatch, batches_by_length, evaluating, right_padded
from penwright.decoding.engine import DecodeEngine
from penwright.decoding.hypotheses import Hypothesis
from penwright.model.transformer import EncoderDecoder
from penwright.text import WITHOUT_SPACES
from penwright.tokenizers import Tokenizer
from penwright.translation.constraints.glossary import capitalize
from penwright.translation.constraints.requirements import Constraint, DraftReport, TargetWord, tokens_before
from penwright.translation.results import ConstrainedSegment, Segment, SegmentResult, source_tokens

BATCH_TOKENS = 2048  # maximum number of target tokens per batch, padding included; limits the memory for logits
MIN_LOSS = 1.0  # minimum drop in log-probability, in nats, of the word that translates hidden tokens


class HiddenSource(NamedTuple):
    """A sentence pair in which some source tokens are hidden from the model."""

    source: Sequence[int]  # source tokens, including the end token
    target: Sequence[int]  # target tokens, without the start token
    hidden: range


class Scorer:
    """A scorer of given targets that uses the optimized decoding steps of beam search."""

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer, stepper: DecodeEngine | None = None):
        self._model, self.tokenizer, self._stepper = model, tokenizer, stepper or DecodeEngine(model)

    @torch.inference_mode()
    def log_probs(self, pairs: Sequence[HiddenSource]) -> list[list[float]]:
        """Return the log-probability of each target token, in nats."""
        found: list[list[float]] = [[] for _ in pairs]
        with evaluating(self._model) as device:
            for batch in batches_by_length([max(len(p.source), len(p.target)) for p in pairs], BATCH_TOKENS):
                chosen = [pairs[number] for number in batch]
                targets = right_padded([pair.target for pair in chosen], device).tokens
                rows = TargetBatch(
                    self._model,
                    [pair.source for pair in chosen],
                    start_id=self.tokenizer.start_id,
                    target_prefix=self.tokenizer.target_prefix,
                    max_new_tokens=targets.shape[1],
                    stepper=self._stepper,
                    hidden=[pair.hidden for pair in chosen],
                )
                for number, row in zip(batch, self._along(rows, targets).tolist(), strict=True):
                    found[number] = row[: len(pairs[number].target)]
        return found

    def _along(self, rows: TargetBatch, targets: Int[Tensor, "rows length"]) -> Float[Tensor, "rows length"]:
        """Return the log-probability of each target token, padding included."""
        found = torch.empty(targets.shape, device=targets.device)
        for n, tokens in enumerate(targets.T):
            logits = (rows.step(targets[:, n - 1]) if n else rows.first()).float()
            found[:, n] = logits.gather(1, tokens[:, None])[:, 0] - self._stepper.normalisers(logits)
        return found


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
    blind = scorer.log_probs(pairs)
    found: list[TargetWord | None] = []
    for pair, seeing, hiding in zip(pairs, seen, blind, strict=True):
        lost = [one - other for one, other in zip(seeing, hiding, strict=True)]
        words = [(sum(lost[w.first : w.first + w.length]), w) for w in words_of(pair.target, scorer.tokenizer)]
        loss, word = max(words, default=(0.0, None), key=lambda each: each[0])
        found.append(word if loss > MIN_LOSS else None)
    return found


class Revision:
    """A reviser of drafts, which uses the scores of the model that generated them."""

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer, stepper: DecodeEngine | None = None):
        self._model, self._tokenizer, self._scorer = model, tokenizer, Scorer(model, tokenizer, stepper)

    def drafts(self, jobs: Sequence[Segment], found: Sequence[SegmentResult]) -> list[DraftReport]:
        """Return a report on each draft: the glossary words that it lacks, and the words that it has instead."""
        targets = [each.hypothesis.tokens for each in found]
        missed = [each.missed for each in found]
        pairs = [
            HiddenSource(
                self._tokenizer.source(self._tokenizer.encode(job.source)), target, self._tokens_of(job.source, wish)
            )
            for job, target, wishes in zip(jobs, targets, missed, strict=True)
            for wish in wishes
        ]
        seen = [each.hypothesis.log_probs[: len(each.hypothesis.tokens)] for each in found for _ in each.missed]
        words = iter(replaced_words(self._scorer, pairs, seen))
        return [
            _draft({wish: next(words) for wish in wishes}, words_of(target, self._tokenizer), each)
            for target, wishes, each in zip(targets, missed, found, strict=True)
        ]

    def swapped(
        self,
        asked: Sequence[ConstrainedSegment],
        written: Sequence[Hypothesis],
        length_penalty: float,
        limit: int | None,
    ) -> list[Hypothesis | None]:
        """Swap required words into each draft; return None for a draft in which the place of a word is unknown.

        `limit` is the maximum length in tokens, end token included.
        """
        longest = min(limit or self._model.settings.context_length, self._model.settings.context_length)
        end = self._tokenizer.end_id
        targets = [self._swap(each, hypothesis.tokens) for each, hypothesis in zip(asked, written, strict=True)]
        targets = [target if len(target) < longest else [] for target in targets]
        pairs = [
            HiddenSource(source_tokens(self._tokenizer, each.segment), [*target, end], range(0))
            for each, target in zip(asked, targets, strict=True)
            if target
        ]
        scored = iter(self._scorer.log_probs(pairs))
        return [scored_hypothesis(target, next(scored), length_penalty) if target else None for target in targets]

    def _swap(self, asked: ConstrainedSegment, tokens: Sequence[int]) -> list[int]:
        """Return the tokens with required words swapped in; [] if a place is unknown, used twice or in the prefix."""
        spots = asked.draft.spots
        n_given = len(asked.guide.prefix) if asked.guide else 0
        if (
            any(word.first < n_given for _, word in spots)
            or len(spots) < len(asked.draft.missed)
            or len({word.first for _, word in spots}) < len(spots)
        ):
            return []
        swapped = list(tokens)
        for wish, word in sorted(spots, key=lambda spot: -spot[1].first):
            begins = wish.follows_case and not word.first
            form = capitalize(wish.forms[0]) if begins else wish.forms[0]
            new = self._tokenizer.target.encode(f" {form}" if word.first else form)
            swapped[word.first : word.first + word.length] = new
        return swapped

    def _tokens_of(self, source: str, wish: Constraint) -> range:
        return range(
            tokens_before(self._tokenizer, source, wish.start), tokens_before(self._tokenizer, source, wish.end)
        )


def _draft(
    standing_for: Mapping[Constraint, TargetWord | None], words: Sequence[TargetWord], written: SegmentResult
) -> DraftReport:
    """Return the report on one draft.

    Words of the draft that are replaced must be avoided, unless they occur more than once or are themselves required.
    """
    found = {wish: word for wish, word in standing_for.items() if word is not None}
    wished = {form.casefold() for wish in written.constraints for form in wish.forms}
    times = Counter(word.text.casefold() for word in words)
    unwanted = {w.text for w in found.values() if times[w.text.casefold()] == 1 and w.text.casefold() not in wished}
    return DraftReport(
        tuple(found.items()),
        sorted(unwanted),
        frozenset(wish.forms for wish in standing_for),
        len(written.hypothesis.tokens) + 1,
    )


def with_swapped(led: Sequence[SegmentResult], swapped: Sequence[SegmentResult]) -> list[SegmentResult]:
    """Return the results. The draft with swapped-in words comes first if it is likelier than all constrained results.

    Log-probabilities are compared without a length penalty, since the hypotheses of a poor search tend to be too long.
    """
    sure = [one for one in swapped if not one.missed]
    first = [one for one in sure if led[0].missed or one.hypothesis.log_prob > led[0].hypothesis.log_prob]
    return [*first, *(one for one in led if one.text not in {other.text for other in first})]


def scored_hypothesis(tokens: Sequence[int], log_probs: Sequence[float], length_penalty: float) -> Hypothesis:
    """Build a finished hypothesis from its tokens and their log-probabilities."""
    total = fsum(log_probs)
    return Hypothesis(tuple(tokens), total, total / len(log_probs) ** length_penalty, "end", tuple(log_probs))
