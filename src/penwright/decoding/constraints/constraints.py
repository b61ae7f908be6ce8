"""What a completion must and must not hold, as one expression, and the tokens after which it can still be met."""

import codecs
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int, Int64
from torch import Tensor

from penwright.config import DecodingSettings
from penwright.decoding.constraints.automaton import TOO_MUCH, Automaton
from penwright.decoding.constraints.expressions import Expression, Expressions, Span, TooLarge, never_end
from penwright.decoding.constraints.patterns import characters, parse_pattern
from penwright.decoding.sampling.filters import NEVER, Logits
from penwright.decoding.unknown_tokens import never_written
from penwright.errors import UsageError
from penwright.tokenizers import Tokenizer

REMEMBERED = 256  # states, of which it is known what each token leads to


class ConstrainedWord(NamedTuple):
    """A banned or required word, and whether other letters may stand beside it."""

    text: str
    open_before: bool
    open_after: bool

    @classmethod
    def read(cls, written: str) -> "ConstrainedWord":
        """`art` is a word, `art*` also the beginning of one; what begins with no letter may follow one anyway."""
        text = written.strip("*")
        if not text:
            raise UsageError(f"'{written}' is no word to ban or require: write some letters, as in dragon or drag*")
        return cls(text, written[0] == "*" or not _in_word(text[0]), written[-1] == "*" or not _in_word(text[-1]))


class Rules:
    """The settings as an expression: the pattern, and the words, and that the text ends at a stop string."""

    def __init__(self, settings: DecodingSettings, check: Callable[[], None] = never_end):
        """Raises UsageError for a pattern that cannot be followed, and what `check` raises."""
        self.expressions = make = Expressions(check=check)
        self._stops = [stop for stop in settings.stop if stop]
        self._banned = [ConstrainedWord.read(word) for word in settings.banned_words]
        self._required = [ConstrainedWord.read(word) for word in settings.required_words]
        self._pattern = make.anything if settings.pattern is None else parse_pattern(make, settings.pattern)
        self._joining = make.one_of(characters(r"\w"))
        self._parting = make.one_of(characters(r"\W"))

    def after(self, prompt: str) -> Expression:
        """The completions of this prompt that are allowed, each with the stop string that ends it, if any does."""
        make, inside = self.expressions, bool(prompt) and _in_word(prompt[-1])
        required = [self._holding([word], inside) for word in self._required]
        begun = [rest for word in self._banned for rest in self._rests(word, prompt)]
        banned = make.either(self._holding(self._banned, inside), *begun)
        return self._stopping(make.both(self._pattern, *required, make.unlike(banned)))

    def _holding(self, words: Sequence[ConstrainedWord], inside: bool) -> Expression:
        """Texts with one of these words in them; `inside`: the text begins in the middle of another one."""
        make = self.expressions
        apart = make.then(make.anything, self._parting)
        before = apart if inside else make.either(make.empty, apart)
        joined = make.either(*(self._ending(word, 0) for word in words if word.open_before))
        alone = make.either(*(self._ending(word, 0) for word in words if not word.open_before))
        return make.either(make.then(make.anything, joined), make.then(before, alone))

    def _ending(self, word: ConstrainedWord, place: int) -> Expression:
        """The word from this character on, and whatever may come after it."""
        make = self.expressions
        apart = make.either(make.empty, make.then(self._parting, make.anything))
        return make.then(self._text(word.text[place:]), make.anything if word.open_after else apart)

    def _rests(self, word: ConstrainedWord, prompt: str) -> list[Expression]:
        """What would complete the word that the prompt begins at its end."""
        found, folded = [], prompt.casefold()
        for place in range(1, len(word.text)):
            before = prompt[:-place][-1:]
            if folded.endswith(word.text[:place].casefold()) and (word.open_before or not _in_word(before)):
                found.append(self._ending(word, place))
        return found

    def _text(self, text: str) -> Expression:
        """In capitals or not."""
        return self.expressions.then(*(self.expressions.one_of(_cases(character)) for character in text))

    def _stopping(self, allowed: Expression) -> Expression:
        """Allowed texts, whole or with a stop string after them, and no stop string before that."""
        make = self.expressions
        if not self._stops:
            return allowed
        exact = {stop: make.then(*(make.one_of([(ord(c), ord(c) + 1)]) for c in stop)) for stop in self._stops}
        whole = [allowed]
        for stop in self._stops:
            longer = [exact[other] for other in self._stops if other != stop and other.endswith(stop)]
            hidden = [make.unlike(make.then(make.anything, other)) for other in longer]  # the longest one counts
            whole.append(make.both(make.then(allowed, exact[stop]), *hidden))
        any_character = make.unlike(make.empty)
        early = [make.then(make.anything, stop, any_character) for stop in exact.values()]
        inside = [make.then(make.anything, stop, make.anything) for stop in exact.values()]
        whole[0] = make.both(allowed, *map(make.unlike, inside))
        return make.both(make.either(*whole), *map(make.unlike, early))


