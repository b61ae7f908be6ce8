"""What a target must and must not contain, followed token by token: a small automaton for each sentence."""

import unicodedata
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum, inf
from typing import Literal, NamedTuple

import torch

from penwright.text import WITHOUT_SPACES
from penwright.tokenizers import Tokenizer

Tokens = tuple[int, ...]
After = Literal["nothing", "opening", "anything"]  # what the next token comes after
SLACK, SLOPE = 1, 5.0  # tokens beside its place that cost a term nothing, and nats for each more


class Borders:
    """Where words begin and end, by the tokens of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        texts = [tokenizer.token_bytes(token).decode("utf-8", "replace") for token in range(tokenizer.vocab_size)]
        self.ends = torch.tensor([_ends_word(text) for text in texts])  # a word before such a token is whole
        self.ends[tokenizer.end_id] = True
        self.opens = torch.tensor([_opens_word(text) for text in texts])  # a word after it comes without a space
        self.is_end: list[bool] = self.ends.tolist()
        self.is_opening: list[bool] = self.opens.tolist()

    @cached_property
    def goes_on(self) -> torch.Tensor:
        """Whether a word before such a token is longer."""
        return ~self.ends


def _ends_word(text: str) -> bool:
    if WITHOUT_SPACES.match(text):
        return True
    return bool(text) and not (text[0].isalnum() or text[0] in "-_'’\N{REPLACEMENT CHARACTER}" or _combines(text[0]))


def _combines(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _opens_word(text: str) -> bool:
    if WITHOUT_SPACES.match(text[-1:]):
        return True
    return bool(text) and (text[-1] in "\"'„‚»/" or unicodedata.category(text[-1]) in ("Ps", "Pi"))


@dataclass(frozen=True)
class RequiredTerm:
    """Words that must come so many times, as whole words, in any of their forms, and not more often."""

    forms: tuple[Tokens, ...]  # as they are written after a space
    bare: tuple[Tokens, ...]  # as they are written after an opening bracket
    first: tuple[Tokens, ...]  # as they are written at the beginning of a text
    times: int = 1
    bias: float = inf  # inf: they must come. Else they may, and so many nats are added for each of their tokens
    place: int | None = None  # how many tokens are expected before them
    verbatim: bool = False  # they count as soon as they stand there, and a new word must follow

    @property
    def is_hard(self) -> bool:
        return self.bias == inf

    @cached_property
    def shortest(self) -> int:
        return min(map(len, self.forms))

    def too_early(self, start: int) -> float:
        """What it costs in nats to begin so far before the expected place."""
        return 0.0 if self.place is None else SLOPE * max(0, self.place - SLACK - start)

    def is_late(self, length: int) -> bool:
        """Whether it should have begun before there are so many tokens."""
        return self.place is not None and length > self.place + SLACK


class Match(NamedTuple):
    """The beginning of a term that the target ends with."""

    term: int
    form: Tokens
    length: int

    @property
    def is_whole(self) -> bool:
        return self.length == len(self.form)


class State(NamedTuple):
    """How far a target has come."""

    left: tuple[int, ...]  # how many times each term must still come
    matches: tuple[Match, ...] = ()
    after: After = "nothing"  # what the last token is
    closed: bool = False  # whether a verbatim term has just come


class Prospects(NamedTuple):
    """What a state means for the search."""

    wanted: Tokens  # that terms which are still to come go on or begin with
    barred: list[int]  # tokens that would be a word which must not come, or not again
    may_end: bool  # whether all that must come has come, if the last word ends here
    may_end_word: bool  # not where that would be a hard term once too often
    progress: int  # how many hard terms have come or have begun: hypotheses compete with those that have come as far
    needed: int  # the least number of tokens until all hard terms have come, without the end token
    needed_anew: int  # the same if none of them has begun, or the word that ends one goes on
    hard: Match | None  # the longest match of a hard term that must still come
    soft: Match | None  # of a soft term that may still come
    waiting: list[RequiredTerm]  # hard terms that have not begun


@dataclass(eq=False, slots=True)
class Stage:
    """A state with what is known of it; a guide has one for each state."""

    state: State
    prospects: Prospects
    next: dict[int, "Stage"] = field(default_factory=dict)  # by tokens


@dataclass
class ConstraintAutomaton:
    """Follows targets of one sentence through its terms; begins with the tokens of `prefix`, if there are any."""

    terms: Sequence[RequiredTerm]
    borders: Borders
    prefix: Tokens = ()
    whole_prefix: bool = False  # whether its last word goes no further
    discouraged: Sequence[Mapping[int, float]] = ()  # at each step, nats to take from tokens
    _stages: dict[State, Stage] = field(default_factory=dict)

    def start(self) -> Stage:
        """Nothing is written yet."""
        return self._stage(State(tuple(term.times for term in self.terms)))

    def after(self, stage: Stage, token: int) -> Stage:
        """The stage once this token is written. A term counts when what follows shows that its last word is whole."""
        if token not in stage.next:
            stage.next[token] = self._stage(self._after(stage.state, token))
        return stage.next[token]

    def _stage(self, state: State) -> Stage:
        if state not in self._stages:
            self._stages[state] = Stage(state, self._look(state))
        return self._stages[state]

    def _after(self, state: State, token: int) -> State:
        kind: After = "opening" if self.borders.is_opening[token] else "anything"
        left = self._settled(state) if self.borders.is_end[token] else state.left
        going_on = [m for m in state.matches if not m.is_whole and m.form[m.length] == token]
        longer = [match._replace(length=match.length + 1) for match in going_on]
        begun = [Match(term, form, 1) for term, form in self._beginnings[state.after] if form[0] == token]
        return self._closed(State(left, tuple(longer + begun), kind))

    def busy(self, state: State) -> Set[int] | None:
        """The tokens that begin terms there; None where one is begun, which all tokens end or go on with."""
        return None if state.matches else self._first_tokens[state.after]

    def _closed(self, state: State) -> State:
        """With the verbatim term that is now complete, if there is one, counted."""
        done = {m.term for m in state.matches if m.is_whole and self.terms[m.term].verbatim and state.left[m.term]}
        if not done:
            return state
        left = tuple(n - (number in done) for number, n in enumerate(state.left))
        return State(left, tuple(match for match in state.matches if match.term not in done), state.after, closed=True)

    @property
    def most_bias(self) -> float:
        """The most that soft terms can add, in nats."""
        soft = [term for term in self.terms if not term.is_hard]
        return fsum(term.bias * term.times * max(map(len, term.forms + term.first)) for term in soft)

    def _look(self, state: State) -> Prospects:
        """What the state means for the search."""
        settled, beginnings = self._settled(state), self._beginnings[state.after]
        whole = [match.term for match in state.matches if match.is_whole]
        alive = [match for match in state.matches if state.left[match.term] > 0]
        hard = [match for match in alive if self.terms[match.term].is_hard]
        soft = [match for match in alive if not self.terms[match.term].is_hard]
        missing = [(n, term) for n, term in zip(state.left, self.terms, strict=True) if term.is_hard]
        over = any(self.terms[term].is_hard and not state.left[term] for term in whole)
        going_on = [match.form[match.length] for match in alive if not match.is_whole]
        in_a_word = going_on and len(going_on) == len(state.matches)
        begin = [] if in_a_word else [form[0] for term, form in beginnings if settled[term] > 0]
        saved = [self.terms[m.term].shortest - (len(m.form) - m.length) for m in hard]
        wanted = tuple(dict.fromkeys(going_on + begin))
        needed_anew = sum(n * term.shortest for n, term in missing)
        over_forms = [form for term, form in beginnings if not state.left[term] and self.terms[term].is_hard]
        return Prospects(
            wanted=wanted,
            barred=[form[0] for form in over_forms if len(form) == 1 and form[0] not in wanted],
            may_end=not any(n and term.is_hard for n, term in zip(settled, self.terms, strict=True)),
            may_end_word=not over or any(state.left[term] > 0 for term in whole),
            progress=sum(term.times - n for n, term in missing) + bool(hard),
            needed=needed_anew - max(saved, default=0),
            needed_anew=needed_anew,
            hard=max(hard, key=_length, default=None),
            soft=max(soft, key=_length, default=None),
            waiting=[term for n, term in missing if n and all(self.terms[m.term] is not term for m in hard)],
        )

    def _settled(self, state: State) -> tuple[int, ...]:
        """What is left if the last word is whole: the longest term that ends with it has come."""
        whole = [match for match in state.matches if match.is_whole and state.left[match.term] > 0]
        if not whole:
            return state.left
        term = max(whole, key=_length).term
        return tuple(n - (number == term) for number, n in enumerate(state.left))

    @cached_property
    def _beginnings(self) -> dict[After, list[tuple[int, Tokens]]]:
        """The terms that can begin after each kind of token, by their numbers, in each of their forms."""
        found: dict[After, list[tuple[int, Tokens]]] = {"nothing": [], "opening": [], "anything": []}
        for number, term in enumerate(self.terms):
            found["nothing"] += [(number, form) for form in dict.fromkeys(term.first + term.forms)]
            found["opening"] += [(number, form) for form in dict.fromkeys(term.bare + term.forms)]
            found["anything"] += [(number, form) for form in dict.fromkeys(term.forms)]
        return found

    @cached_property
    def _first_tokens(self) -> dict[After, set[int]]:
        """What those terms begin with."""
        return {after: {form[0] for _, form in beginnings} for after, beginnings in self._beginnings.items()}


def overdue(waiting: Sequence[RequiredTerm], length: int) -> float:
    """What the terms cost in nats that should have begun by now."""
    return SLOPE * sum(term.is_late(length) for term in waiting)


def _length(match: Match) -> int:
    return match.length
