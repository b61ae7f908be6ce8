"""The mixture of two classifiers: a weighted product of their probabilities, with weights fitted on held-out texts."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

LINEAR_ALONE = (0.0, 1.0)  # initial weights of the encoder and of the linear classifier
PRIOR = 5.0  # penalty in nats for a weight that is sqrt(2) away from its initial value; important for few texts
MOST_WEIGHT = 5.0
ITERATIONS, HALVINGS = 20, 20

LogProbs = Float[Tensor, "texts n_labels"]


def mixed(encoder: LogProbs, linear: LogProbs, weights: Float[Tensor, "2"]) -> LogProbs:
    """Return the log-probabilities of the mixture, in double precision."""
    first, second = weights.double().cpu()
    return (first * encoder.double() + second * linear.double()).log_softmax(-1)


def fit_mixture(encoder: LogProbs, linear: LogProbs, labels: Int64[Tensor, " texts"]) -> Float[Tensor, "2"]:
    """Return the mixture weights with the lowest loss on these texts, found by Newton's method.

    The sum of the weights calibrates the probabilities, like a temperature (Guo et al. 2017).
    """
    both = torch.stack([encoder.double(), linear.double()])
    start = torch.tensor(LINEAR_ALONE, dtype=torch.double)

    def loss(weights: Float[Tensor, "2"]) -> float:
        log_probs = mixed(encoder, linear, weights)
        return float(F.nll_loss(log_probs, labels, reduction="sum") + PRIOR / 2 * (weights - start).square().sum())

    weights, present = start, loss(start)
    for _ in range(ITERATIONS):
        probs = mixed(encoder, linear, weights).exp()
        means = (both * probs).sum(-1)
        truth = both.gather(-1, labels.expand(2, -1)[..., None])[..., 0]
        gradient = (means - truth).sum(-1) + PRIOR * (weights - start)
        centred = both - means[..., None]
        hessian = torch.einsum("anl,bnl,nl->ab", centred, centred, probs) + PRIOR * torch.eye(2, dtype=torch.double)
        step = torch.linalg.solve(hessian, gradient)
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
