"""Multi-label classification and regression: reading, fitting, thresholds, metrics, and commands."""

import csv
import io
import json
from math import log, sqrt
from pathlib import Path
from statistics import NormalDist
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from penwright.classification import solver
from penwright.classification.linear import LinearClassifier
from penwright.classification.mixture import (
    LINEAR_ALONE,
    MOST_WEIGHT,
    PRIOR,
    fit_mixture_of_scores,
    fit_mixture_of_sets,
    mixed,
)
from penwright.classification.ngrams import NgramVectorizer
from penwright.classification.solver import SparseRows, fit_coefficients
from penwright.config import ModelSettings, Table, merge
from penwright.data.batches import MixedBatches
from penwright.data.corpus import BETWEEN_LABELS, Columns, Corpus, LabelKind, ReadingOptions
from penwright.data.labelled import open_evaluation_labelled, open_labelled
from penwright.data.labels import label_set
from penwright.errors import PenwrightError
from penwright.evaluation.classification import (
    correlation,
    count_sets,
    largest_errors,
    ranks,
    regression_scores,
    scores_of_labels,
    set_scores,
    worst_sets,
)
from penwright.model.transformer import EncoderOnly
from penwright.model.weights import weights_of
from penwright.run.folder import Run
from penwright.run.provenance import ModelCard
from penwright.tasks import TASKS, AnyCorpus, RunContext, classification, linear, multi_label
from penwright.tasks.labelled import classifier_of, linear_note, target_table
from penwright.tasks.multi_label import FEWEST_POSITIVES, baselines, fit_thresholds
from penwright.workflows.evaluate import evaluation_context, open_corpus_of
from penwright.workflows.load import OpenedRun, open_run
from penwright.workflows.old_text import with_old_text
from penwright.workflows.plan import first_examples, prepare
from penwright.workflows.train import _begin, train

from ..cli.conftest import QUICK, Command, penwright  # noqa: F401  # a fixture

WORDS = {"action": "gun chase", "comedy": "joke laugh", "war": "battle army"}
SETS = [["action"], ["comedy"], ["war"], ["action", "war"], ["comedy", "war"], ["action", "comedy", "war"]]


def labelled_texts(n: int = 240) -> list[tuple[str, list[str]]]:
    chosen = [SETS[number * 7 % len(SETS)] for number in range(n)]
    return [(" ".join([*(WORDS[label] for label in labels), f"film {k}"]), labels) for k, labels in enumerate(chosen)]


def scored_texts(n: int = 200) -> list[tuple[str, float]]:
    return [(" ".join(["great"] * (k % 5) + ["bad"] * (4 - k % 5) + [f"film {k}"]), 1.5 + k % 5 / 2) for k in range(n)]


def write(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def set_table(folder: Path, separator: str) -> Path:
    rows = [[text, separator.join(labels)] for text, labels in labelled_texts()]
    return write(folder / "films.csv", ["text", "label"], rows)


def score_table(folder: Path) -> Path:
    return write(folder / "stars.csv", ["text", "score"], [list(row) for row in scored_texts()])


def test_two_labels_and_their_combination_are_several_labels(tmp_path: Path) -> None:
    topics = ["a", "b", "a|b"]
    path = write(tmp_path / "two.csv", ["text", "label"], [[f"film {k}", topics[k % 3]] for k in range(60)])
    assert open_labelled([path]).label_kind == LabelKind("multi_label_classification", "|")


@pytest.mark.parametrize("separator", ["|", ";"])
def test_label_separator_is_inferred(tmp_path: Path, separator: str) -> None:
    corpus = open_labelled([set_table(tmp_path, separator)])
    assert corpus.label_kind == LabelKind("multi_label_classification", separator)
    assert corpus.labels == ("action", "comedy", "war")
    counts = {label: sum(label in example.labels for example in corpus.training) for label in corpus.labels}
    assert dict(corpus.label_counts) == counts
    assert 0 < len(corpus.held_out) < 40


def test_label_lists_in_json_lines_are_inferred(tmp_path: Path) -> None:
    path = tmp_path / "films.jsonl"
    texts = [*labelled_texts(), *((f"a film about nothing {n}", []) for n in range(30))]
    lines = [json.dumps({"text": text, "labels": labels}) for text, labels in texts]
    path.write_text("\n".join(lines), encoding="utf-8")
    corpus = open_labelled([path])
    assert corpus.label_kind == LabelKind("multi_label_classification")
    assert {example.labels for example in corpus.training} == {(), *(tuple(labels) for labels in SETS)}
    assert len(corpus.training) + len(corpus.held_out) == len(texts)


def test_cells_are_parsed_as_label_sets() -> None:
    assert label_set(" b ; a;b;", ";", {}, set()) == "a\x1fb"
    assert label_set('["x, y", "z"]', None, {"z": "last"}, set()) == "last\x1fx, y"
    assert label_set("", "|", {}, set()) == ""


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("['Tech' 'long']", "Tech\x1flong"),
        ("['a b'\n 'c']", "a b\x1fc"),
        ("[2 27]", "2\x1f27"),
        ("""['a', "b 'c' 'd'", 1.5]""", "1.5\x1fa\x1fb 'c' 'd'"),
        ("[see below]", "[see below]"),
    ],
)
def test_lists_in_the_notations_of_python_and_numpy_are_parsed(cell: str, labels: str) -> None:
    assert label_set(cell, None, {}, set()) == labels


