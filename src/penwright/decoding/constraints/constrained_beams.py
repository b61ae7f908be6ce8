"""Beam search under constraints: hypotheses compete only if they contain the same number of required terms.

This follows Post and Vilar (2018), but has one bank of hypotheses for each number of terms, not for each number of term
tokens. The beam takes the best of each bank, then the second best of each, and so on, until it is full. So the work
depends on the beam size, not on the number of terms.
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
from penwright.decoding.sampling.logits_process import NEG_INF
from penwright.decoding.sampling.utf8 import MOST_LEFT, States, Utf8Rules

MERIT = attrgetter("merit")


class BeamState(NamedTuple):
    """The state of a beam: its terms so far, and the bonus that it loses if the term in progress is abandoned."""

    stage: Stage
    open_credit: float = 0.0  # bonus in nats for the term in progress; taken back if the term is abandoned

    @property
    def bank(self) -> int:
        """The number of required terms that are complete or in progress; only beams with equal numbers compete."""
        return self.stage.prospects.progress


class BeamTransition(NamedTuple):
    """The effect of a token on a beam."""

    beam_state: BeamState
    credit: float  # bonus in nats, in addition to the log-probability of the token


class Continuation(NamedTuple):
    """A beam extended by a token."""

    log_prob: float
    merit: float  # the value by which beams are ranked: log-probability plus bonuses
    parent: int
    token: int
    transition: BeamTransition


@dataclass
class ConstrainedBeams:
    """The beams of one constrained sentence.

    Beams are ranked by merit: log-probability plus bonuses. Only the first token of a required term lowers the merit,
    since every hypothesis must contain the term. Otherwise, a beam that has just begun an unlikely term would always
    outrank a beam that has nearly completed it.
    """

    guide: ConstraintAutomaton
    limit: int
    beam_states: list[BeamState]

    @classmethod
    def start(cls, guide: ConstraintAutomaton, limit: int, beam_size: int) -> "ConstrainedBeams":
        """Create the beams for the first step."""
        return cls(guide, limit, [BeamState(guide.start())] * beam_size)

    def must_follow(self, length: int) -> list[bool]:
        """Return, for each beam, whether its next token is forced, and therefore exempt from the UTF-8 rules."""
        if length < len(self.guide.prefix):
            return [True] * len(self.beam_states)
        return [self._is_forced(beam_state.stage.prospects, length) for beam_state in self.beam_states]

    def banned(
        self, length: int, end_id: int, utf8_rules: Utf8Rules, states: States
    ) -> Iterator[tuple[int, Sequence[int] | Bool[Tensor, " vocab_size"]]]:
        """Yield each restricted beam with its forbidden next tokens: a few ids, or a mask over the vocabulary.

        `states` holds the UTF-8 state of each beam. No character may begin that the missing terms leave no room for.
        """
        prefix, ends = self.guide.prefix, self.guide.borders.ends
        for beam, (stage, _) in enumerate(self.beam_states):
            prospects = stage.prospects
            if length < len(prefix):
                others = torch.ones_like(ends)
                others[prefix[length]] = False
                yield beam, others
                continue
            if not prospects.may_end:
                yield beam, (end_id,)
            if self._is_forced(prospects, length):
                continue
            room = self.limit - length - prospects.needed - 2  # tokens for the rest of a character that begins now
            if prospects.needed and room < MOST_LEFT and not states[beam]:
                (situation,) = utf8_rules.situations(states[beam : beam + 1], np.array([room]))
                unfinished = np.flatnonzero(~utf8_rules.may_come[situation]).tolist()
                yield beam, [token for token in unfinished if token not in prospects.wanted]
            if prospects.barred:
                yield beam, prospects.barred
            if not prospects.may_end_word and length > len(prefix):  # the user may repeat a term in the prefix
                yield beam, ends
            if stage.state.closed or (self.guide.whole_prefix and length == len(prefix)):
                yield beam, self.guide.borders.continues
            elif prospects.needed < prospects.needed_anew and not self._fits(prospects.needed_anew, length + 1):
                broken = self.guide.borders.continues.clone()  # tokens that would make the term part of a longer word
                broken[list(prospects.wanted)] = False
                yield beam, broken

    def candidates(self, best: Sequence[Sequence[int]], length: int) -> list[Sequence[int]]:
        """Return the candidate next tokens of each beam: likely tokens, and tokens that begin or continue terms."""
        return [self._candidates(beam, likely, length) for beam, likely in enumerate(best)]

    def choose(
        self,
        tokens: Sequence[Sequence[int]],
        gains: Iterator[float],
        before: Sequence[Sequence[float]],
        length: int,
    ) -> list[Continuation]:
        """Choose the best continuations, given the candidate next tokens of each beam.

        `gains` yields the log-probabilities of all candidates, in order. `before` holds the current log-probability and
        ranking score of each beam.
        """
        chosen = []
        discouraged = self.guide.discouraged[length] if length < len(self.guide.discouraged) else {}
        is_opening, idle = self.guide.borders.is_opening, defaultdict[int, dict[bool, BeamTransition]](dict)
        for beam, (likely, (log_prob, merit), beam_state) in enumerate(
            zip(tokens, before, self.beam_states, strict=True)
        ):
            busy = self.guide.busy(beam_state.stage.state)
            transitions = idle[self.beam_states.index(beam_state)]  # shared by all beams in the same state
            for token, gain in zip(likely, list(islice(gains, len(likely))), strict=True):
                if not (gain > NEG_INF and log_prob > NEG_INF):  # also skips NaN, since comparisons with NaN are false
                    continue
                if busy is None or token in busy:
                    transition = self._transition(beam_state, token, gain, length)
                elif is_opening[token] in transitions:
                    transition = transitions[is_opening[token]]
                else:
                    transition = transitions[is_opening[token]] = self._transition(beam_state, token, gain, length)
                gained = merit + gain + transition.credit - discouraged.get(token, 0.0)
                chosen.append(Continuation(log_prob + gain, gained, beam, token, transition))
        return self._select_by_bank(chosen, len(before))

    def _candidates(self, beam: int, likely: Sequence[int], length: int) -> Sequence[int]:
        stage = self.beam_states[beam].stage
        prospects = stage.prospects
        if length < len(self.guide.prefix):
            return [self.guide.prefix[length]]
        if self._is_forced(prospects, length):
            nearer = [t for t in prospects.wanted if self._needed_after(stage, t) < prospects.needed]
            return nearer or prospects.wanted
        tokens = [*likely, *(token for token in prospects.wanted if token not in likely)]
        if not prospects.needed_anew:
            return tokens
        if self._fits(prospects.needed_anew + self.guide.excess, length + 1):
            return tokens  # whichever token comes next, the missing terms still fit within the limit
        in_time = [t for t in tokens if self._fits(self._needed_after(stage, t), length + 1)]
        return in_time or tokens  # if no candidate leaves enough room, the term is abandoned and begins again

    def _fits(self, needed: int, length: int) -> bool:
        """Return whether `needed` more tokens and the end token fit after the first `length` tokens."""
        return length + needed + 1 <= self.limit

    def _is_forced(self, prospects: Prospects, length: int) -> bool:
        """Return whether the missing terms need all of the remaining tokens."""
        return prospects.needed > 0 and length + prospects.needed + 1 >= self.limit

    def _needed_after(self, stage: Stage, token: int) -> int:
        return self.guide.after(stage, token).prospects.needed

    def _transition(self, beam_state: BeamState, token: int, gain: float, length: int) -> BeamTransition:
        guide, (stage, credit) = self.guide, beam_state
        new = guide.after(stage, token)
        prospects = new.prospects
        hard, soft = prospects.hard, prospects.soft
        returned = 0.0 if new.state.remaining != stage.state.remaining else credit
        credit = 0.0
        if soft is not None:
            credit = (returned if soft.length > 1 else 0.0) + guide.terms[soft.term].bias
        if hard is not None and hard.length > 1:
            credit = returned - gain
        if hard is not None and hard.is_whole:
            credit -= guide.terms[hard.term].too_early(length + 1 - hard.length)
        return BeamTransition(BeamState(new, credit), credit - returned - overdue(prospects.waiting, length))

    def _select_by_bank(self, continuations: list[Continuation], beam_size: int) -> list[Continuation]:
        continuations.sort(key=MERIT, reverse=True)
        banks: dict[int, list[Continuation]] = {}
        for continuation in continuations:
            banks.setdefault(continuation.transition.beam_state.bank, []).append(continuation)
        chosen = list[Continuation]()
        for bests in zip_longest(*banks.values()):
            chosen += sorted((each for each in bests if each is not None), key=MERIT, reverse=True)
            if len(chosen) >= beam_size:
                break
        del chosen[beam_size:]
        self.beam_states = [continuation.transition.beam_state for continuation in chosen]
        self.beam_states += [BeamState(self.guide.start())] * (beam_size - len(chosen))
        return chosen


def columns(chosen: Sequence[Sequence[Continuation]], beam_size: int) -> Iterator[Num[np.ndarray, "sentences beams"]]:
    """Yield the log-probabilities, ranking scores, parents and tokens as arrays; missing beams score -inf."""
    nothing = (NEG_INF, NEG_INF, 0, 0)
    rows = [[*(each[:4] for each in beams), *[nothing] * (beam_size - len(beams))] for beams in chosen]
    for column, kind in zip(np.moveaxis(np.array(rows), 2, 0), (float, float, int, int), strict=True):
        yield column.astype(kind)
