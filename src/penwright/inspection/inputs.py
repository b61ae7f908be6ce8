"""The inputs of an inspection: texts as tokens of a forward pass, and outcomes by name."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

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
)
from penwright.inspection.gradients import AttributionTarget, likeliest_outcome
from penwright.model import Model
from penwright.model.transformer import EncoderOnly
from penwright.text import BETWEEN_TEXTS
from penwright.tokenizers.markup import cut_pair
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
        """The maximum number of tokens in a text that fits the context, special tokens not counted."""
        context = self.application.model.settings.context_length
        match self.application:
            case Generator():
                return context - self.tokenizer.begins
            case Translator():
                return self.application.reach - 1 - self.tokenizer.n_before_source
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
        tokens = self._tokens(text)
        start, end = self._start, self._special(self.tokenizer.end_id, len(text))
        match self.application:
            case Generator():
                if target is not None:
                    raise UsageError("a language model has no target: put everything into the text")
                return self._written(tokens)
            case Classifier():
                return ForwardPass((start, *self._cut(tokens), end), (), ())
            case Translator():
                target = self._own_translation(text, tokens) if target is None else well_formed(target)
                written = tokens_of(self.tokenizer.target, target)
                close = self._special(self.tokenizer.end_id, len(target))
                before = [self._special(token, 0) for token in self.tokenizer.source(())[:-1]]
                starts = [start, *(self._special(token, 0) for token in self.tokenizer.target_prefix)]
                source = (*before, *tokens[: self.room], end)
                return ForwardPass(source, (*starts, *written), (*starts[1:], *written, close))

    def _tokens(self, text: str) -> list[Token]:
        """Return the tokens of a text, or of a pair of texts with end tokens between them."""
        tokens: list[Token] = []
        at = 0
        for part in text.split(BETWEEN_TEXTS) if self.application.kind == "classifier" else [text]:
            tokens += [self._special(self.tokenizer.end_id, at)] * (self.tokenizer.pair_ends if at else 0)
            tokens += [
                replace(token, start=at + token.start, end=at + token.end) for token in tokens_of(self.tokenizer, part)
            ]
            at += len(part) + len(BETWEEN_TEXTS)
        return tokens

    def _cut(self, tokens: Sequence[Token]) -> Sequence[Token]:
        """Return the tokens of a classifier's text that fit the context; the longer text of a pair is shortened."""
        between = next((token for token in tokens if token.id == self.tokenizer.end_id), None)
        if between is None or not self.application.model.settings.text_pairs:
            return tokens[: self.room]
        return cut_pair(tokens, between, self.room)

    def read_both(self, text: str, other: str, target: str | None = None) -> tuple[ForwardPass, ForwardPass]:
        """Return the tokens of two texts. For a translator, both have the same target."""
        first = self.read(text, target)
        second = self.read(other, "" if self.application.kind == "translator" else None)
        return first, ForwardPass(second.source, first.target, first.answers) if second.source else second

    def scored(self, text: str, target: str | None = None) -> ForwardPass:
        """Return the tokens to score: the whole text for a language model, else the part that fits in the context."""
        return self.whole(text, target) if self.application.kind == "writer" else self.read(text, target)

    def read_all(self, texts: Sequence[str], targets: Sequence[str] | None = None) -> list[ForwardPass]:
        """Return the tokens of several texts. For a language model, split them into windows of the context length."""
        if self.application.kind == "writer":
            return [window for text in texts for window in self._windows(text)]
        given = [None] * len(texts) if targets is None else targets
        return [self.read(text, target) for text, target in zip(texts, given, strict=True)]

    def _windows(self, text: str) -> list[ForwardPass]:
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
        return self.read_ids(chosen * 2)

    def read_ids(self, ids: Sequence[int]) -> ForwardPass:
        """Return tokens as input for a language model. Each token counts as one character."""
        return self._written(
            [Token(readable(self.tokenizer, token), token, at, at + 1) for at, token in enumerate(ids)]
        )

    def warnings(self, text: str, target: str | None = None) -> tuple[str, ...]:
        """Return warnings about unknown characters, and about text that does not fit the context."""
        kind, line = self.application.kind, self._line(text)
        warnings = unknown_warnings(self.tokenizer, line.replace(BETWEEN_TEXTS, " "))
        if kind == "translator":
            warnings += unknown_warnings(self.tokenizer.target, target or "")
        n_tokens = len(self._tokens(line))
        if n_tokens > self.room:
            exempt = " except token scores" if kind == "writer" else ""
            what = f"the first {self.room}" if BETWEEN_TEXTS not in line else f"{self.room}"
            warnings.append(
                f"the text has {n_tokens} tokens, but all results{exempt} cover only {what}, which fit the context"
            )
        if kind == "translator" and target is not None:
            n_tokens = len(self.tokenizer.target.encode(target))
            room = self.application.model.settings.context_length - 1 - len(self.tokenizer.target_prefix)
            if n_tokens > room:
                warnings.append(
                    f"the translation has {n_tokens} tokens, but all results cover only the first {room}, "
                    "which fit the context"
                )
        return tuple(warnings)

    def _written(self, tokens: Sequence[Token]) -> ForwardPass:
        """Return tokens as input for a language model. An empty text becomes a single start token, as in generation."""
        read = (self._start, *tokens) if self.tokenizer.begins or not tokens else tuple(tokens)
        return ForwardPass((), read, read[1:])

    @property
    def _start(self) -> Token:
        return self._special(self.tokenizer.start_id, 0)

    def _special(self, token: int, place: int) -> Token:
        return special_token(self.tokenizer, token, place)

    def _own_translation(self, text: str, tokens: Sequence[Token]) -> str:
        """Translate the part of a text that is read. The whole of a longer text would be translated in parts."""
        kept = tokens[: self.room]
        return self._translate(text if len(kept) == len(tokens) else text[: kept[-1].end if kept else 0])

    def _translation(self, text: str) -> str:
        assert isinstance(self.application, Translator)
        return self.application.translate([text])[0].text

    def _line(self, text: str) -> str:
        text = well_formed(text)
        match self.application:
            case Generator():
                return text
            case Classifier():
                is_single = not self.application.labels and text.count("\t") != 1  # as in `embed`
                return text.strip() if is_single else self.application.joined(text)
        if "\n" in text.strip():
            raise UsageError("a translator reads one line at a time: give a single line")
        return text.strip()


