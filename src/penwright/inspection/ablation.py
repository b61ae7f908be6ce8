"""Ablation: the change in a model's loss and predictions when some heads, or a token, are removed.

An ablated head outputs zero; all other computations are unchanged (Michel et al. 2019, section 2.2). Unlike attention
weights, this shows the contribution of a head to the outcome. But other heads may compensate: a head whose ablation
changes nothing is not necessarily idle.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from penwright.inspection.attention_maps import Head, all_heads, place_of
from penwright.inspection.forward_pass import ForwardPass, PartName, Token, logits_of
from penwright.inspection.gradients import likeliest_outcome
from penwright.inspection.token_scores import nlls
from penwright.model import Model, evaluating
from penwright.model.attention import Kernel, KernelMask, swap_kernels
from penwright.model.transformer import EncoderOnly


@dataclass(frozen=True)
class Ablation:
    """Losses and predictions with all heads ("before") and with some heads ablated ("after").

    Losses are means over the tokens, in nats.
    """

    heads: tuple[str, ...]
    loss_before: float  # NaN for a text without tokens to predict
    loss_after: float
    tokens: tuple[Token, ...]  # the predicted tokens; empty for a classifier, which predicts a label
    changes: Float64[np.ndarray, " answers"]  # increase in the loss of each token after ablation
    next_ids: Int[np.ndarray, " outcomes"]  # most likely outcomes at the last position, before or after ablation
    next_texts: tuple[str, ...]
    next_before: Float64[np.ndarray, " outcomes"]  # probabilities of the outcomes in `next_ids`
    next_after: Float64[np.ndarray, " outcomes"]


@dataclass(frozen=True)
class HeadImportance:
    """The increase in loss, in nats, when the heads of a part are ablated one at a time."""

    name: PartName
    layers: tuple[int, ...]
    changes: Float64[np.ndarray, "n_layers n_heads"]


@contextmanager
def without_heads(model: Model, heads: Sequence[Head]) -> Iterator[None]:
    """Set the output of these heads to zero inside the `with` block."""
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


def ablate(
    model: Model,
    reading: ForwardPass,
    heads: Sequence[Head],
    names: Sequence[str],
    k: int = 5,
    label: int | None = None,
) -> Ablation:
    """Compare a model's losses and predictions with and without these heads.

    `label` is the index of a classifier's true label, by default the label that it predicts with all heads.
    """
    answers = _answers(model, reading, label)
    nll, last = nlls(model, reading, answers)
    with without_heads(model, heads):
        nll_after, last_after = nlls(model, reading, answers)
    chosen = torch.cat([row.argsort(dim=-1, descending=True, stable=True)[:k] for row in (last, last_after)]).tolist()
    ids = list(dict.fromkeys(chosen))
    return Ablation(
        tuple(map(str, heads)),
        _mean(nll),
        _mean(nll_after),
        reading.answers,
        nll_after - nll,
        np.array(ids),
        tuple(names[outcome] for outcome in ids),
        last[ids].exp().cpu().numpy(),
        last_after[ids].exp().cpu().numpy(),
    )


def head_importance(model: Model, reading: ForwardPass, label: int | None = None) -> tuple[HeadImportance, ...]:
    """Measure the increase in loss when each head is ablated, with one forward pass per head."""
    answers = _answers(model, reading, label)
    whole, _ = nlls(model, reading, answers)
    changes: dict[PartName, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for head in all_heads(model):
        with without_heads(model, [head]):
            ablated, _ = nlls(model, reading, answers)
        changes[head.part][head.layer].append(_mean(ablated - whole))
    return tuple(
        HeadImportance(part, tuple(layers), np.array(list(layers.values()))) for part, layers in changes.items()
    )


def _answers(model: Model, reading: ForwardPass, label: int | None) -> Int[Tensor, " answers"]:
    if isinstance(model, EncoderOnly):
        return torch.tensor([likeliest_outcome(model, reading, 0) if label is None else label])
    return torch.tensor(reading.answer_ids)


def _mean(values: Float64[np.ndarray, " answers"]) -> float:
    return float(values.mean()) if len(values) else float("nan")


ROWS = 32  # number of texts per batch


@dataclass(frozen=True)
class Occlusion:
    """The effect of each token: a label's log-probability with the token minus that without it, in nats."""

    target: str  # the label
    log_prob: float  # log-probability of the label for the complete text
    tokens: tuple[Token, ...]
    values: Float64[np.ndarray, " tokens"]  # 0 for special tokens, which cannot be left out


def occlusion(model: EncoderOnly, reading: ForwardPass, label: int, name: str) -> Occlusion:
    """Measure the effect of each token on a label by running the model on the text without that token."""
    ids = [token.id for token in reading.source]
    places = [place for place, token in enumerate(reading.source) if token.start < token.end]
    values = np.zeros(len(ids))
    with evaluating(model), torch.inference_mode():
        whole = _log_probs(model, [ids])[0, label]
        for chunk in (places[start : start + ROWS] for start in range(0, len(places), ROWS)):
            without = [ids[:place] + ids[place + 1 :] for place in chunk]
            values[chunk] = (whole - _log_probs(model, without)[:, label]).cpu().numpy()
    return Occlusion(name, float(whole), reading.source, values)


def _log_probs(model: EncoderOnly, texts: Sequence[Sequence[int]]) -> Float[Tensor, "texts labels"]:
    tokens = torch.tensor(texts, device=next(model.parameters()).device)
    is_token = torch.ones_like(tokens, dtype=torch.bool)
    return logits_of(model, model.pool(model.hidden(tokens, is_token), is_token)).log_softmax(-1)
