"""Token scores: the probability of each token of a text, the likely alternatives, and the loss by position."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from penwright.decoding.batches import newest_half
from penwright.inspection.forward_pass import (
    ForwardPass,
    Token,
    TopPredictions,
    joined_predictions,
    log_probs_in_steps,
    ranks,
    require_token_model,
    top_predictions,
)
from penwright.model import Model
from penwright.model.transformer import DecoderOnly


@dataclass(frozen=True)
class TokenScores:
    """The prediction of each token of a text from all tokens before it (and, in translation, from the source)."""

    tokens: tuple[Token, ...]
    log_probs: Float64[np.ndarray, " positions"]  # log p(token | tokens before), in nats; 0 if the model was certain
    ranks: Int[np.ndarray, " positions"]  # ranks among all tokens; the most likely token has rank 1
    entropies: Float64[np.ndarray, " positions"]  # -sum p log p over the vocabulary (entropy), in nats
    alternatives: TopPredictions  # the k most likely tokens at each position
    next: TopPredictions  # the most likely tokens after the end of the text
    unscored: tuple[Token, ...] = ()  # the first token, if the model has no start token to predict it from

    @property
    def loss(self) -> float:
        """The mean negative log-probability, in nats per token; NaN without tokens."""
        return float(-self.log_probs.mean()) if len(self.tokens) else float("nan")


@dataclass(frozen=True)
class LossByPosition:
    """The mean loss at each position of the context in nats, and the number of tokens in each mean."""

    nats: Float64[np.ndarray, " positions"]  # NaN at positions without tokens
    counts: Int64[np.ndarray, " positions"]


def label_log_probs(model: Model, reading: ForwardPass) -> Float[np.ndarray, " labels"]:
    """Return the log-probabilities of the labels of a classifier."""
    (log_probs,) = log_probs_in_steps(model, reading)
    return log_probs[0].cpu().numpy()


def token_scores(model: Model, reading: ForwardPass, names: Sequence[str], k: int = 5) -> TokenScores:
    """Score each token of a text. Raise UsageError for a classifier.

    The text of a language model may have any length. A long text is processed as in generation: when the context is
    full, the model continues from the newest half (see `decoding.batches.PromptBatch`).
    """
    steps = token_scores_in_steps(model, reading, names, k)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(TokenScores, end.value)


def token_scores_in_steps(
    model: Model, reading: ForwardPass, names: Sequence[str], k: int = 5
) -> Generator[None, None, TokenScores]:
    """Compute `token_scores` as a generator that yields after each short step, so that other work can run."""
    require_token_model(model)
    answers = torch.tensor(reading.answer_ids)
    parts: list[_Part] = []
    after = None
    for begin, n_known, window in _windows(model, reading):
        at = begin + n_known
        for log_probs in log_probs_in_steps(model, window, n_known):
            here = answers[at : at + len(log_probs)].to(log_probs.device)
            with torch.inference_mode():
                parts.append(_part(log_probs[: len(here)], here, names, k))
            at, after = at + len(log_probs), log_probs[-1]
            yield
    assert after is not None
    own, places, entropies, first_choices = zip(*parts, strict=True)
    return TokenScores(
        reading.answers,
        torch.cat(own).numpy(),
        np.concatenate(places),
        torch.cat(entropies).numpy(),
        joined_predictions(first_choices),
        top_predictions(after.exp(), names, k),
        tuple(token for token in reading.target[:1] if token.start < token.end),  # not a start token
    )


def _part(
    log_probs: Float[Tensor, "positions vocab_size"], answers: Int[Tensor, " positions"], names: Sequence[str], k: int
) -> "_Part":
    probabilities = log_probs.exp()
    return _Part(
        log_probs.gather(-1, answers[:, None])[:, 0].cpu(),
        ranks(log_probs, answers),
        -(probabilities * log_probs.clamp(min=-1e9)).sum(-1).cpu(),  # 0 log 0 counts as 0
        top_predictions(probabilities, names, k),
    )


class _Part(NamedTuple):
    """The scores of consecutive positions."""

    log_probs: Tensor
    ranks: np.ndarray
    entropies: Tensor
    alternatives: TopPredictions


def loss_by_position(model: Model, readings: Iterable[ForwardPass]) -> LossByPosition:
    """Compute the mean loss at each position over many token sequences that fit the context.

    Raises UsageError for a classifier.
    """
    require_token_model(model)
    context = model.settings.context_length
    nats, counts = np.zeros(context), np.zeros(context, dtype=np.int64)
    for reading in readings:
        losses, _ = nlls(model, reading, torch.tensor(reading.answer_ids))
        nats[: len(losses)] += losses
        counts[: len(losses)] += 1
    return LossByPosition(np.divide(nats, counts, out=np.full(context, np.nan), where=counts > 0), counts)


def nlls(
    model: Model, reading: ForwardPass, answers: Int[Tensor, " answers"]
) -> tuple[Float64[np.ndarray, " answers"], Float[Tensor, " outcomes"]]:
    """Return the negative log-probabilities of the answers, and the log-probabilities at the last position."""
    parts, at = [], 0
    for log_probs in log_probs_in_steps(model, reading):
        here = answers[at : at + len(log_probs), None].to(log_probs.device)
        parts.append(-log_probs[: len(here)].gather(-1, here)[:, 0].cpu().numpy())
        at += len(log_probs)
    return np.concatenate(parts), log_probs[-1]


def _windows(model: Model, reading: ForwardPass) -> Iterator[tuple[int, int, ForwardPass]]:
    """Yield each window: its start, the number of its positions that are already scored, and its tokens."""
    context = model.settings.context_length
    if not isinstance(model, DecoderOnly) or len(reading.target) <= context:
        yield 0, 0, reading
        return
    n_known, begin = 0, 0
    while begin + n_known < len(reading.target):
        end = min(begin + context, len(reading.target))
        yield begin, n_known, ForwardPass((), reading.target[begin:end], reading.answers[begin:end])
        n_known = newest_half(context) - 1
        begin = end - n_known
