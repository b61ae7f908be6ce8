"""Direct logit attribution (how much each part of a model adds to the logit of an outcome), and the logit lens.

The last norm and the output layer read the residual stream, which is a sum: the tokens, positions, heads and
feed-forward networks each contribute to it. In a pre-norm model, each sublayer adds its output to the stream (Elhage et
al. 2021). A norm is a linear map once its statistics are fixed; here, they are fixed to those of the text. The stream
of a post-norm model is then also a sum, and so is the input of the output layer. So the logit is a sum too: one term
for each head, each feed-forward network, the token vector and the position vector. This counts only a part's direct
path to the output, and not its effect through later parts, which `patching.py` and `paths.py` measure. A constant that
is added to all logits changes no probability. The logit is therefore compared with the mean logit of all outcomes, or
with the logit of one other outcome.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from penwright.errors import UsageError
from penwright.inspection.forward_pass import (
    STEP_ROWS,
    ForwardPass,
    Token,
    TopPredictions,
    hidden_states,
    joined_predictions,
    last_stack,
    logits_of,
    ranks,
    residual_stream,
    top_predictions,
)
from penwright.inspection.gradients import AttributionTarget
from penwright.inspection.recording import StackRecord, SublayerRecord, record
from penwright.model import Model, evaluating
from penwright.model.transformer import EncoderOnly
from penwright.views.ink import label

BIASES, TOKENS, POSITIONS = range(3)  # indices of the first entries of any `Contributions`
MOST_NUMBERS = 250_000_000  # maximum number of values in the contributions' vectors (1 GB in float32)
STRONGEST = 3  # number of contributions that `explanation` names
LONGEST_OUTCOME = 60  # maximum number of characters of an outcome in an explanation


class Contributions(NamedTuple):
    """The vectors that add up to the residual stream, and the source of each.

    Names are for example "decoder.3.2" (a head), "decoder.3.feed_forward", "decoder.tokens", "decoder.positions" and
    "decoder.biases". The biases are those of norms and of attention outputs.
    """

    names: list[str]
    vectors: Float[Tensor, "contributions positions d_model"]


def walk(stack: StackRecord, at: Sequence[int] | None = None) -> Iterator[tuple[SublayerRecord | None, Contributions]]:
    """Yield each sublayer with the contributions to the residual stream before it.

    The last item has all contributions, and None instead of a sublayer.

    Each iteration overwrites the vectors of the previous one. `at` selects positions; the default is all.
    """
    positions = torch.arange(len(stack.embedded)) if at is None else torch.tensor(at)
    n_heads = sum(len(each.heads.outputs) if each.kind == "attention" else 1 for each in stack.sublayers)
    size = (3 + n_heads, len(positions), stack.embedded.shape[1])
    if size[0] * size[1] * size[2] > MOST_NUMBERS:
        longest = MOST_NUMBERS // (size[0] * size[2])
        raise UsageError(f"the text has {size[1]} tokens, too many for this model. Use at most {longest} tokens")
    names = [f"{stack.name}.{each}" for each in ("biases", "tokens", "positions")]
    vectors = stack.embedded.new_zeros(size)
    vectors[TOKENS] = stack.token_vectors[positions]
    vectors[POSITIONS] = (stack.summed - stack.token_vectors)[positions]
    _normalize(stack.embedding.norm, stack.summed[positions], vectors)
    for each in stack.sublayers:
        yield each, Contributions(names, vectors[: len(names)])
        n = len(names)
        if each.kind == "attention":
            names = [*names, *(f"{each.part}.{each.layer}.{head}" for head in range(len(each.heads.outputs)))]
            vectors[n : len(names)] = each.head_outputs()[:, positions]
        else:
            names = [*names, f"{each.part}.{each.layer}.feed_forward"]
            vectors[n] = each.output[positions]
        vectors[BIASES] += each.output[positions] - vectors[n : len(names)].sum(0)
        if not each.residual.norm_first:
            _normalize(each.residual.norm, (each.before + each.output)[positions], vectors[: len(names)])
    yield None, Contributions(names, vectors)


def apply_final_norm(stack: StackRecord, contributions: Contributions, at: Sequence[int] | None = None) -> None:
    """Apply the stack's final norm to the contributions in place."""
    _normalize(stack.stack.norm, stack.output if at is None else stack.output[list(at)], contributions.vectors)


