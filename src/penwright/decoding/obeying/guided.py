"""How the beams of a guided sentence are chosen: hypotheses compete with those that have as many of their terms.

After Post and Vilar (2018), with terms in place of their tokens as the banks: the best of each bank, then the second
best of each, until the beam is full. So the work is in the size of the beam, however many terms there are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from penwright.decoding.choosing.sampling import NEVER
from penwright.decoding.obeying.guides import Guide, Prospects, State, overdue


class Standing(NamedTuple):
    """Where a beam stands."""

    state: State
    lent: float = 0.0  # nats that its merit owes to a term it has only begun


class Turn(NamedTuple):
    """What a token makes of a beam."""

    standing: Standing
    bank: int  # beams compete with those of the same one
    credit: float  # nats that its merit gets beside the log-probability of the token


class Continuation(NamedTuple):
    """A beam and the token after it."""

    log_prob: float
    merit: float  # what it is ranked by: the log-probability, with what the guide adds
    parent: int
    token: int
    turn: Turn


@dataclass
class Guided:
    """The beams of one sentence with a guide.

    The tokens of a hard term cost only its first one in merit, since all hypotheses must write it somewhere: otherwise
    one that has just begun an unlikely term would always look better than one that is nearly through.
    """

    guide: Guide
    limit: int
    standings: list[Standing]

    @classmethod
    def start(cls, guide: Guide, limit: int, beam_size: int) -> "Guided":
        return cls(guide, limit, [Standing(guide.start())] * beam_size)

    def must_follow(self, length: int) -> list[bool]:
        """Of each beam, whether it has to go on with what the guide says, whatever it has begun."""
        if length < len(self.guide.prefix):
            return [True] * len(self.standings)
        return [self._is_pressed(self.guide.prospects(state), length) for state, _ in self.standings]

    def banned(self, length: int, end_id: int) -> Iterator[tuple[int, Sequence[int] | Bool[Tensor, " vocab_size"]]]:
        """Beams, and tokens that must not follow them here: a few, or those that a mask has."""
        prefix, ends = self.guide.prefix, self.guide.borders.ends
        for beam, (state, _) in enumerate(self.standings):
            if length < len(prefix):
                others = torch.ones_like(ends)
                others[prefix[length]] = False
                yield beam, others
                continue
            prospects = self.guide.prospects(state)
            if not prospects.may_end:
                yield beam, (end_id,)
            if self._is_pressed(prospects, length):
                continue
            if prospects.barred:
                yield beam, prospects.barred
            if not prospects.may_end_word:
                yield beam, ends
            if state.closed or (self.guide.whole_prefix and length == len(prefix)):
                yield beam, self.guide.borders.goes_on
            elif prospects.needed < prospects.needed_anew and not self._is_time_for(prospects.needed_anew, length + 1):
                broken = self.guide.borders.goes_on.clone()  # a term that has just come would be part of another word
                broken[list(prospects.wanted)] = False
                yield beam, broken

    def candidates(self, best: Sequence[Sequence[int]], length: int) -> list[tuple[int, int]]:
        """Beams and tokens that may follow them, given the best ones after each."""
        return [(beam, token) for beam, likely in enumerate(best) for token in self._candidates(beam, likely, length)]

    def choose(
        self, gains: Iterable[tuple[int, int, float]], before: Sequence[tuple[float, float]], length: int
    ) -> list[Continuation]:
        """The beams to go on with, of these beams, tokens and log-probabilities.

        `before` are the log-probability and the merit that each beam has now.
        """
        found = []
        discouraged = self.guide.discouraged[length] if length < len(self.guide.discouraged) else {}
        alike = [self.standings.index(standing) for standing in self.standings]  # the first beam that stands there, too
        idle: dict[tuple[int, bool], Turn] = {}  # what most tokens make of those
        for beam, token, gain in gains:
            log_prob, merit = before[beam]
            if not (gain > NEVER and log_prob > NEVER):  # NaN is none of both
                continue
            if self.guide.is_idle(self.standings[beam].state, token):
                key = (alike[beam], self.guide.borders.is_opening[token])
                turn = idle.get(key) or idle.setdefault(key, self._turn(beam, token, gain, length))
            else:
                turn = self._turn(beam, token, gain, length)
            merit += gain + turn.credit - discouraged.get(token, 0.0)
            found.append(Continuation(log_prob + gain, merit, beam, token, turn))
        return self._by_banks(found, len(before))

    def _candidates(self, beam: int, likely: Sequence[int], length: int) -> list[int]:
        state = self.standings[beam].state
        if length < len(self.guide.prefix):
            return [self.guide.prefix[length]]
        prospects = self.guide.prospects(state)
        if self._is_pressed(prospects, length):
            nearer = [t for t in prospects.wanted if self._needed_after(state, t) < prospects.needed]
            return nearer or list(prospects.wanted)
        tokens = list(dict.fromkeys([*likely, *prospects.wanted]))
        if not prospects.needed_anew:
            return tokens
        if self._is_time_for(prospects.needed_anew, length + 1):
            return tokens  # whatever comes
        in_time = [t for t in tokens if self._is_time_for(self._needed_after(state, t), length + 1)]
        return in_time or tokens  # a term that breaks off must begin anew

    def _is_time_for(self, needed: int, length: int) -> bool:
        """Whether so many more tokens and the end fit after the first `length`."""
        return length + needed + 1 <= self.limit

    def _is_pressed(self, prospects: Prospects, length: int) -> bool:
        """Whether what is needed takes all the tokens that are left."""
        return prospects.needed > 0 and length + prospects.needed + 1 >= self.limit

    def _needed_after(self, state: State, token: int) -> int:
        return self.guide.prospects(self.guide.after(state, token)).needed

    def _turn(self, beam: int, token: int, gain: float, length: int) -> Turn:
        guide, (state, lent) = self.guide, self.standings[beam]
        new = guide.after(state, token)
        prospects = guide.prospects(new)
        hard, soft = prospects.hard, prospects.soft
        given_back = 0.0 if new.left != state.left else lent
        lent = 0.0
        if soft is not None:
            lent = (given_back if soft.length > 1 else 0.0) + guide.terms[soft.term].bias
        if hard is not None and hard.length > 1:
            lent = given_back - gain
        if hard is not None and hard.is_whole:
            lent -= guide.terms[hard.term].too_early(length + 1 - hard.length)
        return Turn(Standing(new, lent), prospects.progress, lent - given_back - overdue(prospects.waiting, length))

    def _by_banks(self, found: list[Continuation], beam_size: int) -> list[Continuation]:
        found.sort(key=attrgetter("merit"), reverse=True)
        seen: dict[int, int] = {}
        ranked = []
        for continuation in found:
            bank = continuation.turn.bank
            seen[bank] = seen.get(bank, 0) + 1
            ranked.append((seen[bank], -continuation.merit, continuation))
        ranked.sort(key=itemgetter(0, 1))
        chosen = [continuation for *_, continuation in ranked[:beam_size]]
        self.standings = [continuation.turn.standing for continuation in chosen]
        self.standings += [Standing(self.guide.start())] * (beam_size - len(chosen))
        return chosen


def put(chosen: Sequence[Continuation], beam_size: int) -> list[np.ndarray]:
    """Log-probabilities, merits, parents and tokens, a row of each; where there are fewer, impossible ones."""
    nothing = Continuation(NEVER, NEVER, 0, 0, Turn(Standing(State(())), 0, 0.0))
    columns = list(zip(*[c[:4] for c in [*chosen, *[nothing] * (beam_size - len(chosen))]], strict=True))
    return [np.array(column, dtype=np.float64 if n < 2 else np.int64) for n, column in enumerate(columns)]
