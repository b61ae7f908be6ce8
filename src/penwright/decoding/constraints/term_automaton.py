"""Terms that a target must or must not contain, tracked token by token by a small automaton for each sentence."""

import unicodedata
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum, inf
from typing import Literal, NamedTuple

import torch

from penwright.text import WITHOUT_SPACES, is_mark
from penwright.tokenizers import Tokenizer

Tokens = tuple[int, ...]
# What precedes a token: nothing, a token such as "(" that a word may follow without a space, or any other token.
After = Literal["nothing", "opening", "anything"]
SLACK, SLOPE = 1, 5.0  # a term may be SLACK tokens early or late; beyond that, each token costs SLOPE nats


class Borders:
    """The word boundaries before and after each token of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        texts = [tokenizer.token_bytes(token).decode("utf-8", "replace") for token in range(tokenizer.vocab_size)]
        self.ends = torch.tensor([_ends_word(text) for text in texts])  # whether each token ends the word before it
        self.ends[tokenizer.end_id] = True
        # whether a word may follow each token without a space, as after "("
        self.opens = torch.tensor([_opens_word(text) for text in texts])
        self.is_end: list[bool] = self.ends.tolist()
        self.is_opening: list[bool] = self.opens.tolist()

    @cached_property
    def continues(self) -> torch.Tensor:
        """A mask of the tokens that continue the word before them."""
        return ~self.ends


def _ends_word(text: str) -> bool:
    if WITHOUT_SPACES.match(text):
        return True
    return bool(text) and not (text[0].isalnum() or text[0] in "-_'’\N{REPLACEMENT CHARACTER}" or is_mark(text[0]))


def _opens_word(text: str) -> bool:
    if WITHOUT_SPACES.match(text[-1:]):
        return True
    return bool(text) and (text[-1] in "\"'„‚»/" or unicodedata.category(text[-1]) in ("Ps", "Pi"))


@dataclass(frozen=True)
class RequiredTerm:
    """A term that must occur exactly `times` times (0: never), as whole words, in any of its forms."""

    forms: tuple[Tokens, ...]  # the forms of the term, as tokenized after a space
    bare: tuple[Tokens, ...]  # the forms of the term, as tokenized after an opening bracket
    first: tuple[Tokens, ...]  # the forms of the term, as tokenized at the beginning of a text
    times: int = 1
    bias: float = inf  # bonus in nats for each token of an optional term; inf: the term is required
    position: int | None = None  # expected number of tokens before the term
    # whether the term is complete as soon as its last token is generated; then the next token must begin a new word
    verbatim: bool = False

    @property
    def is_hard(self) -> bool:
        """Whether the term is required."""
        return self.bias == inf

    @cached_property
    def shortest(self) -> int:
        """The number of tokens of the shortest form of the term."""
        return min(map(len, self.forms))

    def too_early(self, start: int) -> float:
        """Return the penalty in nats for beginning the term at token `start`, or 0 if that is not too early."""
        return 0.0 if self.position is None else SLOPE * max(0, self.position - SLACK - start)

    def is_late(self, length: int) -> bool:
        """Return whether the term must have begun by the time the target has `length` tokens."""
        return self.position is not None and length > self.position + SLACK


class Match(NamedTuple):
    """A match between the beginning of a term and the end of the target so far."""

    term: int
    form: Tokens
    length: int

    @property
    def is_whole(self) -> bool:
        """Whether the match covers all tokens of `form`."""
        return self.length == len(self.form)


class State(NamedTuple):
    """The state of a target: the terms that it has completed and begun."""

    remaining: tuple[int, ...]  # number of times that each term must still occur (or may still occur, if it is soft)
    matches: tuple[Match, ...] = ()
    after: After = "nothing"  # what precedes the next token: nothing, a token such as "(", or any other token
    closed: bool = False  # whether a verbatim term has just been completed


class Prospects(NamedTuple):
    """The tokens and terms that a state of the automaton permits, forbids and requires next."""

    wanted: Tokens  # tokens that begin or continue a missing term
    barred: list[int]  # single-token terms that are forbidden, or have occurred often enough
    may_end: bool  # whether all required terms are present, assuming that the last word is complete
    may_end_word: bool  # False if ending the word here would complete a term more often than permitted
    progress: int  # number of required terms that are complete or begun; hypotheses compete only at equal progress
    needed: int  # minimum number of tokens to complete all required terms, excluding the end token
    needed_anew: int  # like `needed`, but without credit for the tokens of a term in progress
    hard: Match | None  # the longest partial match of a required term that is not yet complete
    soft: Match | None  # the longest partial match of a soft term that may still occur
    waiting: list[RequiredTerm]  # required terms that have not begun


@dataclass(eq=False, slots=True)
class Stage:
    """A state of the automaton, the tokens and terms that it permits and requires next, and its known successors."""

    state: State
    prospects: Prospects
    next: dict[int, "Stage"] = field(default_factory=dict)  # keys: tokens


@dataclass
class ConstraintAutomaton:
    """An automaton that tracks the terms in the targets of one sentence, which all begin with `prefix`."""

    terms: Sequence[RequiredTerm]
    borders: Borders
    prefix: Tokens = ()
    whole_prefix: bool = False  # whether the last word of the prefix is complete
    discouraged: Sequence[Mapping[int, float]] = ()  # for each step, the penalties of discouraged tokens, in nats
    _stages: dict[State, Stage] = field(default_factory=dict)

    def start(self) -> Stage:
        """Return the `Stage` before the first token of a target."""
        return self._stage_of(State(tuple(term.times for term in self.terms)))

    def after(self, stage: Stage, token: int) -> Stage:
        """Return the Stage after this token. A term counts only after the next token has confirmed its end."""
        if token not in stage.next:
            stage.next[token] = self._stage_of(self._next_state(stage.state, token))
        return stage.next[token]

    def _stage_of(self, state: State) -> Stage:
        if state not in self._stages:
            self._stages[state] = Stage(state, self._find_prospects(state))
        return self._stages[state]

    def _next_state(self, state: State, token: int) -> State:
        kind: After = "opening" if self.borders.is_opening[token] else "anything"
        remaining = self._remaining_after_word(state) if self.borders.is_end[token] else state.remaining
        continuations = [m for m in state.matches if not m.is_whole and m.form[m.length] == token]
        longer = [match._replace(length=match.length + 1) for match in continuations]
        started = [Match(term, form, 1) for term, form in self._beginnings[state.after] if form[0] == token]
        return self._count_verbatim(State(remaining, tuple(longer + started), kind))

    def busy(self, state: State) -> Set[int] | None:
        """Return the tokens that can begin a term; None (any token) if a term has begun."""
        return None if state.matches else self._first_tokens[state.after]

    def _count_verbatim(self, state: State) -> State:
        """Count a verbatim term that has just been completed. Shorter terms at its end, such as "kg", do not count."""
        verbatim = [m for m in state.matches if m.is_whole and self.terms[m.term].verbatim and state.remaining[m.term]]
        if not verbatim:
            return state
        done, length = {match.term for match in verbatim}, max(map(_length, verbatim))
        remaining = tuple(n - (number in done) for number, n in enumerate(state.remaining))
        others = (m for m in state.matches if m.term not in done and not (m.is_whole and m.length < length))
        return State(remaining, tuple(others), state.after, closed=True)

    @property
    def most_bias(self) -> float:
        """The maximum total bonus of all soft terms, in nats."""
        soft = [term for term in self.terms if not term.is_hard]
        return fsum(term.bias * term.times * max(map(len, term.forms + term.first)) for term in soft)

    @cached_property
    def excess(self) -> int:
        """The maximum number of tokens by which a form of a required term is longer than the shortest form."""
        hard = [term for term in self.terms if term.is_hard]
        return max((max(map(len, term.forms + term.bare + term.first)) - term.shortest for term in hard), default=0)

    def _find_prospects(self, state: State) -> Prospects:
        """Return the tokens and terms that a state permits, forbids and requires next."""
        settled, beginnings = self._remaining_after_word(state), self._beginnings[state.after]
        whole = [match.term for match in state.matches if match.is_whole]
        alive = [match for match in state.matches if state.remaining[match.term] > 0]
        hard = [match for match in alive if self.terms[match.term].is_hard]
        soft = [match for match in alive if not self.terms[match.term].is_hard]
        missing = [(n, term) for n, term in zip(state.remaining, self.terms, strict=True) if term.is_hard]
        over = any(self.terms[term].is_hard and not state.remaining[term] for term in whole)
        continuations = [match.form[match.length] for match in alive if not match.is_whole]
        in_a_word = continuations and len(continuations) == len(state.matches)
        begin = [] if in_a_word else [form[0] for term, form in beginnings if settled[term] > 0]
        saved = [self.terms[m.term].shortest - (len(m.form) - m.length) for m in hard]
        wanted = tuple(dict.fromkeys(continuations + begin))
        needed_anew = sum(n * term.shortest for n, term in missing)
        over_forms = [form for term, form in beginnings if not state.remaining[term] and self.terms[term].is_hard]
        return Prospects(
            wanted=wanted,
            barred=[form[0] for form in over_forms if len(form) == 1 and form[0] not in wanted],
            may_end=not any(n and term.is_hard for n, term in zip(settled, self.terms, strict=True)),
            may_end_word=not over or any(state.remaining[term] > 0 for term in whole),
            progress=sum(term.times - n for n, term in missing) + bool(hard),
            needed=needed_anew - max(saved, default=0),
            needed_anew=needed_anew,
            hard=max(hard, key=_length, default=None),
            soft=max(soft, key=_length, default=None),
            waiting=[term for n, term in missing if n and all(self.terms[m.term] is not term for m in hard)],
        )

    def _remaining_after_word(self, state: State) -> tuple[int, ...]:
        """Return `state.remaining` updated as if the last word were complete; this may complete a term."""
        whole = [match for match in state.matches if match.is_whole and state.remaining[match.term] > 0]
        if not whole:
            return state.remaining
        term = max(whole, key=_length).term
        return tuple(n - (number == term) for number, n in enumerate(state.remaining))

    @cached_property
    def _beginnings(self) -> dict[After, list[tuple[int, Tokens]]]:
        """The terms that can begin after each kind of preceding token, as pairs (term index, form of the term)."""
        beginnings: dict[After, list[tuple[int, Tokens]]] = {"nothing": [], "opening": [], "anything": []}
        for number, term in enumerate(self.terms):
            beginnings["nothing"] += [(number, form) for form in dict.fromkeys(term.first + term.forms)]
            beginnings["opening"] += [(number, form) for form in dict.fromkeys(term.bare + term.forms)]
            beginnings["anything"] += [(number, form) for form in dict.fromkeys(term.forms)]
        return beginnings

    @cached_property
    def _first_tokens(self) -> dict[After, set[int]]:
        """The tokens that can begin a term, by kind of preceding token."""
        return {after: {form[0] for _, form in beginnings} for after, beginnings in self._beginnings.items()}


def overdue(waiting: Sequence[RequiredTerm], length: int) -> float:
    """Return the cost in nats of the terms that are overdue when the target has `length` tokens."""
    return SLOPE * sum(term.is_late(length) for term in waiting)


def _length(match: Match) -> int:
    return match.length