class Outcomes:
    """The outcomes that a model can predict, with a look-up by name."""

    def __init__(self, model: Model, names: Sequence[str]):
        self.model, self._names = model, names
        self._ids = {name: number for number, name in enumerate(names)}  # the last of several: others are single bytes
        # whether the model predicts a single label or token
        self.are_explained = bool(names) and model.settings.problem_type == "single_label_classification"

    @property
    def names(self) -> Sequence[str]:
        """The labels or tokens that the model predicts. Raises UsageError for an encoder without labels."""
        if not self._names:
            raise UsageError("this encoder has no labels, so it predicts nothing. Inspect its heads instead")
        if not self.are_explained:
            raise UsageError(
                "only models that predict one label per text can be explained. Inspect the heads of this model instead"
            )
        return self._names

    def index(self, name: str) -> int:
        """Return the index of a label or token; a token may be named without its leading space."""
        names, labels = self.names, isinstance(self.model, EncoderOnly)
        for written in (name,) if labels else (name, f" {name}", f"▁{name}"):
            if written in self._ids:
                return self._ids[written]
        if labels:
            raise UsageError(f"there is no label '{name}': the labels are {', '.join(names)}")
        raise UsageError(f"'{name}' is not a single token of this model. Choose the token that it begins with")

    def label(self, target: str | None) -> int | None:
        """Return the index of a classifier's label; None for other models, or without a target.

        Raises UsageError for a classifier whose predictions cannot be explained.
        """
        if not (self.names and isinstance(self.model, EncoderOnly)) or target is None:
            return None
        return self.index(target)

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
        position = reading.position(position)
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
