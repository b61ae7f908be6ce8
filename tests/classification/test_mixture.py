import pytest
import torch
from torch.nn import functional as F

from penwright.classification.mixture import (
    ENCODER_ALONE,
    LINEAR_ALONE,
    PRIOR,
    balancing_weights,
    fit_mixture,
    fit_mixture_of_scores,
    fit_mixture_of_sets,
    mixed,
)


def log_probs(labels: torch.Tensor, strength: float, seed: int) -> torch.Tensor:
    """Return random predictions that are better for a higher `strength`."""
    noise = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(seed))
    return (noise + strength * F.one_hot(labels, 3)).log_softmax(-1)


LABELS = torch.arange(3).repeat(300)


def test_equally_good_classifiers_get_equal_weights() -> None:
    first, second = log_probs(LABELS, 1.0, 0), log_probs(LABELS, 1.0, 1)
    weights = fit_mixture(first, second, LABELS)
    assert weights.tolist() == pytest.approx([1.0, 1.0], abs=0.2)  # noise of different seeds is independent
    both = F.nll_loss(mixed(first, second, weights), LABELS)
    assert both < 0.95 * min(F.nll_loss(first, LABELS), F.nll_loss(second, LABELS))


def test_useless_classifier_gets_little_weight() -> None:
    good, useless = log_probs(LABELS, 2.0, 0), log_probs(LABELS, 0.0, 1)
    assert fit_mixture(useless, good, LABELS)[0] < 0.15
    assert fit_mixture(good, useless, LABELS)[1] < 0.15


def test_overconfident_probabilities_are_calibrated() -> None:
    good = log_probs(LABELS, 1.0, 0)
    weights = fit_mixture(torch.zeros(len(LABELS), 3).log_softmax(-1), 3 * good, LABELS)
    assert float(weights[1]) == pytest.approx(1 / 3, abs=0.1)


def test_few_texts_keep_most_weight_on_the_linear_classifier() -> None:
    labels = LABELS[:3]
    weights = fit_mixture(log_probs(labels, 3.0, 0), log_probs(labels, 0.5, 1), labels)
    assert weights[0] < 0.5 and weights[1] > 0.7


def test_few_texts_leave_a_pretrained_encoder_alone() -> None:
    labels = LABELS[:3]
    weights = fit_mixture(log_probs(labels, 0.5, 0), log_probs(labels, 3.0, 1), labels, ENCODER_ALONE)
    assert weights[0] > 0.7 and weights[1] < 0.5


@pytest.mark.parametrize("fit", [fit_mixture_of_sets, fit_mixture_of_scores])
@pytest.mark.parametrize("initial", [LINEAR_ALONE, ENCODER_ALONE])
def test_outputs_without_information_leave_the_initial_weights(fit, initial: tuple[float, float]) -> None:
    nothing = torch.zeros(4, 2)
    assert fit(nothing, nothing, torch.eye(2).repeat(2, 1), initial).tolist() == pytest.approx(initial)


def test_balancing_prefers_the_classifier_that_knows_the_rare_label() -> None:
    labels = torch.tensor([0] * 1000 + [1] * 1000 + [2] * 100)
    knows_rare, knows_others = (
        torch.where((labels == 2)[:, None] == rare, log_probs(labels, 3.0, seed), log_probs(labels, 0.0, seed))
        for rare, seed in ((True, 0), (False, 1))
    )
    plain = fit_mixture(knows_rare, knows_others, labels)
    balanced = fit_mixture(knows_rare, knows_others, labels, balanced=True)
    assert balanced[0] > 1.5 * plain[0]


@pytest.mark.parametrize(("counts", "total"), [((50, 50, 0), 100), ((90, 10, 0), 36), ((90, 10), 36)])
def test_balancing_weights_add_up_to_the_effective_number_of_texts(counts: tuple[int, ...], total: float) -> None:
    """With 90 and 10 texts, the mean of two means has the variance of one text times (1/90 + 1/10) / 4 = 1/36."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    weights = balancing_weights(labels, len(counts))[labels]
    assert weights.sum().item() == pytest.approx(total)
    assert [weights[labels == label].sum().item() for label in (0, 1)] == pytest.approx([total / 2] * 2)


@pytest.mark.parametrize("seed", range(5))
def test_fitted_weights_are_a_minimum(seed: int) -> None:
    first, second = log_probs(LABELS, 0.7, seed), log_probs(LABELS, 1.2, seed + 10)
    weights = fit_mixture(first, second, LABELS).double()

    def loss(weights: torch.Tensor) -> float:
        start = torch.tensor([0.0, 1.0])
        nll = F.nll_loss(mixed(first, second, weights), LABELS, reduction="sum")
        return float(nll + PRIOR / 2 * (weights - start).square().sum())

    for step in ((0.05, 0.0), (-0.05, 0.0), (0.0, 0.05), (0.0, -0.05)):
        assert loss(weights + torch.tensor(step)) >= loss(weights)


@pytest.mark.parametrize("seed", [2, 3, 5])  # the best weight of the encoder is 0
def test_weight_at_its_bound_leaves_the_other_at_its_optimum(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (40,), generator=generator)
    encoder, linear = (
        (noise + strength * F.one_hot(labels, 3)).log_softmax(-1)
        for noise, strength in ((2 * torch.randn(40, 3, generator=generator), s) for s in (-2, 2))
    )
    weights = fit_mixture(encoder, linear, labels).double()
    assert weights[0] == 0

    def loss(weight: float) -> float:
        nats = F.nll_loss(mixed(encoder, linear, torch.tensor([0.0, weight])), labels, reduction="sum")
        return float(nats) + PRIOR / 2 * (weight - 1) ** 2

    assert loss(float(weights[1])) <= min(loss(weight) for weight in torch.linspace(0, 2, 201).tolist()) + 1e-3


def test_confident_mistakes_give_finite_weights() -> None:
    sure = torch.tensor([[0.0, -1000.0], [0.0, -1000.0]])
    assert fit_mixture(sure, sure, torch.tensor([1, 0])).isfinite().all()
