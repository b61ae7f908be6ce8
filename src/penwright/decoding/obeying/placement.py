"""Where a wished word belongs that a model would not write by itself: in place of the word that it writes instead.

Hide the term from the model, and the word of its own draft that it then least expects is the one that stood for it
(after Li et al. 2019, "On the Word Alignment from Neural Machine Translation").
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from penwright.data.scripts import WITHOUT_SPACES
from penwright.decoding.padding import batches_by_length, right_padded
from penwright.models import EncoderDecoder
from penwright.tokenizers import Tokenizer

BATCH_TOKENS = 2048  # of targets, with padding: each has the scores of a whole vocabulary
CLEAR = 1.0  # nats that a word must lose to count as the translation of what was hidden


class Hiding(NamedTuple):
    """A source and a target, with some of the source's tokens out of sight."""

    source: Sequence[int]  # with the end token
    target: Sequence[int]  # without start and end token
    hidden: range


class Word(NamedTuple):
    """A word of a target."""

    text: str
    first: int  # of its tokens
    length: int


@torch.inference_mode()
def target_log_probs(model: EncoderDecoder, pairs: Sequence[Hiding], start_id: int) -> list[list[float]]:
    """Of each target token, in nats."""
    device = model.source_embedding.tokens.weight.device
    found: list[list[float]] = [[] for _ in pairs]
    for batch in batches_by_length([max(len(p.source), len(p.target)) for p in pairs], BATCH_TOKENS):
        chosen = [pairs[number] for number in batch]
        source, padding = right_padded([pair.source for pair in chosen], device)
        for row, pair in zip(padding, chosen, strict=True):
            row[pair.hidden.start : pair.hidden.stop] = False
        targets = right_padded([[start_id, *pair.target] for pair in chosen], device).tokens
        logits = model(source, padding, targets)[:, :-1].float()
        log_probs = logits.gather(2, targets[:, 1:, None])[..., 0] - logits.logsumexp(-1)
        for number, row in zip(batch, log_probs.tolist(), strict=True):
            found[number] = row[: len(pairs[number].target)]
    return found


def words_of(tokens: Sequence[int], tokenizer: Tokenizer) -> list[Word]:
    """The words of a target, without punctuation."""
    text, words, start = "", [], 0
    for number, token in enumerate(tokens):
        piece = tokenizer.token_bytes(token).decode("utf-8", "ignore")
        if piece[:1].isspace() or (piece and not piece[0].isalnum()) or WITHOUT_SPACES.match(piece):
            words.append(Word(text.strip(), start, number - start))
            text, start = "", number
        text += piece
    words.append(Word(text.strip(), start, len(tokens) - start))
    return [word for word in words if word.text and word.text[0].isalnum()]


def replaced_words(
    model: EncoderDecoder, tokenizer: Tokenizer, pairs: Sequence[Hiding], seen: Sequence[Sequence[float]]
) -> list[Word | None]:
    """The word that stands for what is hidden in each pair, where one clearly does.

    `seen` are the log-probabilities of the target's tokens with nothing hidden, in nats.
    """
    blind = target_log_probs(model, pairs, tokenizer.start_id)
    found: list[Word | None] = []
    for pair, seeing, hiding in zip(pairs, seen, blind, strict=True):
        lost = [one - other for one, other in zip(seeing, hiding, strict=True)]
        words = [(sum(lost[w.first : w.first + w.length]), w) for w in words_of(pair.target, tokenizer)]
        loss, word = max(words, default=(0.0, None), key=lambda each: each[0])
        found.append(word if loss > CLEAR else None)
    return found
