"""Which tokens an outcome depends on, by its gradient with respect to their vectors.

For F = log p(outcome), token vectors x and a baseline x' of tokens that say nothing:

- gradient x input: (x - x') . dF/dx, the first step of a Taylor series (Ancona et al. 2018, section 2.2);
- integrated gradients: (x - x') . the mean of dF/dx along the straight line from x' to x (Sundararajan et al. 2017).

What each method gives should add up to F(x) - F(x'), "completeness"; the gap is what is missing. The baseline is
the mean of all token vectors, with special tokens and positions as they are. Zero, the usual one, is no place to set
out from here: a model that norms its input jumps there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from penwright.decoding.batches import evaluating
from penwright.errors import UsageError
from penwright.inspection.forward_pass import ForwardPass, embeddings, scores
from penwright.inspection.tokens import Token
from penwright.model import Model
from penwright.model.embedding import Embedding

Method = Literal["integrated_gradients", "gradient_x_input"]
N_STEPS = 256  # points on the line
ROWS = 16  # points of the line that go through the model at once

Vectors = Float[Tensor, "rows _ d_model"]  # of the tokens of one side


@dataclass(frozen=True)
class Attribution:
    """How much each token that the model read raises (or lowers) an outcome's log-probability, in nats."""

    method: Method
    target: str  # the outcome: a token or a label
    position: int  # of the token after which it is to come; 0 for a label
    log_prob: float  # F(x)
    baseline_log_prob: float  # F(x')
    tokens: tuple[Token, ...]  # of the source, then of the target
    n_source: int  # how many of them are the source's
    values: Float64[np.ndarray, " tokens"]
    gap: float  # F(x) - F(x') - the sum of the values


@dataclass(frozen=True)
class Aim:
    """An outcome (a token or a label, by number) at a position of a reading."""

    position: int
    outcome: int


def likeliest_outcome(model: Model, reading: ForwardPass, position: int) -> int:
    """What the model itself would say there; raises UsageError beyond the last position."""
    with evaluating(model), torch.inference_mode():
        logits = scores(model, reading)[0]
    if not 0 <= position < len(logits):
        raise UsageError(f"there is no position {position}: positions are 0 to {len(logits) - 1}")
    return int(logits[position].argmax())


def attribution(
    model: Model, reading: ForwardPass, aim: Aim, names: Sequence[str], method: Method, n_steps: int = N_STEPS
) -> Attribution:
    """`n_steps` are the points on the line from the baseline; gradient x input needs only its end."""
    tables = list(embeddings(model).values())
    sides = [tokens for tokens in (reading.source, reading.target) if tokens]
    with evaluating(model), torch.no_grad():
        inputs = [_looked_up(table, tokens) for table, tokens in zip(tables, sides, strict=True)]
        baseline = [_saying_nothing(table, tokens) for table, tokens in zip(tables, sides, strict=True)]
        differences = [x - base for x, base in zip(inputs, baseline, strict=True)]

        def outcome(vectors: Sequence[Vectors]) -> Float[Tensor, " rows"]:
            with ExitStack() as stack:
                for table, given in zip(tables, vectors, strict=True):
                    stack.enter_context(_giving(table, given))
                log_probs = scores(model, reading, rows=len(vectors[0]))[:, aim.position].log_softmax(-1)
            return log_probs[:, aim.outcome]

        gradients = _gradients(outcome, baseline, differences, *_line(method, n_steps))
        own, base = float(outcome(inputs)), float(outcome(baseline))
    values = torch.cat([(d * g)[0].double().sum(-1) for d, g in zip(differences, gradients, strict=True)]).cpu().numpy()
    return Attribution(
        method,
        names[aim.outcome],
        aim.position,
        own,
        base,
        (*reading.source, *reading.target),
        len(reading.source),
        values,
        own - base - float(values.sum()),
    )


def _line(method: Method, n_steps: int) -> tuple[Float[Tensor, " steps"], Float[Tensor, " steps"]]:
    """Places on the way from the baseline (0) to the input (1), and the share of the way that each stands for.

    They are densest at the baseline, where an input that is normed turns quickest.
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
    """Those of the outcome at these places between baseline and input, added up by their shares."""
    sums = [torch.zeros_like(base) for base in baseline]
    for some, weights in zip(places.to(sums[0]).split(ROWS), shares.to(sums[0]).split(ROWS), strict=True):
        points = [
            (base + some[:, None, None] * d).requires_grad_() for base, d in zip(baseline, differences, strict=True)
        ]
        with torch.enable_grad():
            gradients = torch.autograd.grad(outcome(points).sum(), points)
        sums = [
            total + (gradient * weights[:, None, None]).sum(0, keepdim=True)
            for total, gradient in zip(sums, gradients, strict=True)
        ]
    return sums


def _looked_up(embedding: Embedding, tokens: Sequence[Token]) -> Vectors:
    weight = embedding.tokens.weight
    return weight[torch.tensor([token.id for token in tokens], device=weight.device)][None]


def _saying_nothing(embedding: Embedding, tokens: Sequence[Token]) -> Vectors:
    special = torch.tensor([token.start == token.end for token in tokens], device=embedding.tokens.weight.device)
    return torch.where(special[None, :, None], _looked_up(embedding, tokens), embedding.tokens.weight.mean(0))


class _Given(nn.Module):
    """In the place of a table of vectors: gives the same vectors whatever the tokens are."""

    def __init__(self, vectors: Vectors):
        super().__init__()
        self.vectors = vectors

    def forward(self, tokens: Tensor) -> Vectors:
        return self.vectors


@contextmanager
def _giving(embedding: Embedding, vectors: Vectors) -> Iterator[None]:
    """Inside, the embedding has these vectors for its tokens; another that shares its table is not touched."""
    table = embedding.tokens
    embedding.tokens = _Given(vectors)  # type: ignore[assignment]  # it is only called here
    try:
        yield
    finally:
        embedding.tokens = table
