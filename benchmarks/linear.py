"""Accuracy of linear classifiers of n-grams on any labelled texts: ours, scikit-learn's, and a run that contains ours.

The files are tables with a column `label` and a column `text`. scikit-learn's is LinearSVC on TF-IDF of word (1-2) and
character (2-5) n-grams, all with default settings; it runs in a Python that has scikit-learn, if one is named.

Run: python -m benchmarks.linear TRAIN.tsv TEST.tsv [SKLEARN_PYTHON [MINUTES]]
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import torch

from benchmarks import ours
from benchmarks.peers import run
from penwright.classification.linear import LinearClassifier
from penwright.data.corpus import Columns, ReadingOptions
from penwright.data.labelled import open_evaluation_labelled

READING = ReadingOptions(columns=Columns(text="text", label="label"))
SKLEARN = """
import json, sys, time
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.svm import LinearSVC
texts, labels, test_texts, test_labels = json.load(open(sys.argv[1], encoding="utf-8"))
begin = time.perf_counter()
for analyzer in ("char_wb", "char"):
    words = TfidfVectorizer(ngram_range=(1, 2))
    characters = TfidfVectorizer(analyzer=analyzer, ngram_range=(2, 5))
    model = make_pipeline(make_union(words, characters), LinearSVC()).fit(texts, labels)
    print(analyzer, 100 * model.score(test_texts, test_labels))
"""


def main(train: Path, test: Path, sklearn: str = "", minutes: float = 0.0) -> None:
    """Print the accuracy of each classifier on the test file, and the seconds it took."""
    parts = [list(open_evaluation_labelled([str(path)], READING).held_out) for path in (train, test)]
    (texts, labels), (test_texts, test_labels) = (
        ([each.text for each in part], [each.label for each in part]) for part in parts
    )
    names = sorted(set(labels))
    wall, processor = perf_counter(), process_time()
    model = LinearClassifier.fit(texts, torch.tensor([names.index(label) for label in labels]), len(names))
    seconds = f"{perf_counter() - wall:.1f} s, {process_time() - processor:.1f} s of processor time"
    found = [names[index] for index in model.outputs(test_texts).argmax(-1).tolist()]
    right = sum(a == b for a, b in zip(found, test_labels, strict=True))
    print(f"ours, linear: {100 * right / len(test_labels):.2f} % ({seconds})", flush=True)
    with TemporaryDirectory() as folder:
        if sklearn:
            data = Path(folder) / "data.json"
            data.write_text(json.dumps([texts, labels, test_texts, test_labels]), encoding="utf-8")
            done = run([sklearn, "-c", SKLEARN, data])
            print("scikit-learn:", *(f"{line} % after {second:.1f} s;" for second, line in done.lines), flush=True)
        if minutes:
            columns = ["--set", "data.label=label", "--set", "data.text=text"]
            trained = ours.train(Path(folder) / "run", [train, "--minutes", minutes, *columns])
            scores = ours.evaluate(Path(folder) / "run", test)
            print(f"penwright, mixture: {scores['accuracy']:.2f} % ({trained.seconds:.0f} s)")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4], *map(float, sys.argv[4:5]))