class TokenText(NamedTuple):
    """What tokens add to a text that ends with given bytes of an unfinished character."""

    tokens: Int64[np.ndarray, " tokens"]  # those that leave the text well-formed, the longest first
    classes: Int64[np.ndarray, "tokens longest"]
    n_longer: list[int]  # than each number of characters
    tails: Int64[np.ndarray, " tokens"]  # the unfinished character after it, by number


class CompletionConstraint:
    """Knows what every token leads to from every state of the automaton."""

    def __init__(
        self,
        settings: DecodingSettings,
        tokenizer: Tokenizer,
        prompts: Sequence[str],
        max_new_tokens: int,
        check: Callable[[], None] = never_end,
    ):
        """Build the automaton, and call `check` meanwhile, which may end that by raising.

        Raises UsageError where no completion of one of the prompts meets the settings.
        """
        try:
            rules = Rules(settings, check)
            starts = {prompt: rules.after(prompt) for prompt in prompts}
        except TooLarge:
            raise UsageError(TOO_MUCH) from None
        self.automaton = Automaton(rules.expressions, list(starts.values()))
        self.starts = dict(zip(starts, self.automaton.starts, strict=True))
        self.end_id, self.vocab_size = tokenizer.end_id, tokenizer.vocab_size
        never = {*never_written(tokenizer), tokenizer.end_id}
        self.bytes = [b"" if token in never else tokenizer.token_bytes(token) for token in range(self.vocab_size)]
        self._tails: list[bytes] = [b""]
        self._bytewise = {bytes([byte]) for byte in range(256)} <= set(self.bytes)
        self.distances = self.automaton.distances(self._costs())
        self._check(max_new_tokens)
        self._spelling = lru_cache(REMEMBERED)(self._spell)
        self._distances_with = lru_cache(REMEMBERED)(self._find_distances_with)
        self.reach = lru_cache(REMEMBERED)(self._reach)
        for start in self.starts.values():  # so that the first step of writing need not wait for it
            check()
            self.reach(start, b"")

    def _costs(self) -> Float64[np.ndarray, " classes"]:
        """Tokens that a character of each class takes: one, or its bytes, or inf where it cannot be written."""
        costs = np.array(self.automaton.classes.cheapest() if self._bytewise else [inf] * self.automaton.classes.count)
        costs = costs.astype(np.float64)
        for spelled in self.bytes:
            text = spelled.decode("utf-8", errors="ignore") if len(spelled) <= 4 else ""
            if len(text) == 1 and len(text.encode()) == len(spelled):
                costs[self.automaton.classes.of(text)] = 1
        return costs

    def _check(self, max_new_tokens: int) -> None:
        for prompt, start in self.starts.items():
            distance, after = self.distances[start], f" after '{prompt[-40:]}'" if prompt.strip() else ""
            if distance == inf:
                raise UsageError(
                    f"nothing that this model can write{after} meets the pattern and the words: they contradict each "
                    "other, or ask for characters that the model does not know"
                )
            if distance > max_new_tokens:
                raise UsageError(
                    f"{max_new_tokens} tokens may be too few{after} for the pattern and the words: "
                    f"allow {int(distance)} (--max-new-tokens)"
                )

    def follow(self, state: int, tail: bytes, token: int) -> tuple[int, bytes]:
        """The state and the unfinished character after a token."""
        text, rest = _decode(tail + self.bytes[token])
        for of_class in self.automaton.classes.of(text or ""):
            state = int(self.automaton.table[state, of_class])
        return state, rest

    def _reach(self, state: int, tail: bytes) -> Float32[np.ndarray, " vocab_size"]:
        """For each token, how many more are needed at most after it; inf where it must not come."""
        spelling = self._spelling(tail)
        states = np.full(len(spelling.tokens), state, dtype=np.int32)
        for place, n_longer in enumerate(spelling.n_longer):
            states[:n_longer] = self.automaton.table[states[:n_longer], spelling.classes[:n_longer, place]]
        found = np.full(self.vocab_size, inf, dtype=np.float32)
        for number in np.unique(spelling.tails).tolist():
            here = spelling.tails == number
            found[spelling.tokens[here]] = self._distances_with(self._tails[number])[states[here]]
        if self.automaton.accepts[state] and not tail:
            found[self.end_id] = 0
        return found

    def _find_distances_with(self, tail: bytes) -> Float64[np.ndarray, " states"]:
        """From each state when the first bytes of a character are written."""
        if not tail:
            return self.distances
        first, last, n_missing = _completions(tail)
        classes = self.automaton.classes.between(first, last) if self._bytewise else []
        return n_missing + self.distances[self.automaton.table[:, classes]].min(1, initial=inf)

    def _spell(self, tail: bytes) -> TokenText:
        found = []
        for token, spelled in enumerate(self.bytes):
            if spelled and (not tail or 0x80 <= spelled[0] < 0xC0):
                text, rest = _decode(tail + spelled)
                if text is not None:
                    found.append((len(text), token, text, rest))
        found.sort(key=lambda each: -each[0])
        lengths = np.array([length for length, *_ in found], dtype=np.int64)
        classes = np.zeros((len(found), int(lengths.max(initial=0))), dtype=np.int64)
        every = self.automaton.classes.of("".join(text for _, _, text, _ in found))
        classes[np.arange(classes.shape[1]) < lengths[:, None]] = every
        n_longer = [int((lengths > place).sum()) for place in range(classes.shape[1])]
        tails = [self._number_of(rest) for *_, rest in found]
        tokens = np.array([token for _, token, *_ in found], dtype=np.int64)
        return TokenText(tokens, classes, n_longer, np.array(tails, dtype=np.int64))

    def _number_of(self, tail: bytes) -> int:
        if tail not in self._tails:
            self._tails.append(tail)
        return self._tails.index(tail)