def test_held_out_labels_all_occur_in_training(tmp_path: Path) -> None:
    rows = [[text, ";".join(labels)] for text, labels in labelled_texts(60)]
    rows += [[f"odd {k}", f"action;rare{k % 8}"] for k in range(9)]
    corpus = open_labelled([write(tmp_path / "films.csv", ["text", "label"], rows)])
    known = {label for example in corpus.training for label in example.labels}
    assert known == set(corpus.labels) and {each for text in corpus.held_out for each in text.labels} <= known


def test_scores_that_are_not_finite_numbers_are_dropped(tmp_path: Path) -> None:
    rows = [*scored_texts(40), ("no number", "good"), ("not finite", "inf"), ("nothing", "")]
    path = write(tmp_path / "stars.csv", ["text", "score"], [list(row) for row in rows])
    corpus = open_labelled([path], ReadingOptions(Columns(label_kind=LabelKind("regression"))))
    assert corpus.labels == ("score",)
    assert len(corpus.training) + len(corpus.held_out) == 40
    assert {float(value) for value in corpus.label_values} == {1.5, 2.0, 2.5, 3.0, 3.5}
    dropped = {each.reason: each.count for each in corpus.report.dropped}
    assert dropped["the label is not a number"] == 2 and sum(dropped.values()) == 3


def test_scores_that_are_all_equal_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "stars.csv", ["text", "score"], [[f"text {n}", "3" if n % 2 else "3.0"] for n in range(40)])
    with pytest.raises(PenwrightError, match=r"all texts have the score 3\.0"):
        open_labelled([path], ReadingOptions(Columns(label_kind=LabelKind("regression"))))


def test_large_scores_keep_their_differences() -> None:
    values = [1.7e9 + n for n in range(8)]  # times in seconds, which float32 rounds to multiples of 128
    model = EncoderOnly(9, ModelSettings(d_model=8, n_layers=1, n_heads=1, problem_type="regression"), 1)
    model.scale.copy_(torch.tensor([1.7e9, 2.0]))
    recipe = Mock(model=Mock(problem_type="regression"))
    context = Mock(spec=RunContext, recipe=recipe, model=model, card=Mock(labels=("time",)))
    targets = target_table(context, Mock(spec=Corpus, label_values=tuple(map(repr, values))))
    assert targets is not None
    mean, deviation = model.scale.tolist()
    assert (mean + deviation * targets.double()[:, 0]).tolist() == pytest.approx(values, abs=1e-3)


def test_labels_of_a_set_match_whatever_their_notation(tmp_path: Path) -> None:
    recipe, card = Mock(model=Mock(problem_type="multi_label_classification")), Mock(labels=("good", "sci-fi", "1"))
    context = Mock(spec=RunContext, recipe=recipe, card=card)
    values = ("good", BETWEEN_LABELS.join(["1.0", "Good"]), "Sci Fi", BETWEEN_LABELS)
    targets = target_table(context, Mock(spec=Corpus, label_values=values))
    assert targets is not None and targets.tolist() == [[1, 0, 0], [1, 0, 1], [0, 1, 0], [0, 0, 0]]
    path = write(tmp_path / "films.csv", ["text", "label"], [["a film", "good"], ["a dull film", "good|bad"]])
    columns = Columns(label_kind=LabelKind("multi_label_classification", "|"), label="label")
    with pytest.raises(PenwrightError, match=r"films\.csv row 3: the label 'bad' does not occur in the training texts"):
        target_table(context, open_evaluation_labelled([path], ReadingOptions(columns)))
    path = write(tmp_path / "others.csv", ["text", "label"], [["a film", "good"], ["a dull film", "good;Sci Fi"]])
    with pytest.raises(PenwrightError, match=r"If ';' separates several labels: --set data\.label_separator=';'"):
        target_table(context, open_evaluation_labelled([path], ReadingOptions(columns)))


