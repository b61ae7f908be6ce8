from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from penwright.evaluation.classification import (
    balanced_accuracy,
    classification_scores,
    confusion_and_nll,
    with_group_errors,
    worst_sets,
)
from penwright.evaluation.scores import N_MISTAKES, Mistake, best_threshold, label_scores, worst_mistakes


def scores_of(counts: list[list[int]]) -> dict[str, float]:
    return {score.name: score.value for score in classification_scores(np.array(counts))}


def test_accuracy_is_the_proportion_on_the_diagonal() -> None:
    assert scores_of([[8, 2], [1, 9]])["accuracy"] == pytest.approx(85.0)


def test_accuracy_has_a_standard_error() -> None:
    accuracy = classification_scores(np.array([[40, 10], [10, 40]]))[0]
    assert accuracy.standard_error == pytest.approx(100 * (0.8 * 0.2 / 100) ** 0.5)
    assert accuracy.note == "% of 100 examples, standard error 4.0"


def test_standard_errors_allow_for_groups_of_texts() -> None:
    right, truth = np.repeat([True, False, True, True], 25), np.repeat([0, 0, 1, 1], 25)
    counts = np.array([[25, 25], [0, 50]])
    scores = [*classification_scores(counts), balanced_accuracy(counts)]
    groups = np.repeat(np.arange(4, dtype=np.uint64), 25)
    accuracy, macro_f1, balanced = with_group_errors(scores, right, truth, groups)
    assert accuracy.standard_error == pytest.approx(100 * np.std([1, 0, 1, 1], ddof=1) / 2)
    assert balanced.standard_error == pytest.approx(100 * sqrt(4 / 3 * (2 * 0.25**2) / 4))
    assert accuracy.note == "% of 100 examples, standard error 25.0 (4 groups)" and macro_f1 == scores[1]
    alone = with_group_errors(scores, right, truth, np.arange(100, dtype=np.uint64))
    for before, after in ((scores[0], alone[0]), (scores[2], alone[2])):
        assert after.standard_error == pytest.approx(before.standard_error, rel=0.01)
    assert with_group_errors(scores, right, truth, 0 * groups) == scores


def test_macro_f1_is_the_unweighted_mean_over_labels() -> None:
    # precision 8/9 and recall 8/10 for the first label, 9/11 and 9/10 for the second
    first, second = 2 * (8 / 9) * 0.8 / (8 / 9 + 0.8), 2 * (9 / 11) * 0.9 / (9 / 11 + 0.9)
    assert scores_of([[8, 2], [1, 9]])["macro-F1"] == pytest.approx(50 * (first + second))


def test_constant_prediction_has_a_low_macro_f1() -> None:
    scores = scores_of([[90, 0], [10, 0]])
    assert scores["accuracy"] == 90.0 and scores["macro-F1"] < 50


def test_label_without_examples_is_ignored_in_macro_f1() -> None:
    assert scores_of([[5, 0, 0], [0, 5, 0], [0, 0, 0]])["macro-F1"] == pytest.approx(100.0)


def test_balanced_accuracy_is_the_mean_recall_of_labels_with_examples() -> None:
    score = balanced_accuracy(np.array([[90, 10, 0], [5, 5, 0], [0, 0, 0]]))
    assert score.value == pytest.approx(70.0)
    assert score.standard_error == pytest.approx(50 * (0.9 * 0.1 / 100 + 0.5 * 0.5 / 10) ** 0.5)


def test_label_weights_scale_the_nats() -> None:
    log_probs, labels = torch.tensor([[0.8, 0.2], [0.4, 0.6]]).log(), torch.tensor([0, 1])
    _, total = confusion_and_nll(log_probs, labels, torch.tensor([1.0, 3.0]))
    assert total.nats == pytest.approx(-np.log(0.8) - 3 * np.log(0.6))


def test_confusion_matrix_counts_every_example_in_its_row() -> None:
    log_probs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    labels = torch.tensor([0, 2, 2, 1])
    counts, total = confusion_and_nll(log_probs, labels)
    assert counts.sum(1).tolist() == [1, 1, 2]
    assert counts.sum(0).tolist() == torch.bincount(log_probs.argmax(-1), minlength=3).tolist()
    assert total.n_targets == 4 and total.nats == pytest.approx(-float(log_probs[range(4), labels].sum()))


@pytest.mark.parametrize("has_sets", [False, True])
def test_most_confident_mistakes_are_numbered_among_all_texts(has_sets: bool) -> None:
    logits, truth = torch.randn(90, 3), torch.arange(90) % 3
    texts, labels = [f"text {number}" for number in range(90)], ["a", "b", "c"]

    def mistakes(first_row: int) -> list[Mistake]:
        part, targets, rest = logits[first_row:], truth[first_row:], texts[first_row:]
        if has_sets:
            return worst_sets(part, F.one_hot(targets, 3).float(), torch.full((3,), 0.5), rest, labels, first_row)
        return worst_mistakes(part.log_softmax(-1), targets, rest, labels, first_row)

    whole, last = mistakes(0), mistakes(50)
    assert len(whole) == N_MISTAKES and all(texts[each.row] == each.text for each in [*whole, *last])
    assert [each.probability for each in whole] == sorted((each.probability for each in whole), reverse=True)
    known = {each.row for each in last}
    assert known >= {each.row for each in whole if each.row >= 50}


def test_label_without_texts_has_no_recall_and_label_without_predictions_no_precision() -> None:
    scores = label_scores(np.array([[0, 2], [0, 0]]), ["never predicted", "never true"])
    assert [(each.precision, each.recall, each.f1) for each in scores] == [(None, 0, 0), (0, None, 0)]


def test_threshold_has_few_digits_but_separates_the_same_texts() -> None:
    probabilities = np.array([0.9999999, 0.99999, 0.5])
    for n_right, shown in ((1, "0.999995"), (2, "0.75"), (3, "0.25")):
        found = best_threshold(probabilities, np.arange(3) < n_right, "spam")
        assert found is not None and repr(found.threshold) == shown and found.f1 == 100


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.4, 0.7, 0.9, 1.0]), st.booleans()), max_size=30))
def test_best_threshold_has_the_highest_f1(texts: list[tuple[float, bool]]) -> None:
    probabilities, truth = np.array([p for p, _ in texts], dtype=float), np.array([t for _, t in texts], dtype=bool)

    def f1(threshold: float) -> float:
        chosen = probabilities >= threshold
        return 200 * int((chosen & truth).sum()) / max(1, int(chosen.sum() + truth.sum()))

    found = best_threshold(probabilities, truth, "spam")
    if found is None:
        assert not truth.any() or not (probabilities > 0).any()
        return
    assert found.f1 == pytest.approx(f1(found.threshold))
    assert found.f1 >= max(f1(threshold) for threshold in probabilities if threshold > 0) - 1e-9
    assert found.f1 == pytest.approx(2 * found.precision * found.recall / max(1e-9, found.precision + found.recall))
