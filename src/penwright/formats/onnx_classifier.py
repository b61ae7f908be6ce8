"""Classify texts with a classifier that Penwright exported. This file needs only NumPy, onnxruntime and tokenizers.

In a shell: `python classify.py "a text" "another text"`, or one text per line on standard input. In Python:
`OnnxClassifier("folder").classify(["a text", "another text"])`.
"""

import json
import sys
from collections.abc import Sequence
from decimal import Decimal
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

from penwright.classification.ngrams import NgramVectorizer
from penwright.text import BETWEEN_TEXTS

BATCH = 32  # maximum number of windows in a batch


class OnnxClassifier:
    """A classifier in a folder with model.onnx, config.json, tokenizer.json and, if it uses n-grams, ngrams.npz.

    A text longer than the model's context is split into windows of similar size, and their logits are averaged.
    """

    def __init__(self, folder: str | Path = Path(__file__).parent):
        folder = Path(folder)
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.labels: list[str] = [self.config["id2label"][str(n)] for n in range(len(self.config["id2label"]))]
        self.session = onnxruntime.InferenceSession(folder / "model.onnx")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.encode_special_tokens = True  # "</s>" in a text is text
        ngrams = folder / "ngrams.npz"
        self.vectorizer = NgramVectorizer(**np.load(ngrams)) if ngrams.exists() else None

    def classify(self, texts: Sequence[str | tuple[str, str]]) -> list[dict[str, Any]]:
        """Return the label and the probability of each label ("scores") for each text; no label for a blank text.

        A model of several labels also returns "labels", and a model of scores returns "score". If the model expects
        pairs, each item is a tuple of two texts, or a string with a tab between the two.
        """
        joined = [self._joined(text) for text in texts]
        results: list[dict[str, Any]] = [{"label": None, "scores": {}} for _ in joined]
        places = [place for place, text in enumerate(joined) if not _is_blank(text)]
        for place, outputs in zip(places, self.outputs([joined[place] for place in places]), strict=True):
            results[place] = self._result(outputs)
        return results

    def outputs(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the mean logits of the windows of each text (a model of scores: the score). No text may be blank."""
        windows = [(number, window) for number, text in enumerate(texts) for window in self.windows(text)]
        windows.sort(key=lambda each: len(each[1]))  # windows of similar length share a batch
        rows = self._ngrams(texts)
        sums, counts = np.zeros((len(texts), len(self.labels))), np.zeros((len(texts), 1))
        for begin in range(0, len(windows), BATCH):
            numbers, tokens = zip(*windows[begin : begin + BATCH], strict=True)
            lengths = np.array([len(each) for each in tokens])
            mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
            inputs = {"input_ids": _padded(tokens, np.int64), "attention_mask": mask}
            if rows:
                ids, values = zip(*(rows[number] for number in numbers), strict=True)
                inputs |= {"ngram_ids": _padded(ids, np.int64), "ngram_values": _padded(values, np.float32)}
            np.add.at(sums, list(numbers), self.session.run(None, inputs)[0])
            np.add.at(counts, list(numbers), 1)
        return sums / counts

    def windows(self, text: str) -> list[list[int]]:
        """Return the token ids of the windows of a text. A long pair has one window: its longer text is cut first."""
        start, end, room = (self.config[name] for name in ("bos_token_id", "eos_token_id", "max_position_embeddings"))
        room -= 2  # for the start and end tokens
        first, *others = [self._encode(part) for part in text.split(BETWEEN_TEXTS)]
        ends = [end] * self.config["pair_ends"]
        tokens = [*first, *(token for part in others for token in (*ends, *part))]
        if not self.config["text_pairs"] or not others:
            n = max(1, -(-len(tokens) // room))
            return [[start, *part.tolist(), end] for part in np.array_split(np.array(tokens, np.int64), n)]
        n_first = min(len(first), max((room - len(ends)) // 2, room - len(tokens) + len(first)))
        return [[start, *tokens[:n_first], *tokens[len(first) :][: room - n_first], end]]

    def _encode(self, text: str) -> list[int]:
        well_formed = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = self.tokenizer.encode(well_formed, add_special_tokens=False).ids
        return ids

    def _ngrams(self, texts: Sequence[str]) -> list[tuple[NDArray[np.int32], NDArray[np.float32]]]:
        """Return the ids and values of the n-grams of each text; an empty list if the model uses no n-grams."""
        if self.vectorizer is None or not texts:
            return []
        columns, values, offsets = self.vectorizer.rows(texts)
        return list(zip(np.split(columns, offsets[1:-1]), np.split(values, offsets[1:-1]), strict=True))

    def _joined(self, text: str | tuple[str, str]) -> str:
        """Return a text, or both texts of a pair with the separator between them, without surrounding spaces."""
        if not self.config["text_pairs"]:
            if not isinstance(text, str):
                raise ValueError(f"this model accepts single texts, not pairs: {text!r}")
            return text.strip()
        parts = text.split("\t") if isinstance(text, str) else text
        if len(parts) != 2:
            raise ValueError(f"this model expects pairs of texts. Put one tab between the two texts: {text!r}")
        return BETWEEN_TEXTS.join(part.strip() for part in parts)

    def _result(self, outputs: NDArray[np.float64]) -> dict[str, Any]:
        problem = self.config["problem_type"]
        if problem == "regression":
            return {"label": None, "scores": {}, "score": float(outputs[0])}
        is_set = problem == "multi_label_classification"
        exponents = np.exp(outputs - outputs.max())
        probabilities = 1 / (1 + np.exp(-outputs)) if is_set else exponents / exponents.sum()
        order = np.argsort(-probabilities, kind="stable").tolist()
        scores = {self.labels[number]: float(probabilities[number]) for number in order}
        if not is_set:
            return {"label": self.labels[order[0]], "scores": scores}
        thresholds = self.config["thresholds"]
        labels = [self.labels[number] for number in order if probabilities[number] >= thresholds[number]]
        return {"label": labels[0] if labels else None, "scores": scores, "labels": labels}


def _padded(rows: Sequence[Any], dtype: type) -> NDArray[Any]:
    """Return these rows as an array with at least one column. Shorter rows are padded with zeros."""
    padded: NDArray[Any] = np.zeros((len(rows), max(1, *map(len, rows))), dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded


def _is_blank(text: str) -> bool:
    """Return whether a text, or one of the texts of a pair, has no visible characters."""
    return any(all(c.isspace() or not c.isprintable() for c in part) for part in text.split(BETWEEN_TEXTS))


def main() -> None:
    """Print the label, its probability and the text, separated by tabs, for each argument or line."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    texts = sys.argv[1:] or [line.rstrip("\n") for line in TextIOWrapper(sys.stdin.buffer, encoding="utf-8")]
    for text, result in zip(texts, OnnxClassifier().classify(texts), strict=True):
        labels = result.get("labels", [result["label"]] if result["label"] is not None else [])
        cells = ["|".join(labels), "|".join(f"{result['scores'][label]:.3f}" for label in labels)]
        cells = [format(Decimal(format(result["score"], ".6g")), "f")] if "score" in result else cells
        sys.stdout.write("\t".join([*cells, text]) + "\n")


if __name__ == "__main__":
    main()