class GuidedRows:
    """Where the rows of a batch stand."""

    def __init__(self, guide: CompletionConstraint, prompts: Sequence[str]):
        self._guide = guide
        self._places: list[tuple[int, bytes]] = [(guide.starts[prompt], b"") for prompt in prompts]

    def possible(self, logits: Logits, n_left: int) -> Logits:
        """The scores, of those tokens alone after which n_left more suffice; there always is one."""
        return logits.masked_fill(~self.allowed(n_left).to(logits.device), NEVER)

    def allowed(self, n_left: int) -> Bool[Tensor, "rows vocab_size"]:
        """The tokens of each row after which n_left more suffice."""
        return torch.from_numpy(np.stack([self._guide.reach(*place) for place in self._places]) <= n_left)

    def push(self, tokens: Int[Tensor, " rows"]) -> None:
        """The next token of each row; none is the end."""
        pairs = zip(self._places, tokens.tolist(), strict=True)
        self._places = [self._guide.follow(*place, token) for place, token in pairs]

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows."""
        self._places = [self._places[row] for row in rows]


def is_constrained(settings: DecodingSettings) -> bool:
    """Whether there is anything that a completion must or must not hold."""
    return settings.pattern is not None or bool(settings.banned_words or settings.required_words)


def _in_word(text: str) -> bool:
    return text.isalnum() or text == "_"


def _cases(character: str) -> list[Span]:
    forms = {character, character.lower(), character.upper()}
    return [(ord(form), ord(form) + 1) for form in forms if len(form) == 1]


def _decode(spelled: bytes) -> tuple[str | None, bytes]:
    """The whole characters and the bytes of an unfinished one; None where it cannot become well-formed."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text, rest = decoder.decode(spelled), decoder.getstate()[0]
    except UnicodeDecodeError:
        return None, b""
    if rest:
        first, last, _ = _completions(rest)
        if first > last:  # the decoder only notices at the next byte
            return None, b""
    return text, rest


def _completions(tail: bytes) -> tuple[int, int, int]:
    """The first and the last code point that begin with these bytes, and how many more they take."""
    length = 2 + (tail[0] >= 0xE0) + (tail[0] >= 0xF0)
    n_missing = length - len(tail)
    known = tail[0] & (0x7F >> length)
    for byte in tail[1:]:
        known = known << 6 | byte & 0x3F
    first, last = known << 6 * n_missing, (known + 1 << 6 * n_missing) - 1
    most = 0xD7FF if tail[0] == 0xED else 0x10FFFF  # surrogates are no characters
    return max(first, {2: 0x80, 3: 0x800, 4: 0x10000}[length]), min(last, most), n_missing