@pytest.mark.parametrize("seed", range(20))
def test_mixture_of_scores_is_the_optimum_within_its_bounds(seed: int) -> None:
    torch.manual_seed(seed)
    encoder, linear = torch.randn(30, 1), torch.randn(30, 1)
    scores = 8 * torch.randn(()) * encoder + 3 * torch.randn(()) * linear + torch.randn(30, 1)
    best, start = fit_mixture_of_scores(encoder, linear, scores).double(), torch.tensor(LINEAR_ALONE).double()

    def loss(weights: Tensor) -> float:
        errors = weights[0] * encoder + weights[1] * linear - scores
        return float(errors.square().sum() + PRIOR * (weights - start).square().sum())

    grid = torch.cartesian_prod(*2 * [torch.linspace(0, MOST_WEIGHT, 51, dtype=torch.double)])
    assert loss(best) <= min(map(loss, grid)) + 1e-4
    assert best.min() >= 0 and best.max() <= MOST_WEIGHT


def test_multi_label_fit_equals_independent_logistic_regressions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "TOLERANCE", 1e-4)
    texts = [text for text, _ in labelled_texts(60)]
    targets = torch.tensor([[float(name in labels) for name in WORDS] for _, labels in labelled_texts(60)])
    vectorizer = NgramVectorizer.fit(texts, 10_000, 10_000)
    rows, n = SparseRows.of_numpy(*vectorizer.rows(texts)), len(vectorizer.keys)
    found = fit_coefficients(rows, targets, 3, n, 10.0, problem="multi_label_classification")
    for label in range(3):
        two = fit_coefficients(rows, targets[:, label].long(), 2, n, 5.0)  # half the strength: weights count twice
        logits = (two.weights[:, 1] - two.weights[:, 0], two.bias[1] - two.bias[0])
        torch.testing.assert_close(
            found.logits(rows)[:, label], rows.dot(logits[0][:, None])[:, 0] + logits[1], atol=0.05, rtol=0
        )


def test_regression_fit_equals_ridge_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver, "TOLERANCE", 1e-4)
    texts, numbers = zip(*scored_texts(60), strict=True)
    targets = torch.tensor(numbers)[:, None] - 2.5
    vectorizer = NgramVectorizer.fit(texts, 10_000, 10_000)
    rows, n = SparseRows.of_numpy(*vectorizer.rows(texts)), len(vectorizer.keys)
    found = fit_coefficients(rows, targets, 1, n, 3.0, problem="regression").logits(rows).double()
    matrix = torch.cat([rows.dot(torch.eye(n)), torch.ones(60, 1)], 1).double()
    penalty = torch.eye(n + 1, dtype=torch.double) / 3.0
    penalty[-1, -1] = 0
    weights = torch.linalg.solve(matrix.T @ matrix + penalty, matrix.T @ targets.double())
    torch.testing.assert_close(found, matrix @ weights, atol=1e-2, rtol=0)


def test_mixtures_have_a_lower_loss_than_their_parts() -> None:
    torch.manual_seed(0)
    truth = (torch.rand(500, 4) < 0.3).float()
    encoder, linear = (2 * (truth - 0.5) + torch.randn(500, 4) for _ in range(2))
    weights = fit_mixture_of_sets(encoder, linear, truth)
    losses = [
        float(F.binary_cross_entropy_with_logits(each.double(), truth.double()))
        for each in (mixed(encoder, linear, weights, "multi_label_classification"), encoder, linear)
    ]
    assert losses[0] < min(losses[1:])
    scores = torch.randn(500, 1)
    encoder, linear = (scores + torch.randn(500, 1) for _ in range(2))
    weights = fit_mixture_of_scores(encoder, linear, scores)
    assert (mixed(encoder, linear, weights, "regression") - scores).square().mean() < (linear - scores).square().mean()
    assert weights.tolist() == pytest.approx([1 / 3, 1 / 3], abs=0.08)


