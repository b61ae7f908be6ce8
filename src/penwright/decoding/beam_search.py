"""Beam search for many sources at once; sentences that are finished leave the batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from penwright.decoding.batches import Branching, diverged
from penwright.decoding.constraints.constrained_beams import ConstrainedBeams, columns
from penwright.decoding.constraints.term_automaton import ConstraintAutomaton
from penwright.decoding.hypotheses import BeamSettings, Extension, Hypothesis, Wanted, Watch, hypothesis_of
from penwright.decoding.sampling.beam_rules import BeamRule, BeamStep
from penwright.decoding.sampling.filters import NEVER
from penwright.decoding.sampling.topk import MOST, Choose, Choosing, MaskedTopK
from penwright.decoding.sampling.utf8 import FREE, Situations, States, Utf8Rules

Reals = Float[np.ndarray, "sentences n"]
Whole = Int[np.ndarray, "sentences n"]
LEAST_OUTLOOK = 4  # tokens that every beam may become longer while it is waited for, short ones too


class _Step(NamedTuple):
    """How the beams went on, of the sentences that were searched then."""

    numbers: Int[np.ndarray, " sentences"]
    parents: Whole
    tokens: Whole
    sums: Reals  # of the log-probabilities of all tokens so far


class _Ends(NamedTuple):
    """Where hypotheses of each sentence end, best first; those with log-probability -inf are none."""

    lengths: Whole
    places: Whole  # among the beams of that step
    log_probs: Reals
    scores: Reals  # what hypotheses are ranked by

    def best_with(self, others: "_Ends") -> "_Ends":
        """The best of both, as many as there are here."""
        both = self.beside(others)
        best = _best(both.scores, self.scores.shape[1])
        return _Ends(*(_gather(values, best) for values in both))

    def beside(self, others: "_Ends") -> "_Ends":
        """First these, then the others."""
        return _Ends(*(np.concatenate(pair, axis=1) for pair in zip(self, others, strict=True)))

    def select(self, sentences: Bool[np.ndarray, " sentences"]) -> "_Ends":
        return _Ends(*(values[sentences] for values in self))


def _best(values: Reals, n: int) -> Int[np.ndarray, "sentences best"]:
    """The places of the n largest values of each sentence, in order."""
    return np.argsort(-values, axis=1, kind="stable")[:, :n]


def _gather(values: np.ndarray, places: Int[np.ndarray, "sentences m"]) -> np.ndarray:
    """What stands at these places of each sentence."""
    return values[np.arange(len(values))[:, None], places]


def _listed(best: MaskedTopK, n: int) -> list[list[int]]:
    """The first n tokens of each row, without those that may not come."""
    pairs = zip(best.values.tolist(), best.places.tolist(), strict=True)
    return [[token for value, token in zip(*row, strict=True) if value > NEVER][:n] for row in pairs]


class _Continuations(NamedTuple):
    """How the beams of each sentence go on, best first."""

    log_probs: Reals
    merits: Reals
    parents: Whole
    tokens: Whole

    @classmethod
    def of(cls, step: BeamStep) -> "_Continuations":
        """Those of the only sentence."""
        log_probs = step.log_probs[None]
        return cls(log_probs, log_probs.copy(), step.parents[None], step.tokens[None])


@torch.inference_mode()
def beam_search(
    model: Branching,
    limits: Sequence[int],
    settings: BeamSettings,
    *,
    end_id: int,
    guides: Sequence[ConstraintAutomaton | None] = (),
    choosing: Choosing | None = None,
    watch: Watch | None = None,
    wanted: Wanted | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each row of the model, best first; `limits` are their longest lengths, end included.

    Each step keeps the beam_size best continuations of a sentence; those with the end token are finished, the others go
    on. A sentence is finished when nothing that goes on can still come among the n best, as far as settings.outlook
    goes. A hypothesis that was cut at its limit ranks below all that ended. With beam_size 1 this is greedy search.

    A row with a guide is led through its terms, and its hypotheses are ranked by merit; other rows do not notice.
    `watch` sees every step of every row, and ends the search by raising. A sentence that is not `wanted` any more ends
    at the next step, with what there is of it.
    """
    results: list[list[Hypothesis]] = [[] for _ in limits]
    logits = model.first().repeat_interleave(settings.beam_size, 0)
    device = logits.device
    choosing = choosing or Choosing(Utf8Rules.free(logits.shape[1], settings.banned))
    search = _Search.start(limits, settings, guides, *choosing)
    model.branch(settings.beam_size)
    coming: list[_Continuations] = []  # which the model has taken already
    while True:
        parents = search.extend(coming.pop(0) if coming else search.best_continuations(logits, end_id), end_id)
        if watch is not None:
            search.tell(watch, parents)
        done = search.done() if wanted is None else search.done() | search.given_up(wanted)
        if done.any():
            for sentence, hypotheses in search.finish(done):
                if not hypotheses:
                    raise diverged()
                results[sentence] = hypotheses
            if done.all():
                return results
            search = search.select(~done)
            model.select(torch.from_numpy(parents[~done].ravel()).to(device))
        elif coming:
            continue
        elif settings.beam_size > 1:
            model.reorder(torch.from_numpy(parents.ravel()).to(device))
        tokens = torch.from_numpy(search.history[-1].tokens[~done].ravel()).to(device)
        rule = search.rule(end_id)
        coming = [_Continuations.of(step) for step in model.beams(tokens, rule)] if rule else []
        logits = logits if coming else model.step(tokens)


