"""What a model loses without some of its heads: their output is zero, and all else goes on as before.

Michel et al. 2019, section 2.2. Unlike attention weights, this shows what a head does for the outcome; but others may
fill in for it, so that a head without which nothing changes is not always idle.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from penwright.decoding.batches import diverged, evaluating
from penwright.inspection.forward_pass import ForwardPass, PartName, scores
from penwright.inspection.heads import Head, all_heads, place_of
from penwright.inspection.tokens import Token
from penwright.model import Model
from penwright.model.attention import Kernel
from penwright.model.attention_recording import swap_kernels
from penwright.model.encoder_only import EncoderOnly
from penwright.model.mask import KernelMask


@dataclass(frozen=True)
class Ablation:
    """With all heads ("before") and without some ("after"); losses are in nats, the mean over the tokens."""

    heads: tuple[str, ...]
    loss_before: float  # NaN of a text without any token to predict
    loss_after: float
    tokens: tuple[Token, ...]  # those that were to be predicted; of a classifier none, its loss is that of the label
    changes: Float64[np.ndarray, " answers"]  # of the loss of each, after - before
    next_ids: Int[np.ndarray, " outcomes"]  # the likeliest outcomes at the last position, before or after
    next_texts: tuple[str, ...]
    next_before: Float64[np.ndarray, " outcomes"]  # their probabilities
    next_after: Float64[np.ndarray, " outcomes"]


@dataclass(frozen=True)
class HeadImportance:
    """By how much the loss grows without each head of a part, one at a time, in nats."""

    name: PartName
    layers: tuple[int, ...]
    changes: Float64[np.ndarray, "n_layers n_heads"]


@contextmanager
def without_heads(model: Model, heads: Sequence[Head]) -> Iterator[None]:
    """Inside, these heads give zero."""
    silent: dict[tuple[PartName, int], list[int]] = defaultdict(list)
    for head in heads:
        silent[head.part, head.layer].append(head.number)

    def silenced(name: str, kernel: Kernel) -> Kernel:
        numbers = silent.get(place_of(name))
        if numbers is None:
            return kernel

        def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: KernelMask, dropout: float) -> Tensor:
            return kernel(queries, keys, values, mask, dropout).index_fill(1, at.to(queries.device), 0.0)

        at = torch.tensor(numbers)
        return attend

    with swap_kernels(model, silenced):
        yield


@torch.inference_mode()
def ablate(
    model: Model,
    reading: ForwardPass,
    heads: Sequence[Head],
    names: Sequence[str],
    k: int = 5,
    label: int | None = None,
) -> Ablation:
    """`label` is a classifier's true one, by its number; None: the one it chooses with all heads."""
    with evaluating(model):
        before = scores(model, reading)[0].log_softmax(-1)
        with without_heads(model, heads):
            after = scores(model, reading)[0].log_softmax(-1)
    answers = _answers(model, reading, before, label)
    surprise, surprise_after = _surprise(before, answers), _surprise(after, answers)
    last, last_after = before[-1], after[-1]
    chosen = torch.cat([row.argsort(dim=-1, descending=True, stable=True)[:k] for row in (last, last_after)]).tolist()
    ids = list(dict.fromkeys(chosen))
    return Ablation(
        tuple(map(str, heads)),
        _mean(surprise),
        _mean(surprise_after),
        reading.answers,
        surprise_after - surprise,
        np.array(ids),
        tuple(names[outcome] for outcome in ids),
        last[ids].exp().cpu().numpy(),
        last_after[ids].exp().cpu().numpy(),
    )


@torch.inference_mode()
def head_importance(model: Model, reading: ForwardPass, label: int | None = None) -> tuple[HeadImportance, ...]:
    """Of every head, part by part; takes a pass for each head."""
    with evaluating(model):
        whole = scores(model, reading)[0].log_softmax(-1)
        answers = _answers(model, reading, whole, label)
        changes: dict[PartName, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for head in all_heads(model):
            with without_heads(model, [head]):
                less = scores(model, reading)[0].log_softmax(-1)
            changes[head.part][head.layer].append(_mean(_surprise(less, answers) - _surprise(whole, answers)))
    return tuple(
        HeadImportance(part, tuple(layers), np.array(list(layers.values()))) for part, layers in changes.items()
    )


def _answers(model: Model, reading: ForwardPass, log_probs: Tensor, label: int | None) -> Int[Tensor, " answers"]:
    if isinstance(model, EncoderOnly):
        return log_probs[0].argmax()[None] if label is None else torch.tensor([label], device=log_probs.device)
    return torch.tensor(reading.answer_ids, device=log_probs.device)


def _surprise(
    log_probs: Float[Tensor, "positions outcomes"], answers: Int[Tensor, " answers"]
) -> Float64[np.ndarray, " answers"]:
    surprise: Float64[np.ndarray, " answers"] = (
        -log_probs[: len(answers)].gather(-1, answers[:, None])[:, 0].cpu().numpy()
    )
    return surprise


def _mean(values: Float64[np.ndarray, " answers"]) -> float:
    return float(values.mean()) if len(values) else float("nan")


ROWS = 32  # texts that go through the model at once


@dataclass(frozen=True)
class LeavingOut:
    """By how much each token raises (or lowers) a label's log-probability, in nats: with it less without it."""

    target: str  # the label
    log_prob: float  # with all tokens
    tokens: tuple[Token, ...]
    values: Float64[np.ndarray, " tokens"]  # 0 for special tokens, which cannot be left out


def leaving_out(model: EncoderOnly, reading: ForwardPass, label: int, name: str) -> LeavingOut:
    """A text for each token, all of one length."""
    ids = [token.id for token in reading.source]
    places = [place for place, token in enumerate(reading.source) if token.start < token.end]
    values = np.zeros(len(ids))
    with evaluating(model), torch.inference_mode():
        whole = _log_probs(model, [ids])[0, label]
        for some in (places[start : start + ROWS] for start in range(0, len(places), ROWS)):
            without = [ids[:place] + ids[place + 1 :] for place in some]
            values[some] = (whole - _log_probs(model, without)[:, label]).cpu().numpy()
    return LeavingOut(name, float(whole), reading.source, values)


def _log_probs(model: EncoderOnly, texts: Sequence[Sequence[int]]) -> Float[Tensor, "texts labels"]:
    tokens = torch.tensor(texts, device=next(model.parameters()).device)
    found = model(tokens, torch.ones_like(tokens, dtype=torch.bool)).double().log_softmax(-1)
    if found.isnan().any():
        raise diverged()
    return found