def test_thresholds_are_tuned_only_for_labels_with_enough_texts() -> None:
    truth = torch.zeros(100, 2)
    truth[:30, 0] = 1
    truth[: FEWEST_POSITIVES - 1, 1] = 1
    logits = torch.where(truth.bool(), -1.0, -3.0)  # probabilities 0.27 and 0.05
    first, second = fit_thresholds(logits, truth).tolist()
    assert 0.05 < first < 0.27 and second == 0.5


def test_notes_on_the_linear_classifier_are_saved_and_shown(tmp_path: Path) -> None:
    texts, numbers = zip(*scored_texts(60), strict=True)
    targets = torch.tensor(numbers)[:, None] - 2.5
    part, every = (LinearClassifier.fit(texts[:n], targets[:n], 1, problem="regression") for n in (30, 60))
    assert every.notes == ()
    path = tmp_path / "linear.safetensors"
    part._replace(notes=("fitted on 3 of 9 texts", "stopped early")).save(path, every)
    first, whole = (LinearClassifier.load(path, 1, whole=whole, problem="regression") for whole in (False, True))
    context = Mock(spec=RunContext, linear=first, whole_linear=None)
    assert linear_note(context, "ridge") == "ridge, fitted on 3 of 9 texts; stopped early"
    context.whole_linear = whole
    assert linear_note(context, "ridge") == "ridge"


def test_multi_label_metrics() -> None:
    truth = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    predicted = torch.tensor([[True, False], [True, False], [False, True]])
    counts = count_sets(predicted, truth)
    micro, macro, exact = set_scores(counts)
    assert (micro.value, macro.value, exact.value) == pytest.approx((200 * 2 / 6, 50.0, 100 / 3))
    first, second = scores_of_labels(counts.plus(counts), ["a", "b"], torch.tensor([0.5, 0.25]))
    assert (first.f1, first.n_texts, second.recall, second.threshold) == (100.0, 4, 0.0, 0.25)
    worst = worst_sets(
        torch.tensor([[3.0, -3], [3, -3], [-3, 1]]), truth, torch.full((2,), 0.5), list("xyz"), ["a", "b"]
    )
    assert [(each.predicted, each.label, each.text) for each in worst] == [("a", "a, b", "y"), ("b", "", "z")]


def test_regression_metrics() -> None:
    truth = np.array([1.0, 2.0, 2.0, 4.0])
    assert ranks(truth).tolist() == [1.0, 2.5, 2.5, 4.0]
    assert correlation(truth, 3 - 2 * truth) == pytest.approx(-1)
    assert correlation(truth, np.ones(4)) == 0
    pearson, spearman, error, nats = regression_scores(truth**3, truth, 1.0)
    assert spearman.value == pytest.approx(1) and 0.8 < pearson.value < 1 and error.value == pytest.approx(18)
    assert pearson.standard_error == pytest.approx((1 - pearson.value**2) / sqrt(3))
    nats = regression_scores(truth + 6, truth, 2.0)[-1]
    assert nats.value == pytest.approx(-log(NormalDist().pdf(3))), "all predictions are 3 deviations off"


def baselines_of(opened: OpenedRun, corpus: AnyCorpus) -> dict[str, float]:
    """Return the scores of a linear classifier that gives all labels tiny probabilities."""
    context = evaluation_context(opened, corpus, opened.model())
    assert context.linear is not None
    coefficients = context.linear.coefficients
    shifted = context.linear._replace(coefficients=coefficients._replace(bias=coefficients.bias - 12))
    if len(corpus.training):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(linear, "MOST_LOGITS", 300)
            notes = linear.fit_linear(context, corpus).notes
        assert notes[0] == f"fitted on a sample of 100 of {len(corpus.training)} texts to save memory"
        context.linear = shifted
    else:
        context.whole_linear = shifted
    return {each.name: each.value for each in baselines(context) if "linear" in each.note}


@pytest.mark.parametrize(
    ("module", "truth"), [(classification, [0, 0, 0, 1]), (multi_label, [[1.0, 0]] * 3 + [[0, 1.0]])]
)
def test_most_frequent_label_is_that_of_the_training_texts(
    module: ModuleType, truth: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "true_targets", lambda _: torch.tensor(truth))
    monkeypatch.setattr(module, "linear_predictions", lambda *_, **__: [])
    for counts, expected in (((9, 1), 75.0), ((1, 9), 25.0), ((), 75.0)):
        context = Mock(spec=RunContext, recipe=Mock(), linear=None, card=ModelCard(("a", "b"), label_counts=counts))
        context.recipe.model.balanced = False
        assert module.baselines(context, whole=True)[0].value == pytest.approx(expected)
        context.recipe.model.balanced = True
        assert module is multi_label or module.baselines(context, whole=True)[0].value == pytest.approx(50.0)


