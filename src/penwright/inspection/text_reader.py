"""Conversion of texts and targets to the tokens that an application reads."""

from functools import lru_cache

import numpy as np

from penwright.classification.classifier import Classifier
from penwright.errors import UsageError
from penwright.generation.generator import Generator
from penwright.inspection.forward_pass import ForwardPass
from penwright.inspection.tokens import Token, readable, special_ids, special_token, tokens_of
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
        """Return the tokens that the model reads, cut to fit the context."""
        return self.whole(text, target).cut(self.application.model.settings.context_length)

    def whole(self, text: str, target: str | None = None) -> ForwardPass:
        """Return all tokens of a text. A translator's or classifier's source is cut so that the end token fits."""
        text = self._line(text)
        tokens = tokens_of(self.tokenizer, text)
        start, end = self._special(self.tokenizer.start_id, 0), self._special(self.tokenizer.end_id, len(text))
        match self.application:
            case Generator():
                if target is not None:
                    raise UsageError("a writer has no target: put everything into the text")
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
        """Split a writer's text into adjacent windows of the context length."""
        whole, context = self.whole(text), self.application.model.settings.context_length
        return [
            ForwardPass((), whole.target[at : at + context], whole.answers[at : at + context])
            for at in range(0, len(whole.answers), context)
        ]

    def repeated(self, n: int, seed: int) -> ForwardPass:
        """Return at most `n` random ordinary tokens, repeated once, for a writer to read."""
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
