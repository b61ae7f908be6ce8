"""The mixture of two classifiers: a weighted product of their probabilities, with weights fitted on held-out texts."""

from itertools import product

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from penwright.config import ProblemType

# Initial weights (encoder, linear classifier). A pretrained encoder is expected to be the better of the two.
LINEAR_ALONE, ENCODER_ALONE = (0.0, 1.0), (1.0, 0.0)
PRIOR = 20.0  # strength of the L2 penalty that keeps weights near their initial values; matters if there are few texts
MOST_WEIGHT = 5.0
ITERATIONS, HALVINGS = 20, 20

Outputs = Float[Tensor, "texts n_labels"]
Weights = tuple[float, float]


def mixed(
    encoder: Outputs, linear: Outputs, weights: Float[Tensor, "2"], problem: ProblemType = "single_label_classification"
) -> Outputs:
    """Return the outputs of the mixture in double precision: log-probabilities, multi-label logits, or scores."""
    first, second = weights.cpu().double()
    outputs = first * encoder.double() + second * linear.double()
    return outputs.log_softmax(-1) if problem == "single_label_classification" else outputs


def balancing_weights(labels: Int64[Tensor, " texts"], n_labels: int) -> Float[Tensor, " n_labels"]:
    """Return a weight for each label that makes all labels of these texts equally important.

    The weights of all texts add up to the effective sample size: the number of texts with equally frequent labels that
    would give the mean loss with the same precision. So the penalty is as strong as with that many texts.
    """
    counts = torch.bincount(labels, minlength=n_labels)
    weights = 1 / counts.clamp(min=1).float()
    return weights / weights[counts > 0].mean()


def fit_mixture(
    encoder: Outputs,
    linear: Outputs,
    labels: Int64[Tensor, " texts"],
    initial: Weights = LINEAR_ALONE,
    *,
    balanced: bool = False,
) -> Float[Tensor, "2"]:
    """Return the mixture weights with the lowest loss on these texts, found by Newton's method.

    The sum of the weights calibrates the probabilities, like a temperature (Guo et al. 2017). With `balanced`, all
    labels count equally.
    """
    both, n_labels = torch.stack([encoder.double(), linear.double()]), encoder.shape[-1]
    start = torch.tensor(initial, dtype=torch.double)
    importance = balancing_weights(labels, n_labels)[labels].double() if balanced else torch.ones(len(labels)).double()

    def loss(weights: Float[Tensor, "2"]) -> float:
        nats = F.nll_loss(mixed(encoder, linear, weights), labels, reduction="none")
        return float((importance * nats).sum() + PRIOR / 2 * (weights - start).square().sum())

    weights, present = start, loss(start)
    for _ in range(ITERATIONS):
        probs = mixed(encoder, linear, weights).exp()
        means = (both * probs).sum(-1)
        truth = both.gather(-1, labels.expand(2, -1)[..., None])[..., 0]
        gradient = ((means - truth) * importance).sum(-1) + PRIOR * (weights - start)
        centered = both - means[..., None]
        weighted = probs * importance[:, None]
        hessian = torch.einsum("anl,bnl,nl->ab", centered, centered, weighted) + PRIOR * torch.eye(
            2, dtype=torch.double
        )
        is_free = ~(((weights <= 0) & (gradient > 0)) | ((weights >= MOST_WEIGHT) & (gradient < 0)))
        step = torch.zeros_like(gradient)  # a weight that would leave its bounds stays, while the other one moves
        step[is_free] = torch.linalg.solve(hessian[is_free][:, is_free], gradient[is_free])
        for _ in range(HALVINGS):
            moved = (weights - step).clamp(0, MOST_WEIGHT)
            if (value := loss(moved)) <= present:
                break
            step = step / 2
        else:
            break
        is_done = present - value < 1e-6
        weights, present = moved, value
        if is_done:
            break
    return weights.float()


def fit_mixture_of_sets(
    encoder: Outputs, linear: Outputs, targets: Float[Tensor, "texts n_labels"], initial: Weights = LINEAR_ALONE
) -> Float[Tensor, "2"]:
    """Return the mixture weights for multi-label logits. Each label of each text is a separate binary example."""
    first, second = (
        torch.stack([-F.softplus(logits), -F.softplus(-logits)], -1).flatten(0, 1) for logits in (encoder, linear)
    )
    return fit_mixture(first, second, targets.long().flatten(), initial)


def fit_mixture_of_scores(
    encoder: Outputs, linear: Outputs, targets: Float[Tensor, "texts n_labels"], initial: Weights = LINEAR_ALONE
) -> Float[Tensor, "2"]:
    """Fit the mixture weights for standardized scores by ridge regression, which keeps them near the initial weights.

    If the unconstrained optimum is out of bounds, the best weights lie on an edge: one weight is 0 or MOST_WEIGHT.
    """
    both = torch.stack([encoder.double().flatten(), linear.double().flatten()])
    start = torch.tensor(initial, dtype=torch.double)
    penalty = PRIOR * torch.eye(2, dtype=torch.double)
    gram, target = both @ both.T + penalty, both @ targets.double().flatten() + penalty @ start
    weights = torch.linalg.solve(gram, target)
    if ((weights >= 0) & (weights <= MOST_WEIGHT)).all():
        return weights.float()
    edges = list[Tensor]()
    for place, bound in product((0, 1), (0.0, MOST_WEIGHT)):
        other = 1 - place
        edge = torch.full((2,), bound, dtype=torch.double)
        edge[other] = ((target[other] - gram[0, 1] * bound) / gram[other, other]).clamp(0, MOST_WEIGHT)
        edges.append(edge)
    return min(edges, key=lambda edge: float(edge @ gram @ edge / 2 - target @ edge)).float()