def test_multi_label_classification_by_command(penwright: Command, tmp_path: Path) -> None:  # noqa: F811
    path, run = set_table(tmp_path, ","), tmp_path / "run"
    refused = penwright("train", path, "--run", run, "--steps", 2, *QUICK)
    assert refused.returncode == 1 and "--set data.label_separator=," in refused.stderr
    done = penwright("train", path, "--run", run, "--steps", 4, "--set", "data.label_separator=,", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "3 labels to learn" in done.stderr and "to beat: micro-F1" in done.stderr
    found = penwright("classify", run, "gun chase battle army film", "", "--json").stdout.splitlines()
    first, blank = map(json.loads, found)
    assert set(first["labels"]) == {"action", "war"} and first["label"] == first["labels"][0]
    assert list(first["scores"]) == sorted(first["scores"], key=first["scores"].get, reverse=True)
    assert blank["label"] is None
    every = penwright("classify", run, "gun", "--threshold", 0).stdout.split("\t")
    assert set(every[0].split("|")) == set(WORDS) and len(every[1].split("|")) == 3
    done = penwright("classify", run, "--csv", path)
    rows = list(csv.reader(io.StringIO(done.stdout)))
    assert rows[0] == ["text", "label", "predicted", "probability"]
    right = [set(row[1].split(",")) == set(row[2].split("|")) for row in rows[1:]]
    assert sum(right) > 0.9 * len(right)
    assert penwright("classify", run, "gun", "--positive", "war").returncode == 2
    cells = penwright("classify", run, "gun", "--top", 3, "--threshold", 0.5).stdout.split("\t")[:-1]
    labels, probabilities = cells[::2], [float(cell) for cell in cells[1::2]]
    assert len(labels) == 3 and all(bool(label) == (p >= 0.5) for label, p in zip(labels, probabilities, strict=True))
    record = json.loads(penwright("classify", run, "gun", "--top", 2, "--threshold", 0, "--json").stdout)
    assert list(record["scores"]) == record["labels"] and len(record["labels"]) == 3
    report = json.loads(penwright("evaluate", run, "--json").stdout)
    assert report[0]["note"].endswith("thresholds tuned on these texts")
    assert "240 of 240 texts also occur in the data of the run" in penwright("evaluate", run, path).stderr
    opened = open_run(run)
    own, others = (baselines_of(opened, open_corpus_of(opened, paths)) for paths in ([], [str(path)]))
    assert own["micro-F1"] > 60  # its thresholds are tuned, like those of the model
    assert others["micro-F1"] < 50  # compared with the linear classifier of all texts
    assert [each["name"] for each in report] == ["micro-F1", "macro-F1", "exact match", "nats per text"]
    assert [each["label"] for each in report[0]["report"]["labels"]] == sorted(WORDS)
    assert penwright("evaluate", run, "--check-labels").returncode == 2


def test_regression_by_command(penwright: Command, tmp_path: Path) -> None:  # noqa: F811
    path, run = score_table(tmp_path), tmp_path / "run"
    done = penwright("train", path, "--run", run, "--steps", 4, "--task", "score", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "to beat: Pearson's r" in done.stderr
    low, high = (
        float(line.split("\t")[0])
        for line in penwright(
            "classify", run, "bad bad bad bad film", "great great great great film"
        ).stdout.splitlines()
    )
    assert low < 2 and high > 3
    assert penwright("classify", run, stdin="bad film\n\n").stdout.splitlines()[1] == "\t"
    rows = list(csv.reader(io.StringIO(penwright("classify", run, "--csv", path).stdout)))
    assert rows[0] == ["text", "score", "predicted"]
    assert abs(float(rows[1][2]) - float(rows[1][1])) < 1
    assert penwright("classify", run, "gun", "--top", 2).returncode == 2
    printed = penwright("evaluate", run).stdout
    assert "mean absolute error" in printed and "error\tpredicted\tscore\ttext\n" in printed
    resumed = penwright("train", "--resume", run, "--steps", 2)
    assert resumed.returncode == 0, resumed.stderr


def test_largest_errors_come_first() -> None:
    random = np.random.default_rng(0)
    truth, predicted = random.normal(size=50), random.normal(size=50)
    errors = largest_errors(predicted, truth, [f"text {row}" for row in range(50)]).errors
    assert [each.row for each in errors] == np.argsort(-np.abs(predicted - truth))[:20].tolist()
    assert all(each.error == each.predicted - each.score and each.text == f"text {each.row}" for each in errors)
    assert largest_errors(truth, truth, [""] * 50).errors == ()


def test_examples_in_plans_separate_labels_by_commas(tmp_path: Path) -> None:
    rows = [[text, "|".join(labels)] for text, labels in reversed(labelled_texts())]
    examples = first_examples(open_labelled([write(tmp_path / "films.csv", ["text", "label"], rows)]))
    assert {each["label"] for each in examples} & {"action, comedy, war", "comedy, war", "action, war"}
    assert not any("\x1f" in each["label"] for each in examples)


def test_files_with_different_kinds_of_labels_are_refused(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.csv", ["text", "label"], [[f"text {k}", "ab"[k % 2]] for k in range(40)])
    with pytest.raises(PenwrightError, match="different kinds of labels"):
        open_labelled([plain, set_table(tmp_path, "|")])


def test_texts_of_the_base_keep_their_own_labels(tmp_path: Path) -> None:
    def write_table(name: str, cells: list[str]) -> list[str]:
        rows = [f"word {n * 7 % 11} and {n}|{cell}\n" for n, cell in enumerate(cells * 20)]
        (tmp_path / name).write_text("text|label\n" + "".join(rows), encoding="utf-8")
        return [str(tmp_path / name)]

    small = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32, "ngrams": False}
    training = {"steps": 1, "batch_tokens": 4096, "threads": 1, "precision": "float32"}
    settings: Table = {"task": "classify", "training": training, "data": {"text": "text", "label": "label"}}
    settings["data"]["label_separator"] = ";"
    cells = ["a;b", "b;c", "c", "a"]
    base = merge(settings, {"model": small, "data": {"train": write_table("old.csv", cells)}})
    train(prepare(base), tmp_path / "base")
    tuned = {"data": {"train": write_table("new.csv", ["c", "a;b;c", "b", "a"])}}
    tuned["finetuning"] = {"base": str(tmp_path / "base"), "keep_old": 0.5}
    said = list[str]()
    context = _begin(prepare(merge(settings, tuned), said.append), Run.create(tmp_path / "tuned"), [])
    assert context.training is not None
    mixed_in = with_old_text(context, TASKS["classify"].batches(context, context.training))
    assert isinstance(mixed_in, MixedBatches) and context.card.labels == ("a", "b", "c")
    seen = {
        (context.tokenizer.decode(tokens[padding].tolist()).split()[-1], tuple(targets.tolist()))
        for batch in mixed_in.old.in_order()
        for tokens, padding, targets in zip(batch.tokens, batch.is_token, batch.targets, strict=True)
    }
    rows = {"a;b": (1, 1, 0), "b;c": (0, 1, 1), "c": (0, 0, 1), "a": (1, 0, 0)}
    assert seen and seen <= {(str(n), rows[cell]) for n, cell in enumerate(cells * 20)}
    held_out = {each.text.split()[-1] for each in context.corpus.held_out}
    assert held_out.isdisjoint(number for number, _ in seen)
    assert any("are not mixed in, because they are now held out" in line for line in said)


def test_base_predicts_the_same_scores_on_another_scale(tmp_path: Path) -> None:
    def recipe(name: str, factor: int) -> Table:
        rows = [[f"word {n * 7 % 11} and {n}", str(factor * (n % 11))] for n in range(80)]
        path = write(tmp_path / name, ["text", "stars"], rows)
        data: Table = {"train": [str(path)], "text": "text", "label": "stars"}
        training = {"steps": 1, "batch_tokens": 4096, "threads": 1, "precision": "float32"}
        return {"task": "classify", "data": data, "training": training, "model": {"problem_type": "regression"}}

    small = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32, "ngrams": False}
    run = Run.create(tmp_path / "base")
    base = _begin(prepare(merge(recipe("old.csv", 1), {"model": small})), run, [])
    run.checkpoints.save(1, weights_of(base.model), {}, {"step": 1, "total_steps": 1, "best_step": 1})
    tuned: Table = {"finetuning": {"base": str(run.folder)}, "model": {"ngrams": False}}
    new = _begin(prepare(merge(recipe("new.csv", 20), tuned)), Run.create(tmp_path / "tuned"), [])
    assert not new.has_new_head
    expected, found = ([each.score for each in classifier_of(of).classify(["word 3", "word"])] for of in (base, new))
    assert found == pytest.approx(expected, rel=1e-4)