@dataclass
class _Search:
    """The sentences that are still searched: their beams, and the best finished hypotheses of each.

    In NumPy, which begins sooner than torch to do what is small and changes at every step.
    """

    settings: BeamSettings
    numbers: Int[np.ndarray, " sentences"]
    limits: Int[np.ndarray, " sentences"]
    log_probs: Reals  # of the beams, -inf where there is none
    merits: Reals  # log-probabilities, with what a guide adds
    states: States  # of the beams, as they are spelled
    finished: _Ends
    spelling: Utf8Rules
    choose: Choose
    history: list[_Step] = field(default_factory=list)
    guided: dict[int, ConstrainedBeams] = field(default_factory=dict)  # by the places of their sentences in the arrays

    @classmethod
    def start(
        cls,
        limits: Sequence[int],
        settings: BeamSettings,
        guides: Sequence[ConstraintAutomaton | None],
        spelling: Utf8Rules,
        choose: Choose,
    ) -> "_Search":
        n_sentences, beam_size = len(limits), settings.beam_size
        log_probs = np.full((n_sentences, beam_size), NEVER)
        log_probs[:, 0] = 0.0  # all begin alike, so that only the first beam may go on
        none, never = np.zeros((n_sentences, settings.n_best), np.int64), np.full((n_sentences, settings.n_best), NEVER)
        guided = {
            place: ConstrainedBeams.start(guide, limits[place], beam_size)
            for place, guide in enumerate(guides)
            if guide is not None
        }
        numbers, states = np.arange(n_sentences), np.zeros((n_sentences, beam_size), np.uint8)
        found = _Ends(none, none, never, never)
        return cls(
            settings, numbers, np.array(limits), log_probs, log_probs, states, found, spelling, choose, guided=guided
        )

    @property
    def length(self) -> int:
        """Of the beams."""
        return len(self.history)

    def extend(self, found: _Continuations, end_id: int) -> Whole:
        """Give each beam its next token; returns the rows that the new beams go on from."""
        self.log_probs, self.merits, parents, tokens = found
        self.history.append(_Step(self.numbers, parents, tokens, self.log_probs))
        self.states = self.spelling.after[_gather(self.states, parents), tokens]
        ended = tokens == end_id
        if ended.any():
            self.finished = self.finished.best_with(self._ends(ended))
            self.log_probs, self.merits = (np.where(ended, NEVER, x) for x in (self.log_probs, self.merits))
        return parents + np.arange(len(parents))[:, None] * self.settings.beam_size

    def _ends(self, which: Bool[np.ndarray, "sentences n"]) -> _Ends:
        """The hypotheses that would be finished if these beams ended now."""
        lengths = np.full_like(self.history[-1].tokens, self.length)
        log_probs, merits = (np.where(which, x, NEVER) for x in (self.log_probs, self.merits))
        places = np.broadcast_to(np.arange(self.settings.beam_size), lengths.shape)
        return _Ends(lengths, places, log_probs, merits / self.length**self.settings.length_penalty)

    def best_continuations(self, logits: Float[Tensor, "rows vocab_size"], end_id: int) -> _Continuations:
        """How the beams go on by the logits of their next tokens."""
        n_sentences, beam_size = self.log_probs.shape
        logits, n_best = logits.float(), min(beam_size, logits.shape[1])  # no sentence takes more from one beam
        situations = self._situations()
        if self.guided:
            best = self._led(logits, situations, n_best, end_id)
        else:
            best = self.choose(logits, self.spelling, situations, n_best)
        offsets = self.log_probs.ravel() - best.normalisers.cpu().numpy()
        candidates = (best.values.cpu().numpy() + offsets[:, None]).reshape(n_sentences, -1)
        places = _best(candidates, beam_size)
        log_probs = _gather(candidates, places)
        tokens = _gather(best.places.cpu().numpy().reshape(n_sentences, -1), places)
        found = _Continuations(log_probs, log_probs.copy(), places // best.values.shape[1], tokens)
        if self.guided:
            self._put_led(found, logits, best)
        return found

    def rule(self, end_id: int) -> BeamRule | None:
        """How the beams go on if the model itself takes the next steps: those of one sentence that nothing leads."""
        if self.guided or len(self.numbers) > 1 or self.settings.beam_size == 1:
            return None
        n_left = int(self.limits[0]) - self.length - 1
        return BeamRule(self.spelling, self.states[0], n_left, self.log_probs[0], end_id)

    def _put_led(self, found: _Continuations, logits: Tensor, best: MaskedTopK) -> None:
        """Continuations as their guides choose them, of the sentences that have one."""
        beam_size, likely, places = self.settings.beam_size, _listed(best, self.settings.beam_size), list(self.guided)
        asked = [
            guided.candidates(likely[place * beam_size : (place + 1) * beam_size], self.length)
            for place, guided in self.guided.items()
        ]
        rows = [place * beam_size + n for place, beams in zip(places, asked, strict=True) for n in range(len(beams))]
        counts = [len(tokens) for beams in asked for tokens in beams]
        which = torch.from_numpy(np.repeat(rows, counts)).to(logits.device)
        asked_tokens = [token for beams in asked for each in beams for token in each]
        tokens = torch.tensor(asked_tokens, device=logits.device, dtype=torch.long)  # none where no score is a number
        gains = iter((logits[which, tokens] - best.normalisers[which]).tolist())  # of all at once
        before = np.stack([self.log_probs[places], self.merits[places]], axis=2).tolist()
        led = [
            guided.choose(beams, gains, each, self.length)
            for guided, beams, each in zip(self.guided.values(), asked, before, strict=True)
        ]
        for values, column in zip(found, columns(led, beam_size), strict=True):
            values[places] = column

    def _situations(self) -> Int64[np.ndarray, " rows"]:
        """Of each beam, as it is spelled; one that must go on with what its guide says may break a character off."""
        situations = self.spelling.situations(self.states, (self.limits - self.length - 1)[:, None])
        for place, guided in self.guided.items():
            situations[place, guided.must_follow(self.length)] = FREE
        return situations.ravel()

    def _led(self, logits: Tensor, situations: Situations, n_best: int, end_id: int) -> MaskedTopK:
        """The likeliest tokens of each row that its guide, where it has one, lets come."""
        best = self.choose(logits, self.spelling, situations, max(n_best, min(MOST, logits.shape[1])))
        self.spelling.forbid(logits, situations)  # what a guide wants may not be among the best
        rows, tokens = list[int](), list[int]()
        for place, guided in self.guided.items():
            for beam, banned in guided.banned(self.length, end_id):
                row = place * self.settings.beam_size + beam
                if isinstance(banned, Tensor):
                    logits[row].masked_fill_(banned.to(logits.device), NEVER)
                else:
                    rows += [row] * len(banned)
                    tokens += banned
        if rows:
            logits[rows, tokens] = NEVER
        values, found = logits.gather(1, best.places), best.places
        short = ((values > NEVER).sum(1) < n_best).nonzero()[:, 0]
        if len(short):  # too many of the best are banned
            others = self.choose(logits[short], self.spelling, situations[short.cpu().numpy()], values.shape[1])
            values[short], found[short] = others.values, others.places
        return MaskedTopK(values, found, best.normalisers)  # the model's own: before any ban

    def tell(self, watch: Watch, parents: Whole) -> None:
        """Report the step that extend() took; `parents` are the rows that it gave."""
        last = self.history[-1]
        columns = (last.numbers, parents % self.settings.beam_size, last.tokens, last.sums)
        for number, *each in zip(*(column.tolist() for column in columns), strict=True):
            watch(number, Extension(self.length, *each))

    def done(self) -> Bool[np.ndarray, " sentences"]:
        """Where the limit is reached or no beam can still get a score among the n best, soon.

        Merits only fall, but for what soft terms add, so a beam's best possible score is the one it has now at the
        length that helps most: the next one, or the longest that it is waited for. Without that bound the hopes of
        beams that ramble on, up to several times the length of what is found, take a third of the time.
        """
        penalty = self.settings.length_penalty
        best = self.merits.max(axis=1)
        for place, guided in self.guided.items():
            best[place] += guided.guide.most_bias
        longest = np.minimum(self.limits, self.length + 1 + max(LEAST_OUTLOOK, self.settings.outlook * self.length))
        reach = np.maximum(best / (self.length + 1) ** penalty, best / longest**penalty)
        return (self.limits <= self.length) | (self.finished.scores[:, -1] >= reach)

    def given_up(self, wanted: Wanted) -> Bool[np.ndarray, " sentences"]:
        """Where nobody waits for what is found."""
        return np.array([not wanted(number) for number in self.numbers.tolist()])

    def finish(self, done: Bool[np.ndarray, " sentences"]) -> list[tuple[int, list[Hypothesis]]]:
        """The numbers and results of the sentences that are done."""
        settings, numbers = self.settings, self.numbers[done]
        ends = self.finished.beside(self._ends(np.isfinite(self.log_probs))).select(done)
        columns = (*self._written(numbers, ends), ends.lengths, ends.log_probs)
        found = []
        for number, *each in zip(numbers.tolist(), *(column.tolist() for column in columns), strict=True):
            hypotheses = (
                hypothesis_of(tokens, sums, length, log_prob, place < settings.n_best, settings.length_penalty)
                for place, (tokens, sums, length, log_prob) in enumerate(zip(*each, strict=True))
                if log_prob > NEVER
            )
            found.append((number, list(islice(hypotheses, settings.n_best))))
        return found

    def _written(self, numbers: Int[np.ndarray, " sentences"], ends: _Ends) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of the hypotheses of these sentences, and the sums of log-probabilities with each token."""
        tokens = np.zeros((*ends.places.shape, self.length), np.int64)
        sums, places = np.zeros(tokens.shape), ends.places
        for place, step in reversed(list(enumerate(self.history))):
            rows = np.searchsorted(step.numbers, numbers)[:, None]
            tokens[:, :, place], sums[:, :, place] = step.tokens[rows, places], step.sums[rows, places]
            places = np.where(place < ends.lengths, step.parents[rows, places], places)
        return tokens, sums

    def select(self, kept: Bool[np.ndarray, " sentences"]) -> "_Search":
        return replace(
            self,
            numbers=self.numbers[kept],
            limits=self.limits[kept],
            log_probs=self.log_probs[kept],
            merits=self.merits[kept],
            states=self.states[kept],
            finished=self.finished.select(kept),
            guided={new: self.guided[old] for new, old in enumerate(kept.nonzero()[0].tolist()) if old in self.guided},
        )
