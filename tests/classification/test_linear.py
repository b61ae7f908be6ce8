"""The linear classifier equals plain logistic regression; saving and loading."""

import os
from math import sqrt
from pathlib import Path
from time import monotonic
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from penwright.classification import fitting, linear, ngrams, solver
from penwright.classification.fitting import NgramRows
from penwright.classification.linear import LinearClassifier, out_of_fold
from penwright.classification.ngrams import WORD_BIT, NgramVectorizer, count_ngrams
from penwright.classification.solver import Coefficients, SparseRows, Targets, fit_coefficients
from penwright.config import ProblemType
from penwright.devices import with_threads
from penwright.errors import PenwrightError

WORDS = {0: "dull bad poor weak", 1: "fine good great strong"}


def make_texts(n: int, noise: int = 0) -> tuple[list[str], torch.Tensor]:
    """Return texts whose words determine their labels, except the first `noise` labels, which are wrong."""
    labels = torch.tensor([number % 2 for number in range(n)])
    texts = [f"{WORDS[number % 2].split()[number % 4 // 2]} film {number}" for number in range(n)]
    labels[:noise] = 1 - labels[:noise]
    return texts, labels


def test_linear_classifier_learns_predictive_words() -> None:
    texts, labels = make_texts(40)
    found = LinearClassifier.fit(texts, labels, 2).outputs(["a good one", "a bad one"])
    assert found.argmax(-1).tolist() == [1, 0]
    assert found.exp().sum(-1).tolist() == pytest.approx([1, 1])


