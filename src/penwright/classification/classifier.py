"""Text classification with an encoder-only model and its tokenizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from warnings import warn

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor
from torch.nn.functional import normalize

from penwright.classification.linear import LinearClassifier
from penwright.classification.mixture import mixed
from penwright.classification.ngrams import MOST_CHARACTERS
from penwright.config import ProblemType
from penwright.decoding.batches import Padded, diverged
from penwright.decoding.windows import mean_vectors, n_windows, read_windows, split
from penwright.errors import PenwrightError, PenwrightWarning, UsageError
from penwright.model.size import described
from penwright.model.transformer import EncoderOnly
from penwright.text import BETWEEN_TEXTS, noted, significant
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.markup import cut_pair, encode_text
from penwright.tokenizers.tokenizer import unknown_warnings

SHOWN = 10  # maximum number of labels in a repr
Tokens = Integer[np.ndarray, " _"]


@dataclass(frozen=True)
class Classification:
    """The label of a text and the probability of each label. A blank text has no label and no probabilities.

    A multi-label model also sets `labels`. A regression model sets `score`, but no label.
    """

    label: str | None  # most likely label; None for a blank text, or if its probability is below a threshold
    scores: Mapping[str, float]  # probability of each label, most likely first
    warnings: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None  # all labels of the text, most likely first; None unless multi-label
    score: float | None = None  # predicted number; None unless the model is a regression model

    def __repr__(self) -> str:
        if self.score is not None:
            return f"<Classification {significant(self.score)}{noted(self.warnings)}>"
        if self.labels is not None:
            return f"<Classification {list(self.labels)}{noted(self.warnings)}>"
        confidence = f" ({self.scores[self.label]:.1%})" if self.label is not None else ""
        return f"<Classification {self.label!r}{confidence}{noted(self.warnings)}>"


NOTHING = Classification(None, {}, ("the text is empty, so it has no label",))


def is_blank(text: str) -> bool:
    """Return whether a text, or one of the texts of a pair, has no visible characters."""
    return any(all(c.isspace() or not c.isprintable() for c in part) for part in text.split(BETWEEN_TEXTS))


class Classifier:
    """A classifier that assigns a label to each text.

    A text longer than the context is processed in windows of similar size. The log-probabilities of all windows are
    averaged, then renormalized. A linear n-gram classifier, if there is one, is mixed in.
    """

    kind: Literal["classifier"] = "classifier"

    def __init__(
        self, model: EncoderOnly, tokenizer: Tokenizer, labels: Sequence[str], linear: LinearClassifier | None = None
    ):
        """Create a classifier. `labels` are in the order of the model's outputs. Without labels, it can only embed."""
        self.model, self.tokenizer, self.labels = model, tokenizer, tuple(labels)
        self.linear = linear  # None: only the encoder classifies, without n-grams
        self._room = model.settings.context_length - 2  # maximum number of tokens between the start and end tokens
        if self._room < 1:
            raise PenwrightError("a classifier needs a context_length of 3 or more, to have room for a text")

    def __repr__(self) -> str:
        labels = f"labels {', '.join(self.labels[:SHOWN])}" if self.labels else "no labels"
        return described("Classifier", self.model, self.tokenizer, f", {labels}")

    @property
    def reads_pairs(self) -> bool:
        """Whether the model expects pairs of texts, such as premise and hypothesis."""
        return self.model.settings.text_pairs

    def classify(self, texts: str | Sequence[str | tuple[str, str]]) -> list[Classification]:
        """Classify each text, and return the classifications in order. For a single text, the list has one item.

        If the model expects pairs, each item is a tuple of two texts, or a string with a tab between them. A blank
        text, or a pair with a blank text, gets no label.
        """
        if not self.labels:
            raise UsageError(
                "this encoder has no labels, so it cannot classify. Use embed(), or train it to classify with: "
                "penwright train --from RUN YOUR_LABELLED_TEXTS"
            )
        joined = self._all_joined([texts] if isinstance(texts, str) else texts)
        written = {place: self._tokens(text) for place, text in enumerate(joined) if not is_blank(text)}
        linear = self.linear_outputs([joined[place] for place in written])
        outputs = self.combine(self.outputs(list(written.values())), linear)
        if outputs.isnan().any():
            raise diverged()
        results = [NOTHING] * len(joined)
        for (place, tokens), each in zip(written.items(), outputs, strict=True):
            results[place] = self._classification(joined[place], len(tokens), each)
        return results

    def _all_joined(self, texts: Sequence[str | tuple[str, str]]) -> list[str]:
        """Join each text. The error for an unsuitable text names its number, if there are several texts."""
        joined = []
        for number, text in enumerate(texts, 1):
            try:
                joined.append("" if isinstance(text, str) and is_blank(text) else self.joined(text))
            except UsageError as error:
                raise UsageError(f"text {number}: {error}" if len(texts) > 1 else str(error)) from None
        return joined

    def joined(self, text: str | tuple[str, str]) -> str:
        """Return a text, or the joined texts of a pair, stripped of surrounding spaces as in training.

        Raises UsageError if the model does not accept such input.
        """
        if not (isinstance(text, str) or (isinstance(text, Sequence) and all(isinstance(part, str) for part in text))):
            raise UsageError(f"{text!r} is neither a text nor a pair of texts. Leave out rows without a text")
        if isinstance(text, str) and (not self.reads_pairs or BETWEEN_TEXTS in text):
            parts: Sequence[str] = text.split(BETWEEN_TEXTS)
        elif not self.reads_pairs:
            raise UsageError("this model accepts single texts, not pairs. Train it on a table with two text columns")
        elif len(parts := text.split("\t") if isinstance(text, str) else text) != 2:
            raise UsageError(f"this model expects pairs of texts. Put one tab between the two texts: {text!r}")
        return BETWEEN_TEXTS.join(part.strip() for part in parts)

    def embed(self, texts: str | Sequence[str | tuple[str, str]]) -> Float[Tensor, "texts d_model"]:
        """Return a unit vector for each text. The dot product of two vectors is their cosine similarity.

        A text longer than the context is split into windows, and the vectors of the windows are averaged. If the model
        expects pairs, a text may be a pair, as in `classify`, or a single text.
        """
        texts = [texts] if isinstance(texts, str) else texts
        joined = (
            text.strip() if isinstance(text, str) and text.count("\t") != 1 else self.joined(text) for text in texts
        )
        return normalize(self.pooled([self._tokens(text) for text in joined]), dim=-1)

    def pooled(self, texts: Sequence[Tokens]) -> Float[Tensor, "texts d_model"]:
        """Return the input vector of the head for each tokenized text, averaged over the windows of the text."""
        windows = read_windows(self.model, [self._windows(tokens) for tokens in texts], self._pooled)
        return mean_vectors(windows, self.model.settings.d_model)

    def _tokens(self, text: str) -> Tokens:
        return np.array(encode_text(text, self.tokenizer), dtype=np.int64)

    @property
    def problem(self) -> ProblemType:
        """The type of prediction for a text: one label, any number of labels, or a score."""
        return self.model.settings.problem_type

    def outputs(self, texts: Sequence[Tokens]) -> Float[Tensor, "texts n_labels"]:
        """Return the encoder's log-probabilities of the labels, for tokenized texts of any length.

        A multi-label model returns the logits of the labels. A regression model returns the standardized score.
        """
        windows = read_windows(self.model, [self._windows(tokens) for tokens in texts], self._outputs)
        if not windows:
            return torch.zeros(0, len(self.labels), dtype=torch.double)
        means = torch.stack([each.double().mean(0) for each in windows])
        return means.log_softmax(-1) if self.problem == "single_label_classification" else means

    def combine(
        self, encoder: Float[Tensor, "texts n_labels"], linear: Float[Tensor, "texts n_labels"] | None
    ) -> Float[Tensor, "texts n_labels"]:
        """Combine the outputs of the encoder with those of the linear classifier, if there is one."""
        balanced = self.balance(encoder)
        return balanced if linear is None else mixed(balanced, self.balance(linear), self.model.mixture, self.problem)

    def balance(self, outputs: Float[Tensor, "texts n_labels"]) -> Float[Tensor, "texts n_labels"]:
        """Return the outputs, adjusted to equally frequent labels if the model was trained with `balanced`.

        Probabilities are divided by the shares of the labels (logit adjustment, Menon et al. 2021).
        """
        if not self.model.settings.balanced:
            return outputs
        return (outputs - self.model.log_prior.cpu().to(outputs)).log_softmax(-1)

    def linear_outputs(self, texts: Sequence[str]) -> Float[Tensor, "texts n_labels"] | None:
        """Return the outputs of the linear classifier, or None if there is no linear classifier."""
        return None if self.linear is None else self.linear.outputs(texts)

    def log_probabilities(self, texts: Sequence[Tokens]) -> Float[Tensor, "texts n_labels"]:
        """Call `outputs`. Deprecated alias, kept for older scripts."""
        warn("Classifier.log_probabilities is deprecated: use Classifier.outputs", PenwrightWarning, stacklevel=2)
        return self.outputs(texts)

    def linear_log_probabilities(self, texts: Sequence[str]) -> Float[Tensor, "texts n_labels"] | None:
        """Call `linear_outputs`. Deprecated alias, kept for older scripts."""
        use = "use Classifier.linear_outputs"
        warn(f"Classifier.linear_log_probabilities is deprecated: {use}", PenwrightWarning, stacklevel=2)
        return self.linear_outputs(texts)

    def _windows(self, tokens: Tokens) -> list[list[int]]:
        start, end = self.tokenizer.start_id, self.tokenizer.end_id
        if self.reads_pairs and end in tokens:
            return [[start, *cut_pair(tokens.tolist(), end, self._room), end]]
        return [[start, *part, end] for part in split(tokens.tolist(), self._room)]

    def _outputs(self, batch: Padded) -> Float[Tensor, "windows n_labels"]:
        logits: Tensor = self.model(*batch).float()
        return logits.log_softmax(-1) if self.problem == "single_label_classification" else logits

    def _pooled(self, batch: Padded) -> Float[Tensor, "windows d_model"]:
        return self.model.pool(self.model.hidden(*batch), batch.is_token)

    def _classification(self, text: str, n_tokens: int, outputs: Float[Tensor, " n_labels"]) -> Classification:
        notes = unknown_warnings(self.tokenizer, text.replace(BETWEEN_TEXTS, " "))
        n_parts = n_windows(n_tokens, self._room)
        if n_parts > 1 and self.reads_pairs:
            notes.append("the pair is longer than the model's context, so the end of the longer text was ignored")
        elif n_parts > 1:
            notes.append(f"the text is longer than the model's context, so it was processed in {n_parts} windows")
        if self.linear is not None and max(map(len, text.split(BETWEEN_TEXTS))) > MOST_CHARACTERS:
            notes.append(f"n-grams are counted only in the first {MOST_CHARACTERS:,} characters")
        warnings, problem = tuple(notes), self.problem
        if problem == "regression":
            mean, deviation = self.model.scale.tolist()
            return Classification(None, {}, warnings, score=mean + deviation * float(outputs[0]))
        is_set = problem == "multi_label_classification"
        probabilities = outputs.sigmoid() if is_set else outputs.exp()
        order = probabilities.argsort(descending=True, stable=True).tolist()
        scores = {self.labels[label]: float(probabilities[label]) for label in order}
        if not is_set:
            return Classification(self.labels[order[0]], scores, warnings)
        passes = probabilities >= self.model.thresholds.cpu().to(probabilities)
        labels = tuple(self.labels[label] for label in order if passes[label])
        return Classification(labels[0] if labels else None, scores, warnings, labels)
