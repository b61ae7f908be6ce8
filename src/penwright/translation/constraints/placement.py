"""Placement of required words that a model does not generate by itself: each one replaces a word of the draft.

When a term is hidden from the model, the word of the draft that loses the most probability is the translation of the
term (after Li et al. 2019, "On the Word Alignment from Neural Machine Translation").
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from penwright.decoding.batches import TargetBatch, batches_by_length, evaluating, right_padded
from penwright.decoding.engine import DecodeEngine
from penwright.model.encoder_decoder import EncoderDecoder
from penwright.text import WITHOUT_SPACES
from penwright.tokenizers import Tokenizer

BATCH_TOKENS = 2048  # maximum number of target tokens per batch, padding included; limits the memory for logits
MIN_LOSS = 1.0  # minimum loss of log-probability, in nats, for a word that translates hidden tokens


class HiddenSource(NamedTuple):
    """A sentence pair in which some source tokens are hidden from the model."""

    source: Sequence[int]  # source tokens, including the end token
    target: Sequence[int]  # target tokens, without the start token
    hidden: range


class TargetWord(NamedTuple):
    """A word of a target sentence, and its tokens."""

    text: str
    first: int  # index of the word's first token
    length: int


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