def _normalize(
    norm: nn.Module, stream: Float[Tensor, "positions d_model"], vectors: Float[Tensor, "_ positions d_model"]
) -> None:
    """Normalize each vector in place with the statistics of `stream`, the sum of the vectors."""
    if isinstance(norm, nn.Identity):
        return
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    if isinstance(norm, nn.LayerNorm):
        vectors -= vectors.mean(-1, keepdim=True)
        stream = stream - stream.mean(-1, keepdim=True)
    eps = torch.finfo(stream.dtype).eps if norm.eps is None else norm.eps
    vectors *= (stream.square().mean(-1, keepdim=True) + eps).rsqrt() * norm.weight.detach().to(stream.dtype)
    if isinstance(norm, nn.LayerNorm) and norm.bias is not None:
        vectors[BIASES] += norm.bias.detach()


@dataclass(frozen=True)
class LogitAttribution:
    """The direct contributions of the parts of a model to the logit of an outcome. They add up to `logit`.

    Names are for example "decoder.3.2" (a head), "decoder.3.feed_forward", "decoder.tokens", "decoder.positions" and
    "biases". A translator's encoder has no direct path to the output: what it adds comes through the cross-attention.
    """

    target: str  # the outcome
    against: str | None  # the outcome to compare with; None for the mean of all outcomes
    position: int  # position of the token before the outcome; 0 for a label
    logit: float  # logit of the outcome, minus that of `against` or the mean logit
    names: tuple[str, ...]
    values: Float64[np.ndarray, " parts"]

    def heads(self, part: str) -> Float64[np.ndarray, "n_layers n_heads"]:
        """Return the contributions of all heads in one part of the model (encoder, decoder or cross-attention)."""
        by_head = {name: value for name, value in zip(self.names, self.values, strict=True) if _is_head(name, part)}
        n_heads = 1 + max(int(name.split(".")[2]) for name in by_head)
        return np.array(list(by_head.values())).reshape(-1, n_heads)

    @property
    def explanation(self) -> str:
        """A sentence that names the largest contributions."""
        order = np.argsort(-np.abs(self.values), kind="stable")[:STRONGEST]
        most = [f"{readable_part(self.names[at])} ({self.values[at]:+.2f})" for at in order]
        target, against = (each and label(each, LONGEST_OUTCOME) for each in (self.target, self.against))
        where = f"{abs(self.logit):.2f} {'above' if self.logit >= 0 else 'below'}"
        other = "the mean logit" if against is None else f"that of “{against}”"
        return (
            f"The logit of “{target}” is {where} {other}; "
            f"the largest direct contributions come from {', '.join(most[:-1])} and {most[-1]}."
        )

    def __str__(self) -> str:
        return self.explanation


def readable_part(name: str) -> str:
    """Return the name of a part in words: "head 3.2", "cross-attention head 1.0", "feed-forward 3"."""
    part, _, rest = name.partition(".")
    side = {"encoder": "encoder ", "cross": "cross-attention "}.get(part, "")
    if rest.endswith("feed_forward"):
        return f"{side}feed-forward {rest.split('.')[0]}"
    named = {"tokens": "the token vectors", "positions": "the position vectors", "": f"the {part}"}
    return named.get(rest, f"{side}head {rest}")


def _is_head(name: str, part: str) -> bool:
    fields = name.split(".")
    return fields[0] == part and fields[-1].isdecimal()


@torch.no_grad()
def logit_attribution(
    model: Model, reading: ForwardPass, objective: AttributionTarget, names: Sequence[str]
) -> LogitAttribution:
    """Split the logit of an outcome at a position into the contributions of the parts of the model."""
    recording = record(model, reading, objective.position)
    stack = recording.stacks[-1]
    at = None if isinstance(model, EncoderOnly) else [objective.position]
    for _, contributions in walk(stack, at):  # noqa: B007 - the last step is the whole sum
        pass
    apply_final_norm(stack, contributions, at)
    parts = _pooled(model, contributions) if isinstance(model, EncoderOnly) else contributions.vectors[:, 0]
    output = cast(nn.Linear, model.output)
    weight, bias = output.weight, cast(Tensor | None, output.bias)
    if isinstance(model, EncoderOnly) and model.settings.balanced:
        bias = output.bias - model.log_prior
    other = weight.mean(0) if objective.against is None else weight[objective.against]
    values = (parts @ (weight[objective.outcome] - other).to(parts)).cpu().double()
    if bias is not None:
        values[BIASES] += float(
            bias[objective.outcome] - (bias.mean() if objective.against is None else bias[objective.against])
        )
    logits = recording.logits
    return LogitAttribution(
        names[objective.outcome],
        None if objective.against is None else names[objective.against],
        objective.position,
        float(logits[objective.outcome] - (logits.mean() if objective.against is None else logits[objective.against])),
        ("biases", *contributions.names[1:]),
        values.numpy(),
    )


