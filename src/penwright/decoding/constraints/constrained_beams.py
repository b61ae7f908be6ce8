"""How the beams of a guided sentence are chosen: hypotheses compete with those that have as many of their terms.

After Post and Vilar (2018), with terms in place of their tokens as the banks: the best of each bank, then the second
best of each, until the beam is full. So the work is in the size of the beam, however many terms there are.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Num
from torch import Tensor

from penwright.decoding.constraints.term_automaton import ConstraintAutomaton, Prospects, Stage, overdue
from penwright.decoding.sampling.sampler import NEVER

MERIT = attrgetter("merit")


class Standing(NamedTuple):
    """Where a beam stands."""

    stage: Stage
    lent: float = 0.0  # nats that its merit owes to a term it has only begun

    @property
    def bank(self) -> int:
        """Beams compete with those of the same one."""
        return self.stage.prospects.progress


class BeamTransition(NamedTuple):
    """What a token makes of a beam."""

    standing: Standing
    credit: float  # nats that its merit gets beside the log-probability of the token


class Continuation(NamedTuple):
    """A beam and the token after it."""

    log_prob: float
    merit: float  # what it is ranked by: the log-probability, with what the guide adds
    parent: int
    token: int
    turn: BeamTransition


@dataclass
class ConstrainedBeams:
    """The beams of one sentence with a guide.

    The tokens of a hard term cost only its first one in merit, since all hypotheses must write it somewhere: otherwise
    one that has just begun an unlikely term would always look better than one that is nearly through.
    """

    guide: ConstraintAutomaton
    limit: int
    standings: list[Standing]

    @classmethod
    def start(cls, guide: ConstraintAutomaton, limit: int, beam_size: int) -> "ConstrainedBeams":
        return cls(guide, limit, [Standing(guide.start())] * beam_size)

    def must_follow(self, length: int) -> list[bool]:
        """Of each beam, whether it has to go on with what the guide says, whatever it has begun."""
        if length < len(self.guide.prefix):
            return [True] * len(self.standings)
        return [self._is_pressed(standing.stage.prospects, length) for standing in self.standings]

    def banned(self, length: int, end_id: int) -> Iterator[tuple[int, Sequence[int] | Bool[Tensor, " vocab_size"]]]:
        """Beams, and tokens that must not follow them here: a few, or those that a mask has."""
        prefix, ends = self.guide.prefix, self.guide.borders.ends
        for beam, (stage, _) in enumerate(self.standings):
            prospects = stage.prospects
            if length < len(prefix):
                others = torch.ones_like(ends)
                others[prefix[length]] = False
                yield beam, others
                continue
            if not prospects.may_end:
                yield beam, (end_id,)
            if self._is_pressed(prospects, length):
                continue
            if prospects.barred:
                yield beam, prospects.barred
            if not prospects.may_end_word:
                yield beam, ends
            if stage.state.closed or (self.guide.whole_prefix and length == len(prefix)):
                yield beam, self.guide.borders.goes_on
            elif prospects.needed < prospects.needed_anew and not self._is_time_for(prospects.needed_anew, length + 1):
                broken = self.guide.borders.goes_on.clone()  # a term that has just come would be part of another word
                broken[list(prospects.wanted)] = False
                yield beam, broken

    def candidates(self, best: Sequence[Sequence[int]], length: int) -> list[Sequence[int]]:
        """Tokens that may follow each beam, given the best ones."""
        return [self._candidates(beam, likely, length) for beam, likely in enumerate(best)]

    def choose(
        self,
        tokens: Sequence[Sequence[int]],
        gains: Iterator[float],
        before: Sequence[Sequence[float]],
        length: int,
    ) -> list[Continuation]:
        """The beams to go on with, of these tokens after each beam.

        `gains` are the log-probabilities of all of them in turn; `before` are the log-probability and the merit that
        each beam has now.
        """
        found = []
        discouraged = self.guide.discouraged[length] if length < len(self.guide.discouraged) else {}
        is_opening, idle = self.guide.borders.is_opening, defaultdict[int, dict[bool, BeamTransition]](dict)
        for beam, (likely, (log_prob, merit), standing) in enumerate(zip(tokens, before, self.standings, strict=True)):
            busy = self.guide.busy(standing.stage.state)
            turns = idle[self.standings.index(standing)]  # what most tokens make of all beams that stand there
            for token, gain in zip(likely, list(islice(gains, len(likely))), strict=True):
                if not (gain > NEVER and log_prob > NEVER):  # NaN is none of both
                    continue
                if busy is None or token in busy:
                    turn = self._turn(standing, token, gain, length)
                elif is_opening[token] in turns:
                    turn = turns[is_opening[token]]
                else:
                    turn = turns[is_opening[token]] = self._turn(standing, token, gain, length)
                gained = merit + gain + turn.credit - discouraged.get(token, 0.0)
                found.append(Continuation(log_prob + gain, gained, beam, token, turn))
        return self._by_banks(found, len(before))

    def _candidates(self, beam: int, likely: Sequence[int], length: int) -> Sequence[int]:
        stage = self.standings[beam].stage
        prospects = stage.prospects
        if length < len(self.guide.prefix):
            return [self.guide.prefix[length]]
        if self._is_pressed(prospects, length):
            nearer = [t for t in prospects.wanted if self._needed_after(stage, t) < prospects.needed]
            return nearer or prospects.wanted
        tokens = [*likely, *(token for token in prospects.wanted if token not in likely)]
        if not prospects.needed_anew:
            return tokens
        if self._is_time_for(prospects.needed_anew, length + 1):
            return tokens  # whatever comes
        in_time = [t for t in tokens if self._is_time_for(self._needed_after(stage, t), length + 1)]
        return in_time or tokens  # a term that breaks off must begin anew

    def _is_time_for(self, needed: int, length: int) -> bool:
        """Whether so many more tokens and the end fit after the first `length`."""
        return length + needed + 1 <= self.limit

    def _is_pressed(self, prospects: Prospects, length: int) -> bool:
        """Whether what is needed takes all the tokens that are left."""
        return prospects.needed > 0 and length + prospects.needed + 1 >= self.limit

    def _needed_after(self, stage: Stage, token: int) -> int:
        return self.guide.after(stage, token).prospects.needed

    def _turn(self, standing: Standing, token: int, gain: float, length: int) -> BeamTransition:
        guide, (stage, lent) = self.guide, standing
        new = guide.after(stage, token)
        prospects = new.prospects
        hard, soft = prospects.hard, prospects.soft
        given_back = 0.0 if new.state.left != stage.state.left else lent
        lent = 0.0
        if soft is not None:
            lent = (given_back if soft.length > 1 else 0.0) + guide.terms[soft.term].bias
        if hard is not None and hard.length > 1:
            lent = given_back - gain
        if hard is not None and hard.is_whole:
            lent -= guide.terms[hard.term].too_early(length + 1 - hard.length)
        return BeamTransition(Standing(new, lent), lent - given_back - overdue(prospects.waiting, length))

    def _by_banks(self, found: list[Continuation], beam_size: int) -> list[Continuation]:
        found.sort(key=MERIT, reverse=True)
        banks: dict[int, list[Continuation]] = {}
        for continuation in found:
            banks.setdefault(continuation.turn.standing.bank, []).append(continuation)
        chosen = list[Continuation]()
        for bests in zip_longest(*banks.values()):
            chosen += sorted((each for each in bests if each is not None), key=MERIT, reverse=True)
            if len(chosen) >= beam_size:
                break
        del chosen[beam_size:]
        self.standings = [continuation.turn.standing for continuation in chosen]
        self.standings += [Standing(self.guide.start())] * (beam_size - len(chosen))
        return chosen


def columns(chosen: Sequence[Sequence[Continuation]], beam_size: int) -> Iterator[Num[np.ndarray, "sentences beams"]]:
    """Log-probabilities, merits, parents and tokens of several sentences; where beams are missing, impossible ones."""
    nothing = (NEVER, NEVER, 0, 0)
    rows = [[*(each[:4] for each in beams), *[nothing] * (beam_size - len(beams))] for beams in chosen]
    for column, kind in zip(np.moveaxis(np.array(rows), 2, 0), (float, float, int, int), strict=True):
        yield column.astype(kind)
