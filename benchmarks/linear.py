"""From scratch against linear classifiers of n-grams, on all sets of labelled texts in a folder.

A set is a pair of tables, NAME_train.tsv and NAME_test.tsv, with a column `label` and a column `text`. All classifiers
learn from the whole training table, and our run holds out its own part of it. scikit-learn's is LinearSVC on TF-IDF of
word (1-2) and character (2-5) n-grams, all with default settings.

If one of two labels is rare in training (at most 5 %), all classifiers weight their classes, and the scores are the
balanced accuracy and the recall of the rare label at a precision of 90 %. Precision is computed for the share that the
label has in training, so that the test table can have more texts with the label.

Run: python -m benchmarks.linear FOLDER MINUTES SKLEARN_PYTHON [NAME...]
"""

import json
import sys
from collections.abc import Sequence
from math import comb
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import ours
from benchmarks.peers import run
from benchmarks.report import Result, write_result
from penwright.classification.linear import LinearClassifier
from penwright.data.corpus import Columns, ReadingOptions
from penwright.data.labelled import open_evaluation_labelled
from penwright.workflows.load import load_classifier

NAME = "linear"
RARE, PRECISION = 0.05, 0.9
READING = ReadingOptions(columns=Columns(text="text", label="label"))
COLUMNS = ["--set", "data.label=label", "--set", "data.text=text"]
SKLEARN = """
import json, sys
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.svm import LinearSVC
texts, labels, test_texts, weight = json.load(open(sys.argv[1], encoding="utf-8"))
words, characters = TfidfVectorizer(ngram_range=(1, 2)), TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5))
model = make_pipeline(make_union(words, characters), LinearSVC(class_weight=weight)).fit(texts, labels)
scores = model.decision_function(test_texts)
print(json.dumps([[-each, each] for each in scores.tolist()] if scores.ndim == 1 else scores.tolist()))
"""
Scores = NDArray[np.float64]  # texts x labels


class LabelSet(NamedTuple):
    """A set of labelled texts: a training and a test part."""

    texts: list[str]
    labels: list[int]
    test_texts: list[str]
    test_labels: NDArray[np.int64]
    names: list[str]

    @classmethod
    def read(cls, train: Path, test: Path) -> "LabelSet":
        """Read both tables."""
        parts = [list(open_evaluation_labelled([str(path)], READING).held_out) for path in (train, test)]
        names = sorted({each.label for each in parts[0]})
        (texts, labels), (test_texts, test_labels) = (
            ([each.text for each in part], [names.index(each.label) for each in part]) for part in parts
        )
        return cls(texts, labels, test_texts, np.array(test_labels), names)

    @property
    def rare(self) -> int | None:
        """The rare label of two, or None."""
        share = np.bincount(self.labels) / len(self.labels)
        return int(share.argmin()) if len(share) == 2 and share.min() <= RARE else None


def main(folder: Path, minutes: float, python: str, names: Sequence[str]) -> None:
    """Write a table with the scores of each classifier on each set."""
    results = []
    names = names or sorted(path.name.removesuffix("_train.tsv") for path in folder.glob("*_train.tsv"))
    for name in names:
        train, test = folder / f"{name}_train.tsv", folder / f"{name}_test.tsv"
        each = LabelSet.read(train, test)
        predicted = {
            "LinearSVC": sklearn(each, python),
            "our linear part": linear(each),
            f"penwright, {minutes:g} minutes": penwright(each, train, minutes),
        }
        right = {who: scores.argmax(-1) == each.test_labels for who, scores in predicted.items()}
        for who, scores in predicted.items():
            figures = {"%": [100 * float(right[who].mean())]} if each.rare is None else rare_scores(each, scores)
            figures = {"%": [], "balanced %": [], "recall at 90 %": []} | figures
            against = [paired(right[own], right[who]) for own in list(predicted)[-1:] if own != who]
            results.append(Result(f"{name}: {who}", {**figures, "p against penwright": against}))
            print(results[-1], flush=True)
    command = f"python -m benchmarks.{NAME} FOLDER {minutes:g} PYTHON {' '.join(names)}"
    write_result(NAME, command, results, (__doc__ or "").split("\n\n")[1])


def sklearn(each: LabelSet, python: str) -> Scores:
    """Return the scores of scikit-learn's LinearSVC."""
    with TemporaryDirectory() as folder:
        data = Path(folder) / "data.json"
        weight = None if each.rare is None else "balanced"
        data.write_text(json.dumps([each.texts, each.labels, each.test_texts, weight]), encoding="utf-8")
        return np.array(json.loads(run([python, "-c", SKLEARN, data]).lines[-1][1]))


def linear(each: LabelSet) -> Scores:
    """Return the log-probabilities of our linear classifier, less those of the labels if one of them is rare."""
    is_uneven = each.rare is not None
    model = LinearClassifier.fit(each.texts, torch.tensor(each.labels), len(each.names), balanced=is_uneven)
    found: Scores = model.outputs(each.test_texts).numpy()
    return found - np.log(np.bincount(each.labels) / len(each.labels)) if is_uneven else found


def penwright(each: LabelSet, train: Path, minutes: float) -> Scores:
    """Return the probabilities of a run."""
    with TemporaryDirectory() as folder:
        where = Path(folder) / "run"
        ours.train(where, [train, "--minutes", minutes, *COLUMNS, *(["--balance"] if each.rare is not None else [])])
        found = load_classifier(where).classify(each.test_texts)
    return np.array([[result.scores.get(name, 0.0) for name in each.names] for result in found])


def rare_scores(each: LabelSet, scores: Scores) -> dict[str, list[float]]:
    """Return the balanced accuracy and the highest recall of the rare label with a precision of at least PRECISION."""
    assert each.rare is not None
    is_rare, share = each.test_labels == each.rare, each.labels.count(each.rare) / len(each.labels)
    found = scores.argmax(-1) == each.rare
    balanced = 50 * (found[is_rare].mean() + (~found[~is_rare]).mean())
    order = np.argsort(scores[:, 1 - each.rare] - scores[:, each.rare], kind="stable")
    recall, false = is_rare[order].cumsum() / is_rare.sum(), (~is_rare[order]).cumsum() / (~is_rare).sum()
    precision = share * recall / (share * recall + (1 - share) * false)
    return {"balanced %": [balanced], "recall at 90 %": [100 * float(recall[precision >= PRECISION].max(initial=0))]}


def paired(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float:
    """Return the p-value of McNemar's exact test, two-sided."""
    better, worse = int((ours & ~theirs).sum()), int((~ours & theirs).sum())
    n, k = better + worse, min(better, worse)
    return min(1.0, 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:])
