"""Text in, label out: an encoder-only model with its tokenizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from penwright.decoding.decodable import diverged, evaluating
from penwright.decoding.padding import batches_by_length, right_padded
from penwright.decoding.unknown import unknown_warnings
from penwright.errors import PenwrightError
from penwright.models import EncoderOnly
from penwright.tokenizers import Tokenizer

BATCH_TOKENS = 8192  # with padding


@dataclass(frozen=True)
class Classification:
    """What a text was taken for."""

    label: str  # the likeliest
    scores: Mapping[str, float]  # the probability of each label, likeliest first
    warnings: tuple[str, ...] = ()


class Classifier:
    """Gives each text a label. A text longer than the context is read in windows of like size.

    The log-probabilities of the windows are averaged and brought back to a sum of 1, so that each window counts alike.
    """

    kind: Literal["classifier"] = "classifier"

    def __init__(self, model: EncoderOnly, tokenizer: Tokenizer, labels: Sequence[str]):
        """Labels are named in the order of the model's outputs."""
        self.model, self.tokenizer, self.labels = model, tokenizer, tuple(labels)
        self._room = model.settings.context_length - 2  # for the text between start and end token
        if self._room < 1:
            raise PenwrightError("a classifier with a context_length below 3 has no room for a text")

    def classify(self, texts: str | Sequence[str]) -> list[Classification]:
        """A classification for each text, in their order (one text is a list of one)."""
        texts = [texts] if isinstance(texts, str) else texts
        windows = [self._windows(text) for text in texts]
        rows = iter(self._log_probs([window for text in windows for window in text]))
        return [
            self._classification(text, torch.stack([next(rows) for _ in parts]))
            for text, parts in zip(texts, windows, strict=True)
        ]

    def _windows(self, text: str) -> list[list[int]]:
        tokens = self.tokenizer.encode(text)
        n_windows = max(1, -(-len(tokens) // self._room))
        parts = [part.tolist() for part in np.array_split(np.array(tokens, dtype=np.int64), n_windows)]
        return [[self.tokenizer.start_id, *part, self.tokenizer.end_id] for part in parts]

    @torch.inference_mode()
    def _log_probs(self, windows: Sequence[Sequence[int]]) -> Float[Tensor, "windows n_labels"]:
        log_probs = torch.zeros(len(windows), len(self.labels))
        with evaluating(self.model) as device:
            for batch in batches_by_length([len(window) for window in windows], BATCH_TOKENS):
                padded = right_padded([windows[number] for number in batch], device)
                log_probs[batch] = self.model(*padded).float().log_softmax(-1).cpu()
        return log_probs

    def _classification(self, text: str, windows: Float[Tensor, "windows n_labels"]) -> Classification:
        if windows.isnan().any():
            raise diverged()
        probabilities = windows.double().mean(0).softmax(-1)
        order = probabilities.argsort(descending=True, stable=True).tolist()
        scores = {self.labels[label]: float(probabilities[label]) for label in order}
        warnings = unknown_warnings(self.tokenizer, text)
        if len(windows) > 1:
            warnings.append(f"the text is longer than the model's context and was read in {len(windows)} windows")
        return Classification(self.labels[order[0]], scores, tuple(warnings))
