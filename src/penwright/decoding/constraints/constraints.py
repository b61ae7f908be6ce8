"""Constraints on completions: all settings as one regular expression, and the tokens that can still lead to a match."""

import codecs
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64

from penwright.config import DecodingSettings
from penwright.decoding.constraints.expressions import TOO_MUCH, Automaton, Expression, Expressions, TooLarge
from penwright.decoding.constraints.patterns import parse_pattern, separators
from penwright.decoding.sampling.logits_process import NEG_INF, Logits
from penwright.errors import UsageError, do_nothing
from penwright.text import is_in_word
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import never_generated

REMEMBERED = 256  # maximum number of entries in each cache of token transitions


class ConstrainedWord(NamedTuple):
    """A banned or required word, and whether letters may directly precede or follow it."""

    text: str
    open_before: bool
    open_after: bool

    @classmethod
    def read(cls, written: str) -> "ConstrainedWord":
        """Parse a word: `art` is a whole word; `art*` also matches longer words that begin with it.

        Letters may directly precede a word that begins with a symbol, and follow one that ends with a symbol. The same
        holds for the characters of scripts without spaces, such as Chinese.
        """
        text = written.strip("*")
        if not text:
            raise UsageError(f"'{written}' cannot be banned or required: write some letters, like dragon or drag*")
        return cls(text, written[0] == "*" or not is_in_word(text[0]), written[-1] == "*" or not is_in_word(text[-1]))


class Rules:
    """The constraints of the settings as one regular expression: the pattern, the words and the stop strings."""

    def __init__(self, settings: DecodingSettings, check: Callable[[], None] = do_nothing):
        """Build the expression. `check` may raise an exception to abort. Raises UsageError for an invalid pattern."""
        self.expressions = make = Expressions(check=check)
        self._stops = [stop for stop in settings.stop if stop]
        self._banned = [ConstrainedWord.read(word) for word in settings.banned_words]
        self._required = [ConstrainedWord.read(word) for word in settings.required_words]
        self._pattern = make.anything if settings.pattern is None else parse_pattern(make, settings.pattern)
        self._separator = make.one_of(separators())

    def after(self, prompt: str) -> Expression:
        """Return an expression for the allowed completions of this prompt, with or without a final stop string."""
        make, inside = self.expressions, is_in_word(prompt[-1:])
        required = [self._containing([word], inside) for word in self._required]
        remainders = [rest for word in self._banned for rest in self._remainders(word, prompt)]
        banned = make.either(self._containing(self._banned, inside), *remainders)
        return self._with_stops(make.both(self._pattern, *required, make.unlike(banned)))

    def _containing(self, words: Sequence[ConstrainedWord], inside: bool) -> Expression:
        """Return an expression for texts that contain one of the words. `inside`: the text begins inside a word."""
        make = self.expressions
        apart = make.then(make.anything, self._separator)
        before = apart if inside else make.either(make.empty, apart)
        joined = make.either(*(self._word_from(word, 0) for word in words if word.open_before))
        alone = make.either(*(self._word_from(word, 0) for word in words if not word.open_before))
        return make.either(make.then(make.anything, joined), make.then(before, alone))

    def _word_from(self, word: ConstrainedWord, start: int) -> Expression:
        """Return an expression for the word from index `start` onward, followed by any text that may come after it."""
        make = self.expressions
        apart = make.either(make.empty, make.then(self._separator, make.anything))
        return make.then(self._any_case(word.text[start:]), make.anything if word.open_after else apart)

    def _remainders(self, word: ConstrainedWord, prompt: str) -> list[Expression]:
        """Return, for each prefix of the word that the prompt ends with, an expression for the rest of the word."""
        remainders, folded = [], prompt.casefold()
        for n in range(1, len(word.text)):
            before = prompt[:-n][-1:]
            if folded.endswith(word.text[:n].casefold()) and (word.open_before or not is_in_word(before)):
                remainders.append(self._word_from(word, n))
        return remainders

    def _any_case(self, text: str) -> Expression:
        """Return an expression that matches the text regardless of case."""
        return self.expressions.then(*(self.expressions.one_of(_case_variants(character)) for character in text))

    def _with_stops(self, allowed: Expression) -> Expression:
        """Return an expression for allowed texts that contain no stop string, except possibly one at the end."""
        if not self._stops:
            return allowed
        make = self.expressions
        exact = {stop: make.then(*(make.one_of([(ord(c), ord(c) + 1)]) for c in stop)) for stop in self._stops}
        whole = [allowed]
        for stop in self._stops:
            longer = [exact[other] for other in self._stops if other != stop and other.endswith(stop)]
            # if several stop strings end at the same place, only the longest counts
            hidden = [make.unlike(make.then(make.anything, other)) for other in longer]
            whole.append(make.both(make.then(allowed, exact[stop]), *hidden))
        any_character = make.unlike(make.empty)
        early = [make.then(make.anything, stop, any_character) for stop in exact.values()]
        inside = [make.then(make.anything, stop, make.anything) for stop in exact.values()]
        whole[0] = make.both(allowed, *map(make.unlike, inside))
        return make.both(make.either(*whole), *map(make.unlike, early))