def _pooled(model: EncoderOnly, contributions: Contributions) -> Float[Tensor, "contributions d_model"]:
    """Return each contribution to the input vector of the output layer.

    The pooler's activation is replaced by a factor for each dimension (its output divided by its input), so the sum
    stays exact.
    """
    pooled = contributions.vectors.mean(1) if model.settings.pooling == "mean" else contributions.vectors[:, 0].clone()
    if model.pooler is None:
        return pooled
    projected = pooled @ model.pooler.weight.T
    projected[BIASES] += model.pooler.bias
    whole = projected.sum(0)
    return projected * torch.where(whole == 0, 0.0, model.activation(whole) / whole)


@dataclass(frozen=True)
class Lens:
    """The most likely outcomes after the embedding and after each layer, at each position.

    Positions are the target tokens of a language model or translator; a classifier makes a single prediction. The true
    token is the next token of the text. The end of the text has no true token: the probability is NaN, and the rank
    is 0. Ranks count from 1.
    """

    tokens: tuple[Token, ...]  # the input token at each position; empty for a classifier
    top_tokens: list[object]  # [n_layers + 1][positions][k], most likely first: readable tokens, or labels
    top_probabilities: Float64[np.ndarray, "n_layers_and_one positions k"]
    true_probabilities: Float64[np.ndarray, "n_layers_and_one positions"]
    true_ranks: Int[np.ndarray, "n_layers_and_one positions"]


@torch.inference_mode()
def logit_lens(model: Model, reading: ForwardPass, names: Sequence[str], k: int = 5) -> Lens:
    """Compute the logit lens (nostalgebraist 2020): the predictions of the model if it stopped after each layer.

    This is softmax(output(norm(h_l))), where h_0 is the embedding and h_l is the output of block l. `norm` is the final
    norm of a pre-norm model. It does nothing in a post-norm model, since block outputs are already normalized. The last
    row is the model's own prediction. Early layers may use a different representation from the last one, so their
    predictions can mislead; Belrose et al. (2023) train an affine map for each layer instead. For a translator, the
    lens shows the decoder; for a classifier, it predicts labels. `names` has the names of all outcomes: the vocabulary,
    or the labels.
    """
    with evaluating(model):
        stream = residual_stream(model, lambda: hidden_states(model, reading))
    answers = torch.tensor(reading.answer_ids)
    layers = [_readings(model, hidden, answers, names, k) for hidden in stream]
    top, probabilities, true_ranks = zip(*layers, strict=True)
    return Lens(
        reading.target,
        [each.texts for each in top],
        np.stack([each.probabilities for each in top]),
        np.stack(probabilities),
        np.stack(true_ranks),
    )


def _readings(
    model: Model,
    stream: Float[Tensor, "1 _ d_model"],
    answers: Int[Tensor, " answers"],
    names: Sequence[str],
    k: int,
) -> tuple[TopPredictions, Float64[np.ndarray, " positions"], Int[np.ndarray, " positions"]]:
    """Return the predictions of one layer, and the probabilities and ranks of the answers."""
    tops, shape = [], 1 if isinstance(model, EncoderOnly) else stream.shape[1]
    probabilities, true_ranks = np.full(shape, np.nan), np.zeros(shape, dtype=np.int64)
    for first in range(0, shape, STEP_ROWS):
        part = stream if isinstance(model, EncoderOnly) else stream[:, first : first + STEP_ROWS]
        with evaluating(model):
            log_probs = read_out(model, part)[0].log_softmax(-1)
        tops.append(top_predictions(log_probs.exp(), names, k))
        here = answers[first : first + len(log_probs)].to(log_probs.device)
        known, place = log_probs[: len(here)], slice(first, first + len(here))
        probabilities[place] = known.gather(-1, here[:, None])[:, 0].exp().cpu().numpy()
        true_ranks[place] = ranks(known, here)
    return joined_predictions(tops), probabilities, true_ranks


def read_out(model: Model, hidden: Float[Tensor, "rows length d_model"]) -> Float[Tensor, "rows positions outcomes"]:
    """Return the float64 logits that the model would compute from this residual stream."""
    normed = last_stack(model).norm(hidden)
    if isinstance(model, EncoderOnly):
        normed = model.pool(normed, torch.ones_like(normed[..., 0], dtype=torch.bool))[:, None]
    return logits_of(model, normed)
