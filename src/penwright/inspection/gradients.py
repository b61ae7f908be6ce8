"""Attribution of an outcome to tokens, by the gradient of the outcome with respect to the token vectors.

For F = log p(outcome), token vectors x and a neutral baseline x':

- gradient x input: (x - x') . dF/dx, the first-order term of a Taylor expansion (Ancona et al. 2018, section 2.2);
- integrated gradients: (x - x') . the mean of dF/dx along the straight line from x' to x (Sundararajan et al. 2017).

The values should add up to F(x) - F(x') ("completeness"); `gap` is the difference. The baseline is the mean of all
token vectors, with special tokens and positions unchanged. The usual baseline of zero does not work, because the
output of a model that normalizes its input changes abruptly at zero.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from penwright.inspection.forward_pass import ForwardPass, Token, embeddings, require_position, scores
from penwright.model import Model, evaluating
from penwright.model.embedding import Embedding

Method = Literal["integrated_gradients", "gradient_x_input"]
N_STEPS = 256  # default number of points on the line from the baseline to the input
ROWS = 16  # maximum number of points per batch
BATCH_TOKENS = 1024  # maximum number of tokens per batch, unless one text is longer

Vectors = Float[Tensor, "rows _ d_model"]  # token vectors of one side (source or target)


@dataclass(frozen=True)
class Attribution:
    """The contribution of each input token to the log-probability of an outcome, in nats."""

    method: Method
    target: str  # the outcome: a token or a label
    position: int  # position of the token before the outcome; 0 for a label
    log_prob: float  # F(x)
    baseline_log_prob: float  # F(x')
    tokens: tuple[Token, ...]  # source tokens, then target tokens
    n_source: int  # number of source tokens
    values: Float64[np.ndarray, " tokens"]
    gap: float  # completeness error: F(x) - F(x') minus the sum of the values


@dataclass(frozen=True)
class AttributionTarget:
    """The outcome to explain (a token or label id), the position that predicts it, and an outcome to compare with."""

    position: int
    outcome: int
    against: int | None = None


def likeliest_outcome(model: Model, reading: ForwardPass, position: int) -> int:
    """Return the most likely outcome at a position; raise UsageError if there is no such position."""
    require_position(position, reading.n_outputs)
    with evaluating(model), torch.inference_mode():
        return int(scores(model, reading, position).argmax())


def attribution(
    model: Model,
    reading: ForwardPass,
    objective: AttributionTarget,
    names: Sequence[str],
    method: Method,
    n_steps: int = N_STEPS,
) -> Attribution:
    """Attribute an outcome to the model's input tokens.

    `n_steps` is the number of points between the baseline and the input; gradient x input uses only the input itself.
    """
    tables = list(embeddings(model).values())
    sides = [tokens for tokens in (reading.source, reading.target) if tokens]
    with evaluating(model), torch.no_grad():
        inputs = [_token_vectors(table, tokens) for table, tokens in zip(tables, sides, strict=True)]
        baseline = [_baseline_vectors(table, tokens) for table, tokens in zip(tables, sides, strict=True)]
        differences = [x - base for x, base in zip(inputs, baseline, strict=True)]

        def outcome(vectors: Sequence[Vectors]) -> Float[Tensor, " rows"]:
            with ExitStack() as stack:
                for table, fixed in zip(tables, vectors, strict=True):
                    stack.enter_context(_with_vectors(table, fixed))
                logits = scores(model, reading, objective.position, rows=len(vectors[0]))
            return logits.log_softmax(-1)[:, objective.outcome]

        gradients = _gradients(outcome, baseline, differences, *_line(method, n_steps))
        own, base = float(outcome(inputs)), float(outcome(baseline))
    products = [(d * g)[0].cpu().double() for d, g in zip(differences, gradients, strict=True)]
    values = torch.cat([product.sum(-1) for product in products]).numpy()
    return Attribution(
        method,
        names[objective.outcome],
        objective.position,
        own,
        base,
        (*reading.source, *reading.target),
        len(reading.source),
        values,
        own - base - float(values.sum()),
    )


def _line(method: Method, n_steps: int) -> tuple[Float[Tensor, " steps"], Float[Tensor, " steps"]]:
    """Return points on the line from the baseline (0) to the input (1), and the weight of each.

    Points are densest near the baseline, where a normalized input changes fastest.
    """
    if method == "gradient_x_input":
        return torch.ones(1), torch.ones(1)
    even = (torch.arange(n_steps) + 0.5) / n_steps
    return even**3, 3 * even**2 / n_steps


def _gradients(
    outcome: Callable[[Sequence[Vectors]], Float[Tensor, " rows"]],
    baseline: Sequence[Vectors],
    differences: Sequence[Vectors],
    places: Float[Tensor, " steps"],
    shares: Float[Tensor, " steps"],
) -> list[Vectors]:
    """Return the sum, weighted by `shares`, of the outcome's gradients at points between the baseline and the input."""
    sums = [torch.zeros_like(base) for base in baseline]
    rows = max(1, min(ROWS, BATCH_TOKENS // max(base.shape[1] for base in baseline)))
    for chunk, weights in zip(places.to(sums[0]).split(rows), shares.to(sums[0]).split(rows), strict=True):
        points = [
            (base + chunk[:, None, None] * d).requires_grad_() for base, d in zip(baseline, differences, strict=True)
        ]
        with torch.enable_grad():
            gradients = torch.autograd.grad(outcome(points).sum(), points)
        sums = [
            total + (gradient * weights[:, None, None]).sum(0, keepdim=True)
            for total, gradient in zip(sums, gradients, strict=True)
        ]
    return sums


def _token_vectors(embedding: Embedding, tokens: Sequence[Token]) -> Vectors:
    weight = embedding.tokens.weight
    return weight[torch.tensor([token.id for token in tokens], device=weight.device)][None]


def _baseline_vectors(embedding: Embedding, tokens: Sequence[Token]) -> Vectors:
    """Return the baseline: the mean of all token vectors, except that special tokens keep their own vectors."""
    special = torch.tensor([token.start == token.end for token in tokens], device=embedding.tokens.weight.device)
    return torch.where(special[None, :, None], _token_vectors(embedding, tokens), embedding.tokens.weight.mean(0))


class _FixedVectors(nn.Module):
    """A stand-in for an embedding table that returns fixed vectors and ignores the tokens."""

    def __init__(self, vectors: Vectors):
        super().__init__()
        self.vectors = vectors

    def forward(self, tokens: Tensor) -> Vectors:
        return self.vectors


@contextmanager
def _with_vectors(embedding: Embedding, vectors: Vectors) -> Iterator[None]:
    """Make an embedding return these vectors inside the `with` block.

    Other embeddings that share its weights are not affected.
    """
    table = embedding.tokens
    embedding.tokens = _FixedVectors(vectors)  # type: ignore[assignment]  # the model only calls the table
    try:
        yield
    finally:
        embedding.tokens = table