class TokenText(NamedTuple):
    """The characters that each token adds to a text, given the incomplete character at the end of that text."""

    tokens: Int64[np.ndarray, " tokens"]  # tokens that keep the UTF-8 valid, longest text first
    # for each position, the character class there of each token that adds more characters; few tokens are long
    columns: list[Int64[np.ndarray, " longer"]]
    tails: Int64[np.ndarray, " tokens"]  # for each token, the index of the incomplete character that it ends with


class CompletionConstraint:
    """The constraint on the completions of given prompts: an automaton, and the next state for each state and token."""

    def __init__(
        self,
        settings: DecodingSettings,
        tokenizer: Tokenizer,
        prompts: Sequence[str],
        max_new_tokens: int,
        end_ids: Collection[int],
        check: Callable[[], None] = do_nothing,
    ):
        """Build the automaton. `check` is called repeatedly during the build, and may raise an exception to abort it.

        `end_ids` are the tokens that end a completion. Raises UsageError if no completion of one of the prompts can
        satisfy the settings.
        """
        try:
            rules = Rules(settings, check)
            starts = {prompt: rules.after(prompt) for prompt in prompts}
        except TooLarge:
            raise UsageError(TOO_MUCH) from None
        self.automaton = Automaton(rules.expressions, list(starts.values()))
        self.starts = dict(zip(starts, self.automaton.starts, strict=True))
        self.end_ids, self.vocab_size = list(end_ids), tokenizer.vocab_size
        never = {*never_generated(tokenizer), *self.end_ids}
        self.bytes = [b"" if token in never else tokenizer.token_bytes(token) for token in range(self.vocab_size)]
        self._tails: list[bytes] = [b""]
        self._bytewise = {bytes([byte]) for byte in range(256)} <= set(self.bytes)
        self.distances = self.automaton.distances(self._class_costs())
        self._check(max_new_tokens)
        self._token_texts = lru_cache(REMEMBERED)(self._find_token_texts)
        self._distances_after_tail = lru_cache(REMEMBERED)(self._find_distances_after_tail)
        self.reach = lru_cache(REMEMBERED)(self._reach)
        for start in self.starts.values():  # computed now, to save time in the first decoding step
            check()
            self.reach(start, b"")

    def _class_costs(self) -> Float64[np.ndarray, " classes"]:
        """Return how many tokens a character of each class takes: one, or one per byte; inf if no tokens spell it."""
        costs = np.array(self.automaton.classes.cheapest() if self._bytewise else [inf] * self.automaton.classes.count)
        costs = costs.astype(np.float64)
        for token_bytes in self.bytes:
            text = token_bytes.decode("utf-8", errors="ignore") if len(token_bytes) <= 4 else ""
            if len(text) == 1 and len(text.encode()) == len(token_bytes):
                costs[self.automaton.classes.of(text)] = 1
        return costs

    def _check(self, max_new_tokens: int) -> None:
        for prompt, start in self.starts.items():
            distance, after = self.distances[start], f" after '{prompt[-40:]}'" if prompt.strip() else ""
            if distance == inf:
                raise UsageError(
                    f"no text of this model{after} can satisfy the pattern and the word constraints: they "
                    "contradict each other, or need characters that the model does not know. Change one of them"
                )
            if distance > max_new_tokens:
                raise UsageError(
                    f"max_new_tokens ({max_new_tokens}) may be too low{after} for the pattern and the required words: "
                    f"allow at least {int(distance)} (--max-new-tokens)"
                )

    def follow(self, state: int, tail: bytes, token: int) -> tuple[int, bytes]:
        """Return the state after a token, and the bytes of an incomplete character at the end of the token."""
        text, incomplete = _decode(tail + self.bytes[token])
        for of_class in self.automaton.classes.of(text or ""):
            state = int(self.automaton.table[state, of_class])
        return state, incomplete

    def _reach(self, state: int, tail: bytes) -> Float32[np.ndarray, " vocab_size"]:
        """Return, for each next token, how many further tokens suffice to complete the text; inf if forbidden."""
        texts = self._token_texts(tail)
        states = np.full(len(texts.tokens), state, dtype=np.int32)
        for column in texts.columns:
            states[: len(column)] = self.automaton.table[states[: len(column)], column]
        costs = np.full(self.vocab_size, inf, dtype=np.float32)
        for number in np.unique(texts.tails).tolist():
            rows = texts.tails == number
            costs[texts.tokens[rows]] = self._distances_after_tail(self._tails[number])[states[rows]]
        if self.automaton.accepts[state] and not tail:
            costs[self.end_ids] = 0
        return costs

    def _find_distances_after_tail(self, tail: bytes) -> Float64[np.ndarray, " states"]:
        """Return, for each state, the fewest tokens that complete the character in `tail` and then the text."""
        if not tail:
            return self.distances
        first, last, n_missing = _completions(tail)
        classes = self.automaton.classes.between(first, last) if self._bytewise else []
        return n_missing + self.distances[self.automaton.table[:, classes]].min(1, initial=inf)

    def _find_token_texts(self, tail: bytes) -> TokenText:
        texts = []
        for token, token_bytes in enumerate(self.bytes):
            if token_bytes and (not tail or 0x80 <= token_bytes[0] < 0xC0):
                text, incomplete = _decode(tail + token_bytes)
                if text is not None:
                    texts.append((len(text), token, text, incomplete))
        texts.sort(key=lambda each: -each[0])
        lengths = np.array([length for length, *_ in texts], dtype=np.int64)
        every = np.array(self.automaton.classes.of("".join(text for _, _, text, _ in texts)), dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        columns = [every[starts[lengths > place] + place] for place in range(lengths.max(initial=0))]
        tails = [self._tail_number(incomplete) for *_, incomplete in texts]
        tokens = np.array([token for _, token, *_ in texts], dtype=np.int64)
        return TokenText(tokens, columns, np.array(tails, dtype=np.int64))

    def _tail_number(self, tail: bytes) -> int:
        if tail not in self._tails:
            self._tails.append(tail)
        return self._tails.index(tail)


class ConstrainedText:
    """A constrained completion, with its state in the automaton."""

    def __init__(self, guide: CompletionConstraint, prompt: str):
        self._guide, self._state = guide, (guide.starts[prompt], b"")

    def possible(self, logits: Logits, n_left: int) -> Logits:
        """Mask each token after which n_left more tokens are too few to satisfy the constraint."""
        allowed = torch.from_numpy(self._guide.reach(*self._state) <= n_left)
        return logits.masked_fill(~allowed.to(logits.device), NEG_INF)

    def push(self, token: int) -> None:
        """Append a token, which is never the end token."""
        self._state = self._guide.follow(*self._state, token)


def is_constrained(settings: DecodingSettings) -> bool:
    """Return whether the settings have a pattern, or banned or required words."""
    return settings.pattern is not None or bool(settings.banned_words or settings.required_words)


def _case_variants(character: str) -> list[tuple[int, int]]:
    forms = {character, character.lower(), character.upper()}
    return [(ord(form), ord(form) + 1) for form in forms if len(form) == 1]


def _decode(token_bytes: bytes) -> tuple[str | None, bytes]:
    """Return the complete characters (None for invalid UTF-8), and the bytes of an incomplete character at the end."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text, incomplete = decoder.decode(token_bytes), decoder.getstate()[0]
    except UnicodeDecodeError:
        return None, b""
    if incomplete:
        first, last, _ = _completions(incomplete)
        if first > last:  # these bytes are invalid, but Python's decoder notices this only at the next byte
            return None, b""
    return text, incomplete


def _completions(tail: bytes) -> tuple[int, int, int]:
    """Return the first and last code points whose UTF-8 begins with these bytes, and the number of missing bytes."""
    length = 2 + (tail[0] >= 0xE0) + (tail[0] >= 0xF0)
    n_missing = length - len(tail)
    known = tail[0] & (0x7F >> length)
    for byte in tail[1:]:
        known = known << 6 | byte & 0x3F
    first, last = known << 6 * n_missing, (known + 1 << 6 * n_missing) - 1
    most = 0xD7FF if tail[0] == 0xED else 0x10FFFF  # surrogates are not characters
    return max(first, {2: 0x80, 3: 0x800, 4: 0x10000}[length]), min(last, most), n_missing
