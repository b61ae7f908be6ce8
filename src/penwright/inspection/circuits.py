"""The base class of `Inspector`: it tokenizes texts, and finds the parts of the model that cause an outcome."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from penwright.application import ModelKind
from penwright.classification.classifier import Classifier
from penwright.errors import UsageError
from penwright.generation.generator import Generator
from penwright.inspection.forward_pass import (
    ForwardPass,
    Token,
    readable,
    special_ids,
    special_token,
    tokens_of,
    vocabulary,
)
from penwright.inspection.gradients import AttributionTarget, likeliest_outcome
from penwright.inspection.logit_attribution import LogitAttribution, logit_attribution
from penwright.inspection.model_map import ModelMap, PlaceDetail, model_map, place_detail
from penwright.inspection.patching import Patching, PatchKind, patching, preferences
from penwright.inspection.paths import Paths, paths
from penwright.model import Model
from penwright.model.transformer import EncoderOnly
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import unknown_warnings, well_formed
from penwright.translation.translator import Translator

Inspected = Generator | Translator | Classifier


class TextReader:
    """A converter from texts to the tokens of a forward pass. The tokens are the same as in normal use of the model."""

    def __init__(self, application: Inspected):
        self.application, self.tokenizer = application, application.tokenizer
        self._translate = lru_cache(maxsize=16)(self._translation)  # cached, since several views show the same text

    @property
    def room(self) -> int:
        """The maximum number of text tokens that the model can read, without special tokens."""
        context = self.application.model.settings.context_length
        match self.application:
            case Generator():
                return context - 1
            case Translator():
                return self.application.reach - 1
            case Classifier():
                return context - 2

    def read(self, text: str, target: str | None = None) -> ForwardPass:
        """Return the model's input tokens for a text, cut to fit the context."""
        return self.whole(text, target).cut(self.application.model.settings.context_length)

    def whole(self, text: str, target: str | None = None) -> ForwardPass:
        """Return the tokens of a whole text.

        For a translator or classifier, the source is cut to leave room for the end token.
        """
        text = self._line(text)
        tokens = tokens_of(self.tokenizer, text)
        start, end = self._special(self.tokenizer.start_id, 0), self._special(self.tokenizer.end_id, len(text))
        match self.application:
            case Generator():
                if target is not None:
                    raise UsageError("a language model has no target: put everything into the text")
                read = (start, *tokens) if self.tokenizer.begins else tokens
                return ForwardPass((), read, read[1:])
            case Classifier():
                return ForwardPass((start, *tokens[: self.room], end), (), ())
            case Translator():
                target = self._translate(text) if target is None else well_formed(target)
                written = tokens_of(self.tokenizer.target, target)
                close = self._special(self.tokenizer.end_id, len(target))
                before = [self._special(token, 0) for token in self.tokenizer.source(())[:-1]]
                starts = [start, *(self._special(token, 0) for token in self.tokenizer.target_prefix)]
                source = (*before, *tokens[: self.room], end)
                return ForwardPass(source, (*starts, *written), (*starts[1:], *written, close))

    def with_source(self, text: str, reading: ForwardPass) -> ForwardPass:
        """Return the tokens of another text. For a translator, combine them with the target tokens of `reading`."""
        other = self.read(text, "" if self.application.kind == "translator" else None)
        return ForwardPass(other.source, reading.target, reading.answers) if other.source else other

    def windows(self, text: str) -> list[ForwardPass]:
        """Split a text for a language model into consecutive windows of the context length."""
        whole, context = self.whole(text), self.application.model.settings.context_length
        return [
            ForwardPass((), whole.target[at : at + context], whole.answers[at : at + context])
            for at in range(0, len(whole.answers), context)
        ]

    def repeated(self, n: int, seed: int) -> ForwardPass:
        """Return at most `n` random ordinary tokens, repeated once, as input for a language model."""
        n = max(1, min(n, (self.application.model.settings.context_length - 1) // 2))
        specials = set(special_ids(self.tokenizer))
        ordinary = [token for token in range(self.tokenizer.vocab_size) if token not in specials]
        chosen = np.random.default_rng(seed).choice(ordinary, n, replace=n > len(ordinary)).tolist()
        start = self._special(self.tokenizer.start_id, 0)
        twice = [Token(readable(self.tokenizer, token), token, at, at + 1) for at, token in enumerate(chosen * 2)]
        return ForwardPass((), (start, *twice), tuple(twice))

    def warnings(self, text: str, target: str | None = None) -> tuple[str, ...]:
        """Return warnings about unknown characters, and about text that does not fit the context."""
        kind = self.application.kind
        warnings = unknown_warnings(self.tokenizer, text + (target or "" if kind == "translator" else ""))
        n_tokens = len(self.tokenizer.encode(self._line(text)))
        if n_tokens > self.room:
            exempt = " except token scores" if kind == "writer" else ""
            warnings.append(
                f"the text has {n_tokens} tokens, but all results{exempt} cover only the first {self.room}, "
                "which fit the context"
            )
        return tuple(warnings)

    def _special(self, token: int, place: int) -> Token:
        return special_token(self.tokenizer, token, place)

    def _translation(self, text: str) -> str:
        assert isinstance(self.application, Translator)
        return self.application.translate([text])[0].text

    def _line(self, text: str) -> str:
        text = well_formed(text)
        if self.application.kind != "translator":
            return text
        if "\n" in text.strip():
            raise UsageError("a translator reads one line at a time: give a single line")
        return text.strip()


class Outcomes:
    """The outcomes that a model can predict, with a look-up by name."""

    def __init__(self, model: Model, names: Sequence[str]):
        self.model, self._names = model, names

    @property
    def names(self) -> Sequence[str]:
        """The labels or tokens that the model predicts. Raises UsageError for an encoder without labels."""
        if not self._names:
            raise UsageError("this encoder has no labels, so it predicts nothing. Inspect its heads instead")
        if self.model.settings.problem_type != "single_label_classification":
            raise UsageError(
                "only models that predict one label per text can be explained. Inspect the heads of this model instead"
            )
        return self._names

    def index(self, name: str) -> int:
        """Return the index of a label or token; a token may be named without its leading space."""
        labels = isinstance(self.model, EncoderOnly)
        for written in (name,) if labels else (name, f" {name}", f"▁{name}"):
            if written in self.names:
                return list(self.names).index(written)
        if labels:
            raise UsageError(f"there is no label '{name}': the labels are {', '.join(self.names)}")
        raise UsageError(f"'{name}' is not a single token of this model. Choose the token that it begins with")

    def label(self, target: str | None) -> int | None:
        """Return the index of a classifier's label; None for other models, or without a target."""
        return self.index(target) if isinstance(self.model, EncoderOnly) and target is not None else None

    def aim(
        self,
        reading: ForwardPass,
        target: str | None = None,
        position: int | None = None,
        outcome: str | None = None,
        against: str | None = None,
    ) -> AttributionTarget:
        """Return the outcome to explain: by default, the given label or the next token of the text.

        Without a label or a next token, it is the likeliest outcome. The default position is the last for a
        language model, and the first for a translator.
        """
        position = (0 if reading.source else len(reading.target) - 1) if position is None else position
        chosen = likeliest_outcome(self.model, reading, position)
        if outcome is not None:
            chosen = self.index(outcome)
        elif (label := self.label(target)) is not None:
            chosen = label
        elif position < len(reading.answers):
            chosen = reading.answers[position].id
        other = None if against is None else self.index(against)
        if other == chosen:
            raise UsageError(f"'{self.names[chosen]}' is compared with itself. Choose a different outcome")
        return AttributionTarget(position, chosen, other)


class CircuitInspector:
    """An inspector of the parts of a model and of the paths between them."""

    def __init__(self, application: Inspected):
        self.application = application
        self.model: Model = application.model
        self.tokenizer: Tokenizer = application.tokenizer
        self.reader = TextReader(application)
        self.words = vocabulary(self.tokenizer)  # readable text of each token
        self.outcomes = list(application.labels) if isinstance(application, Classifier) else self.words
        self.outcome = Outcomes(self.model, self.outcomes)

    def __repr__(self) -> str:
        return f"<Inspector of {self.application!r}>"

    @property
    def kind(self) -> ModelKind:
        """The kind of model: `"writer"`, `"translator"` or `"classifier"`."""
        return self.application.kind

    def read(self, text: str, target: str | None = None) -> ForwardPass:
        """Return the model's input tokens for a text, cut to fit the context."""
        return self.reader.read(text, target)

    def model_map(self, text: str, target: str | None = None, *, position: int | None = None, k: int = 10) -> ModelMap:
        """Return the overview of a whole forward pass, with the attention and prediction at one position.

        The default position is the last for a language model, and the first for a translator or classifier.
        """
        reading = self.read(text, target)
        return model_map(self.model, reading, self.outcome.names, self._position(reading, position), k)

    def place_detail(
        self, text: str, place: str, target: str | None = None, *, position: int | None = None, k: int = 10
    ) -> PlaceDetail:
        """Return the vectors at a place in the model, for one position.

        Places are "decoder.embedding", blocks such as "decoder.2", and "output".
        """
        reading = self.read(text, target)
        return place_detail(self.model, reading, self.outcome.names, place, self._position(reading, position), k)

    def logit_attribution(
        self,
        text: str,
        target: str | None = None,
        *,
        position: int | None = None,
        outcome: str | None = None,
        against: str | None = None,
    ) -> LogitAttribution:
        """Split the logit of an outcome into what each head, feed-forward network and embedding adds to it directly.

        `position` and `outcome` have the same defaults as in `attribution`. `against` is an outcome to compare with;
        the default is the mean of all outcomes.
        """
        reading = self.read(text, target)
        objective = self.outcome.aim(reading, target, position, outcome, against)
        return logit_attribution(self.model, reading, objective, self.outcome.names)

    def patching(
        self,
        text: str,
        other: str,
        target: str | None = None,
        *,
        kind: PatchKind = "residual",
        positions: Sequence[int] | None = None,
        position: int | None = None,
        outcome: str | None = None,
        against: str | None = None,
    ) -> tuple[Patching, ...]:
        """Return how much of the prediction for `text` each activation restores if copied into a pass over `other`.

        `kind` is "residual", "attention", "feed_forward" or "heads"; `positions` are the positions to patch. By
        default, `outcome` is the model's prediction for `text` at `position`, and `against` is its prediction for
        `other`. A translator reads the same `target` with both texts; its default `position` is the first at which the
        predictions differ.
        """
        reading = self.read(text, target)
        texts = reading, self.reader.with_source(other, reading)
        chosen = [None if name is None else self.outcome.index(name) for name in (outcome, against)]
        objective = preferences(self.model, texts, position, chosen, last=self.kind == "writer")
        return patching(self.model, texts, objective, self.outcome.names, kind, positions)

    def paths(
        self,
        text: str,
        target: str | None = None,
        *,
        position: int | None = None,
        outcome: str | None = None,
        n_edges: int = 20,
    ) -> Paths:
        """Return the strongest paths between parts, with the effect of each path on an outcome.

        `position` and `outcome` have the same defaults as in `attribution`. Only the `n_edges` edges with the largest
        estimates are measured.
        """
        reading = self.read(text, target)
        objective = self.outcome.aim(reading, target, position, outcome)
        return paths(self.model, reading, objective, self.outcome.names, n_edges)

    def _position(self, reading: ForwardPass, position: int | None) -> int:
        usual = len(reading.target) - 1 if self.kind == "writer" else 0
        return usual if position is None else position