def test_coefficients_minimize_the_penalized_loss() -> None:
    texts, labels = make_texts(30, noise=4)
    vectorizer = NgramVectorizer.fit(texts, 10_000, 10_000)
    rows, n = SparseRows.of_numpy(*vectorizer.rows(texts)), len(vectorizer.keys)
    found = fit_coefficients(rows, labels, 3, n, 10.0)
    matrix = rows.dot(torch.eye(n)).double()

    def loss(weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(matrix @ weights + bias, labels) + weights.square().sum() / (2 * 10.0 * len(texts))

    weights, bias = (torch.zeros(shape, dtype=torch.double, requires_grad=True) for shape in ((n, 3), (3,)))
    optimizer = torch.optim.LBFGS([weights, bias], max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(weights, bias)
        value.backward()
        return value

    optimizer.step(closure)  # type: ignore[arg-type]
    least = float(loss(weights, bias).detach())
    assert least <= float(loss(*(part.double() for part in found[:2]))) <= (1 + solver.TOLERANCE) * least


@pytest.mark.parametrize("problem", get_args(ProblemType))
def test_errors_are_the_derivative_of_the_loss(problem: ProblemType) -> None:
    logits, direction = torch.randn(2, 6, 3, dtype=torch.double)
    targets = torch.arange(6) % 3 if problem == solver.SINGLE else torch.rand(6, 3, dtype=torch.double)
    _, errors = solver.loss_and_errors(logits, targets, problem)
    more, less = (solver.loss_and_errors(logits + step * direction, targets, problem)[0] for step in (1e-5, -1e-5))
    assert (more - less) / 2e-5 == pytest.approx(float((errors * direction).sum() / 6), rel=1e-4)


def test_small_fit_uses_one_thread_and_equals_other_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = make_texts(30, noise=4)
    vectorizer, ngrams = linear._vectorize(texts, 2)
    evaluate, n_threads, found = solver._Objective.evaluate, set[int](), []

    def spy(own: solver._Objective, point: torch.Tensor) -> tuple[float, torch.Tensor]:
        n_threads.add(torch.get_num_threads())
        return evaluate(own, point)

    monkeypatch.setattr(solver._Objective, "evaluate", spy)
    for most, expected in ((solver.FEW_PRODUCTS, 1), (0, 2)):
        monkeypatch.setattr(solver, "FEW_PRODUCTS", most)
        with with_threads(2):
            found.append(fit_coefficients(ngrams.rows, labels, 2, len(vectorizer.keys), 10.0).weights)
            assert n_threads == {expected} and torch.get_num_threads() == 2
        n_threads.clear()
    assert torch.equal(*found)


def test_fit_does_not_depend_on_its_start_or_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "TOLERANCE", 1e-4)
    texts, labels = make_texts(30, noise=4)
    vectorizer = NgramVectorizer.fit(texts, 10_000, 10_000)
    rows, n = SparseRows.of_numpy(*vectorizer.rows(texts)), len(vectorizer.keys)
    found = fit_coefficients(rows, labels, 2, n, 10.0)
    again = fit_coefficients(rows, labels, 2, n, 10.0, (found.factors, found.bias))
    assert torch.equal(again.factors, found.factors)
    strong = fit_coefficients(rows, labels, 2, n, 1.0)
    monkeypatch.setattr(solver, "MOST_PRODUCTS", 1)  # one label at a time
    monkeypatch.setattr(solver, "MOST_HISTORY", 1)
    other = fit_coefficients(rows, labels, 2, n, 10.0, (strong.factors, strong.bias))
    torch.testing.assert_close(other.logits(rows), found.logits(rows), atol=0.05, rtol=0)


@pytest.mark.parametrize("n_rare", [10, 60])
def test_balanced_classifier_finds_rare_texts_that_it_has_not_seen(n_rare: int) -> None:
    random = np.random.default_rng(0)

    def make(n: int, words: str) -> list[str]:
        return [" ".join(random.choice([*words.split(), *"abcdefghij"], 8)) for _ in range(n)]

    texts = make(100 * n_rare // 5, "dull poor weak") + make(n_rare, "dull great fine")
    labels = torch.tensor([0] * (len(texts) - n_rare) + [1] * n_rare)
    found = LinearClassifier.fit(texts, labels, 2, balanced=True)
    shares = torch.tensor([len(texts) - n_rare, n_rare]) / len(texts)
    recalls = [
        float(((found.outputs(make(200, words)) - shares.log()).argmax(-1) == label).float().mean())
        for label, words in enumerate(("dull poor weak", "dull great fine"))
    ]
    assert min(recalls) > 0.8


def test_balanced_classifier_returns_the_probabilities_of_its_texts() -> None:
    labels = torch.tensor([0] * 180 + [1] * 20)
    found = LinearClassifier.fit(["a film"] * 200, labels, 2, balanced=True)
    assert found.outputs(["a film"]).exp().tolist() == [pytest.approx([0.9, 0.1], abs=0.02)]
    again = found.refit(["a film"] * 100, labels[-100:])
    assert again is not None and again.outputs(["a film"]).exp().tolist() == [pytest.approx([0.8, 0.2], abs=0.04)]


def test_balanced_sample_has_all_texts_of_a_rare_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_affordable", lambda texts, *others: 20)
    texts = [f"a film {number}" for number in range(100)] + ["an odd plot"] * 3
    labels = torch.tensor([0] * 100 + [1] * 3)
    found = LinearClassifier.fit(texts, labels, 2, balanced=True)
    assert found.notes[0] == "fitted on 20 of 103 texts to save time"
    shares = torch.tensor([100.0, 3.0]) / 103
    assert (found.outputs(["an odd plot"]) - shares.log()).argmax() == 1
    assert found.outputs(["a film"]).argmax() == 0


def test_fitting_is_deterministic() -> None:
    texts, labels = make_texts(30)
    first, second = (LinearClassifier.fit(texts, labels, 2, seed=3) for _ in range(2))
    assert torch.equal(first.coefficients.weights, second.coefficients.weights)


def test_out_of_fold_predictions_do_not_see_their_own_label() -> None:
    texts, labels = make_texts(60, noise=6)
    found = out_of_fold(texts, labels, 2)
    assert (found.argmax(-1) != labels)[:6].all()  # the models did not see these wrong labels
    assert (found.argmax(-1) == labels)[6:].all()


def test_search_for_a_strength_reads_a_sample_of_many_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = make_texts(1100, noise=6)
    n_read, fit = [], fitting.fit_coefficients

    def count_and_fit(rows: SparseRows, *others: Any) -> Coefficients:
        n_read.append(rows.n_rows)
        return fit(rows, *others)

    monkeypatch.setattr(fitting, "fit_coefficients", count_and_fit)
    monkeypatch.setattr(fitting, "MANY_TEXTS", 60)
    found = LinearClassifier.fit(texts, labels, 2)  # its last fit calls the original function, with all texts
    assert set(n_read) == {60} and found.notes == ()
    assert found.outputs(["a good one", "a bad one"]).argmax(-1).tolist() == [1, 0]
    logits = out_of_fold(texts, labels, 2)
    assert (logits.exp().max(-1).values > 0.5).all()  # texts that were not checked would have equal probabilities
    assert LinearClassifier.fit(texts, labels, 2, balanced=True, until=monotonic() + 1e6).balancing is not None


def test_number_of_weights_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MOST_WEIGHTS", 100)
    texts, labels = make_texts(40)
    assert LinearClassifier.fit(texts, labels, 4).coefficients.weights.numel() <= 100


@pytest.mark.parametrize("texts", [["a"], ["a", "b"], ["", " "]])
def test_very_few_texts_can_be_fitted(texts: list[str]) -> None:
    labels = torch.arange(len(texts))
    assert LinearClassifier.fit(texts, labels, 2).outputs(["a", ""]).isfinite().all()


def test_saved_classifier_round_trips(tmp_path: Path) -> None:
    texts, labels = make_texts(30)
    fitted = LinearClassifier.fit(texts, labels, 2)
    fitted.save(tmp_path / "ngrams.safetensors")
    loaded = LinearClassifier.load(tmp_path / "ngrams.safetensors", 2)
    assert torch.equal(loaded.outputs(texts), fitted.outputs(texts))
    assert [path.name for path in tmp_path.iterdir()] == ["ngrams.safetensors"]


def test_small_weights_of_a_large_classifier_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = make_texts(30)
    expected, path = LinearClassifier.fit(texts, labels, 2), tmp_path / "ngrams.safetensors"
    monkeypatch.setattr(linear, "MOST_NONZERO", expected.coefficients.weights.numel() // 4)
    fitted = LinearClassifier.fit(texts, labels, 2)
    weights = fitted.coefficients.weights
    assert weights.count_nonzero() <= linear.MOST_NONZERO < weights.numel()
    assert (fitted.outputs(texts).argmax(-1) == labels).all()
    fitted.save(path)
    assert torch.equal(LinearClassifier.load(path, 2).coefficients.weights, weights)
    tensors = load_file(path)
    for name in ("weights", "mask"):
        save_file(tensors | {name: tensors[name][1:]}, path)
        with pytest.raises(PenwrightError, match="Restore the original file"):
            LinearClassifier.load(path, 2)


def test_file_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flushed = tmp_path / "ngrams.safetensors", list[tuple[int, bool]]()
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append((os.fstat(file).st_ino, path.exists())))
    LinearClassifier.fit(*make_texts(8), 2).save(path)
    assert (path.stat().st_ino, False) in flushed


def test_file_may_also_contain_a_classifier_of_all_texts(tmp_path: Path) -> None:
    texts, labels = make_texts(30)
    path, part, whole = (
        tmp_path / "ngrams.safetensors",
        *(LinearClassifier.fit(texts[:n], labels[:n], 2) for n in (20, 30)),
    )
    part.save(path, whole)
    for has_all, expected in ((False, part), (True, whole)):
        found = LinearClassifier.load(path, 2, whole=has_all)
        assert torch.equal(found.outputs(texts), expected.outputs(texts))
    part.save(path)
    assert len(LinearClassifier.load(path, 2, whole=True).vectorizer.keys) == len(part.vectorizer.keys)


def test_refitting_equals_fitting_on_all_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "TOLERANCE", 1e-4)
    texts, labels = make_texts(40)
    part = LinearClassifier.fit(texts[:30], labels[:30], 2)
    again = part.refit(texts, labels)
    rows = SparseRows.of_numpy(*again.vectorizer.rows(texts))
    n_ngrams = len(again.vectorizer.keys)
    afresh = fit_coefficients(rows, labels, 2, n_ngrams, part.strength or 0.0)
    expected = afresh.logits(rows).double().log_softmax(-1)
    torch.testing.assert_close(again.outputs(texts), expected, atol=0.05, rtol=0)
    assert n_ngrams > len(part.vectorizer.keys)


def test_ngrams_of_one_label_weigh_more_than_ngrams_of_all_texts() -> None:
    texts = ["good film", "good cast", "bad film", "bad cast", "rare film", "cast"]
    labels = torch.tensor([1, 1, 0, 0, 1, 0])
    vectorizer = NgramVectorizer.fit(texts, 10_000, 10_000)
    rows = SparseRows.of_numpy(*vectorizer.rows(texts))
    ngrams = NgramRows(rows, torch.from_numpy(vectorizer.keys >= WORD_BIT))

    def weights(targets: Targets) -> dict[str, float]:
        found = ngrams.label_weights(targets, 2)
        words = ("good", "film", "rare")
        keys = [count_ngrams([word]).keys[-1] for word in words]
        return {
            word: float(found[np.searchsorted(vectorizer.keys, key)]) for word, key in zip(words, keys, strict=True)
        }

    single = weights(labels)
    assert single == pytest.approx({"good": sqrt(2 / 3), "film": sqrt(2 / 21), "rare": sqrt(2 / 5)})
    assert weights(F.one_hot(labels, 2).float()) == pytest.approx(single)
    constant = ngrams.label_weights(torch.zeros(6, dtype=torch.long), 2)
    assert (constant > 0).all() and ngrams.weighted(constant).values.isfinite().all()
    assert ngrams._replace(is_weighted=False).weighted(constant) is rows


@pytest.mark.parametrize("helps", [True, False])
def test_label_weights_are_used_if_they_lower_the_loss_on_other_texts(helps: bool) -> None:
    words = np.random.default_rng(0).integers(0, 500 if helps else 4, (60, 12))
    labels = torch.arange(60) % 2
    texts = [
        f"{' '.join(f'w{word}' for word in row)} {WORDS[label][:4] if helps else ''}"
        for row, label in zip(words.tolist(), labels.tolist(), strict=True)
    ]
    found = LinearClassifier.fit(texts, labels, 2)
    assert found.is_weighted == helps
    again = found.refit(texts, labels)
    assert again is not None and np.array_equal(again.vectorizer.idf, found.vectorizer.idf)


def test_validation_texts_replace_cross_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text occurs twice, with a random label. Only the validation texts show that nothing can be learned."""
    random = np.random.default_rng(0)
    words = random.integers(0, 500, (90, 8)).tolist()
    texts = [" ".join(f"w{word}" for word in row) for row in words]
    labels = torch.from_numpy(random.integers(0, 2, 90))
    twice, known, validation = texts[:50] * 2, labels[:50].repeat(2), fitting.HeldOut(None, (texts[50:], labels[50:]))
    without = LinearClassifier.fit(twice, known, 2)
    assert without.strength == fitting.STRENGTHS[-1]
    assert LinearClassifier.fit(twice, known, 2, held_out=validation).strength == without.strength, "too few texts"
    monkeypatch.setattr(linear, "FEWEST_CHECKED", 40)
    found = LinearClassifier.fit(twice, known, 2, held_out=validation)
    assert found.strength == fitting.STRENGTHS[0]
    weights = found.vectorizer.rows(twice)[1]
    assert len(weights) == len(without.vectorizer.rows(twice)[1]), "n-grams of validation texts are not used"
    balanced = [
        LinearClassifier.fit(twice, known, 2, held_out=each, balanced=True)
        for each in (fitting.CROSS_VALIDATION, validation)
    ]
    assert torch.equal(*(each.coefficients.weights for each in balanced))


def test_weighted_rows_equal_those_of_the_weighted_vectorizer() -> None:
    texts, labels = make_texts(20)
    vectorizer = NgramVectorizer.fit(texts, 10_000, 10_000)
    rows = SparseRows.of_numpy(*vectorizer.rows(texts))
    ngrams = NgramRows(rows, torch.from_numpy(vectorizer.keys >= WORD_BIT))
    weights = ngrams.label_weights(labels, 2)
    expected = vectorizer._replace(idf=vectorizer.idf * weights.numpy()).rows(texts)
    torch.testing.assert_close(ngrams.weighted(weights).values, torch.from_numpy(expected.values))
    train, check = ngrams.split(labels, 2, np.arange(15), np.arange(15, 20))
    others = torch.cat([labels[:15], 1 - labels[15:]])
    for before, after in zip((train, check), ngrams.split(others, 2, np.arange(15), np.arange(15, 20)), strict=True):
        assert torch.equal(before.values, after.values), "the labels of the second part are not used"


def test_fit_past_its_deadline_uses_fewer_texts_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "PILOT_CHARACTERS", 600)
    monkeypatch.setattr(solver, "TOLERANCE", 0.0)
    texts, labels = make_texts(400, noise=40)
    found = LinearClassifier.fit(texts, labels, 2, until=monotonic())
    assert len(found.notes) == 2 and found.notes[0].endswith("of 400 texts to save time")
    assert len(found.vectorizer.keys) < len(LinearClassifier.fit(texts, labels, 2).vectorizer.keys)
    assert found.outputs(["a good one", "a bad one"]).argmax(-1).tolist() == [1, 0]
    assert found.refit(texts, labels, until=monotonic()) is None


def test_only_one_strength_is_tried_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, fit = list[float](), fitting.fit_coefficients
    monkeypatch.setattr(fitting, "fit_coefficients", lambda *args: tried.append(args[4]) or fit(*args))
    LinearClassifier.fit(*make_texts(40), 2, until=monotonic())
    assert tried == fitting.N_FOLDS * [fitting.STRENGTHS[0]]


def test_estimate_of_a_duration_counts_the_iterations_of_the_first_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = make_texts(400)
    fit, evaluate, n_evaluations = linear.fit_coefficients, solver._Objective.evaluate, list[int]()
    monkeypatch.setattr(solver._Objective, "evaluate", lambda *args: n_evaluations.append(1) or evaluate(*args))
    monkeypatch.setattr(linear, "PILOT_CHARACTERS", 600)
    found = []
    for n_iterations in (5, 2):
        ticks = iter([0.0, 1.0, 2.0])  # each part of the pilot takes a second
        monkeypatch.setattr(linear, "monotonic", ticks.__next__)
        changed = {"n_iterations": n_iterations}
        monkeypatch.setattr(linear, "fit_coefficients", lambda *args, changed=changed: fit(*args)._replace(**changed))
        found.append(linear._affordable(texts, labels, 2, 42.0, solver.SINGLE))
    assert found[1] < found[0] < len(texts)
    n_evaluations.clear()
    vectorizer, ngrams = linear._vectorize(texts, 2)
    coefficients = fit(ngrams.rows, labels, 2, len(vectorizer.keys), 10.0)
    assert coefficients.n_iterations == len(n_evaluations) - 1 > 0


def test_fit_with_a_late_deadline_equals_an_unlimited_fit() -> None:
    texts, labels = make_texts(60, noise=6)
    found, expected = (
        LinearClassifier.fit(texts, labels, 2, until=monotonic() + 1e6),
        LinearClassifier.fit(texts, labels, 2),
    )
    assert found.notes == ()
    torch.testing.assert_close(found.outputs(texts), expected.outputs(texts))


def test_file_that_is_not_a_classifier_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ngrams.safetensors"
    with pytest.raises(PenwrightError, match="cannot be read"):
        LinearClassifier.load(path, 2)
    path.write_bytes(b"nothing")
    with pytest.raises(PenwrightError, match="cannot be read"):
        LinearClassifier.load(path, 2)
    save_file({name: torch.zeros(3) for name in ("keys", "idf", "weights", "bias")}, path)
    with pytest.raises(PenwrightError, match="not a linear classifier with 2 labels"):
        LinearClassifier.load(path, 2)
    other = tmp_path / "other.safetensors"
    LinearClassifier.fit(*make_texts(8), 2).save(other)
    path.unlink()
    path.symlink_to(other)
    with pytest.raises(PenwrightError, match="link"):
        LinearClassifier.load(path, 2)
    tensors = load_file(other)
    for name in ("keys", "weights"):
        save_file(tensors | {name: tensors[name].double()}, other)
        with pytest.raises(PenwrightError, match="not a linear classifier with 2 labels"):
            LinearClassifier.load(other, 2)


def test_logits_are_weights_times_features_plus_bias() -> None:
    vectorizer = NgramVectorizer.fit(["ab"], 100, 100)
    found = Coefficients(torch.ones(len(vectorizer.keys), 2), torch.tensor([1.0, 2.0])).logits(
        SparseRows.of_numpy(*vectorizer.rows(["", "ab"]))
    )
    assert found[0].tolist() == [1.0, 2.0] and found[1, 1] > 2


def test_outputs_count_the_ngrams_of_a_few_texts_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, labels = make_texts(40)
    found, sizes, logits = LinearClassifier.fit(texts, labels, 2), list[int](), Coefficients.logits
    expected = found.outputs(texts)
    monkeypatch.setattr(ngrams, "CHUNK_TEXTS", 15)
    monkeypatch.setattr(Coefficients, "logits", lambda own, rows: sizes.append(rows.n_rows) or logits(own, rows))
    assert torch.equal(found.outputs(texts), expected) and sizes == [15, 15, 10]
    assert found.outputs([]).shape == (0, 2)


def test_groups_stay_together_in_cross_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), random.integers(1, 9, 60)).astype(np.uint64)
    labels = torch.from_numpy((random.random(60) < 0.3).astype(np.int64)[groups])
    folds = fitting.stratified_folds(labels, 0, groups=groups)
    assert all(len(set(folds[groups == group])) == 1 for group in range(60))
    sizes = np.array([np.bincount(folds[labels.numpy() == label], minlength=5) for label in (0, 1)])
    assert (np.ptp(sizes, axis=1) <= 8).all(), "each class has about as many texts in each fold"
    two = fitting.stratified_folds(labels, 0, groups=(groups > 5).astype(np.uint64))
    assert set(two) == {0, 1} and len(set(two[groups > 5])) == 1
    alone = fitting.stratified_folds(labels, 0, groups=np.zeros_like(groups))
    assert (alone == fitting.stratified_folds(labels, 0)).all(), "a single group is divided like texts without groups"

    used = []
    choose = linear.choose_strength
    monkeypatch.setattr(linear, "choose_strength", lambda *args: used.append(args[3]) or choose(*args))
    texts = [f"author {group} text {number}" for number, group in enumerate(groups.tolist())]
    LinearClassifier.fit(texts, labels, 2, held_out=fitting.HeldOut(groups), balanced=True)
    out_of_fold(texts, labels, 2, groups=groups)
    for each in used:
        assert all(len(set(each[groups == group])) == 1 for group in range(60))
    assert len(used) == 2
