"""Beam search for many sources at once; sentences that are finished leave the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from penwright.decoding.choosing.largest import largest
from penwright.decoding.choosing.sampling import NEVER
from penwright.decoding.decodable import Branching, diverged
from penwright.decoding.obeying.guided import Guided, put
from penwright.decoding.obeying.guides import Guide


@dataclass(frozen=True)
class BeamSettings:
    """Hypotheses are ranked by log-probability / length ** length_penalty; the end token counts as one."""

    beam_size: int = 5
    n_best: int = 1  # how many hypotheses are wanted of each sentence, at most beam_size
    length_penalty: float = 1.0
    banned: tuple[int, ...] = ()  # tokens that are never written
    coverage_penalty: float = 0.0  # of whole hypotheses, ranked anew: score + coverage_penalty * coverage (looking.py)


@dataclass(frozen=True)
class Hypothesis:
    """One translation that the search has found."""

    tokens: tuple[int, ...]  # without the end token
    log_prob: float  # in nats, of all tokens and the end token
    score: float
    finish: Literal["end", "length"]
    log_probs: tuple[float, ...] = ()  # of each token, and of the end token


class Extension(NamedTuple):
    """How the beams of a sentence went on: for each its token, and the beam before that it goes on from."""

    length: int  # of the beams now
    parents: Sequence[int]
    tokens: Sequence[int]
    log_probs: Sequence[float]  # in nats, of all tokens so far; -inf where there is no such beam


Watch = Callable[[int, Extension], None]  # is told the number of a sentence and its extension
Wanted = Callable[[int], bool]  # whether the sentence of this number is still waited for


Reals = Float[np.ndarray, "sentences n"]
Whole = Int[np.ndarray, "sentences n"]


class _Hypotheses(NamedTuple):
    """Some hypotheses of each sentence, best first; those with log-probability -inf are none."""

    tokens: Int[np.ndarray, "sentences n longest"]
    sums: Float[np.ndarray, "sentences n longest"]  # of log-probabilities, up to and with each token
    lengths: Whole  # of the tokens that count
    log_probs: Reals
    merits: Reals  # log-probabilities, with what a guide adds
    scores: Reals  # of the merits: what hypotheses are ranked by

    def best_with(self, others: "_Hypotheses") -> "_Hypotheses":
        """The best of both, as many as there are here."""
        both = [np.concatenate(pair, axis=1) for pair in zip(self, others, strict=True)]
        best = _best(both[-1], self.scores.shape[1])
        return _Hypotheses(*(_gather(values, best) for values in both))

    def select(self, sentences: Bool[np.ndarray, " sentences"]) -> "_Hypotheses":
        return _Hypotheses(*(values[sentences] for values in self))

    def listed(self, finish: Literal["end", "length"], length_penalty: float) -> list[list[Hypothesis]]:
        found = zip(*(values.tolist() for values in self[:4]), strict=True)
        return [
            [
                Hypothesis(
                    tuple(tokens[: length - (finish == "end")]),
                    log_prob,
                    log_prob / length**length_penalty,
                    finish,
                    tuple(after - before for before, after in pairwise([0.0, *sums[:length]])),
                )
                for tokens, sums, length, log_prob in zip(*sentence, strict=True)
                if log_prob > NEVER
            ]
            for sentence in found
        ]


def _best(values: Reals, n: int) -> Int[np.ndarray, "sentences best"]:
    """The places of the n largest values of each sentence, in order."""
    return np.argsort(-values, axis=1, kind="stable")[:, :n]


def _gather(values: np.ndarray, places: Int[np.ndarray, "sentences m"]) -> np.ndarray:
    """What stands at these places of each sentence."""
    return values[np.arange(len(values))[:, None], places]


class _Continuations(NamedTuple):
    """How the beams of each sentence go on, best first."""

    log_probs: Reals
    merits: Reals
    parents: Whole
    tokens: Whole


@torch.inference_mode()
def beam_search(
    model: Branching,
    limits: Sequence[int],
    settings: BeamSettings,
    *,
    end_id: int,
    guides: Sequence[Guide | None] = (),
    watch: Watch | None = None,
    wanted: Wanted | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each row of the model, best first; `limits` are their longest lengths, end included.

    Each step keeps the beam_size best continuations of a sentence; those with the end token are finished, the others go
    on. A sentence is finished when nothing that goes on can still come among the n best. A hypothesis that was cut at
    its limit ranks below all that ended. With beam_size 1 this is greedy search.

    A row with a guide is led through its terms, and its hypotheses are ranked by merit; other rows do not notice.
    `watch` sees every step of every row, and ends the search by raising. A sentence that is not `wanted` any more ends
    at the next step, with what there is of it.
    """
    results: list[list[Hypothesis]] = [[] for _ in limits]
    logits = model.first().repeat_interleave(settings.beam_size, 0)
    device = logits.device
    search = _Search.start(limits, settings, guides)
    model.branch(settings.beam_size)
    while True:
        parents = search.extend(logits, end_id)
        if watch is not None:
            search.tell(watch, parents)
        done = search.done() if wanted is None else search.done() | search.given_up(wanted)
        if done.any():
            for sentence, hypotheses in search.finish(done):
                if not hypotheses:
                    raise diverged()
                results[sentence] = hypotheses
            search = search.select(~done)
            if len(search.numbers) == 0:
                return results
            model.select(torch.from_numpy(parents[~done].ravel()).to(device))
        elif settings.beam_size > 1:
            model.reorder(torch.from_numpy(parents.ravel()).to(device))
        logits = model.step(torch.from_numpy(search.last_tokens()).to(device))


@dataclass
class _Search:
    """The sentences that are still searched: their beams, and the best finished hypotheses of each.

    In NumPy, which begins sooner than torch to do what is small and changes at every step.
    """

    settings: BeamSettings
    numbers: Int[np.ndarray, " sentences"]
    limits: Int[np.ndarray, " sentences"]
    beams: _Hypotheses
    finished: _Hypotheses
    length: int = 0  # of the beams
    guided: dict[int, Guided] = field(default_factory=dict)  # by the places of their sentences in the arrays

    @classmethod
    def start(cls, limits: Sequence[int], settings: BeamSettings, guides: Sequence[Guide | None]) -> "_Search":
        def none(n: int) -> _Hypotheses:
            shape = (len(limits), n)
            tokens = np.zeros((*shape, max(limits)), np.int64)
            nothing = [np.full(shape, NEVER) for _ in range(3)]
            return _Hypotheses(tokens, np.zeros(tokens.shape), np.zeros(shape, np.int64), *nothing)

        beams = none(settings.beam_size)
        beams.log_probs[:, 0] = beams.merits[:, 0] = 0.0  # all begin alike, so that only the first beam may go on
        guided = {
            place: Guided.start(guide, limits[place], settings.beam_size)
            for place, guide in enumerate(guides)
            if guide is not None
        }
        finished = none(settings.n_best)
        return cls(settings, np.arange(len(limits)), np.array(limits), beams, finished, guided=guided)

    def extend(self, logits: Float[Tensor, "rows vocab_size"], end_id: int) -> Whole:
        """Give each beam its next token; returns the rows that the new beams go on from."""
        log_probs, merits, parents, tokens = self._best_continuations(logits, end_id)
        written, sums = _gather(self.beams.tokens, parents), _gather(self.beams.sums, parents)
        written[:, :, self.length], sums[:, :, self.length] = tokens, log_probs
        self.length += 1
        lengths = np.full_like(parents, self.length)
        scores = merits / self.length**self.settings.length_penalty
        ended = tokens == end_id
        if ended.any():
            new = _Hypotheses(written, sums, lengths, *(np.where(ended, x, NEVER) for x in (log_probs, merits, scores)))
            self.finished = self.finished.best_with(new)
            log_probs, merits, scores = (np.where(ended, NEVER, x) for x in (log_probs, merits, scores))
        self.beams = _Hypotheses(written, sums, lengths, log_probs, merits, scores)
        return parents + np.arange(len(parents))[:, None] * self.settings.beam_size

    def _best_continuations(self, logits: Tensor, end_id: int) -> _Continuations:
        n_sentences, beam_size = self.beams.log_probs.shape
        logits = logits.float()
        normaliser = logits.logsumexp(-1)  # before the ban: log-probabilities are the model's own
        for token in self.settings.banned:
            logits[:, token] = NEVER
        for place, guided in self.guided.items():
            guided.ban(logits[place * beam_size : (place + 1) * beam_size], self.length, end_id)
        best = largest(logits, min(beam_size, logits.shape[1]))  # no sentence takes more from one beam
        offsets = self.beams.log_probs.ravel() - normaliser.cpu().numpy()
        candidates = (best.values.cpu().numpy() + offsets[:, None]).reshape(n_sentences, -1)
        places = _best(candidates, beam_size)
        log_probs = _gather(candidates, places)
        tokens = _gather(best.places.cpu().numpy().reshape(n_sentences, -1), places)
        found = _Continuations(log_probs, log_probs.copy(), places // best.values.shape[1], tokens)
        for place, guided in self.guided.items():
            rows = slice(place * beam_size, (place + 1) * beam_size)
            before = list(zip(self.beams.log_probs[place].tolist(), self.beams.merits[place].tolist(), strict=True))
            own = logits[rows] - normaliser[rows, None]
            for row, values in zip(
                found, put(guided.choose(own, best.places[rows], before, self.length), beam_size), strict=True
            ):
                row[place] = values
        return found

    def tell(self, watch: Watch, parents: Whole) -> None:
        """Report the step that extend() took; `parents` are the rows that it gave."""
        last = self.length - 1
        columns = (parents % self.settings.beam_size, self.beams.tokens[:, :, last], self.beams.sums[:, :, last])
        for number, *each in zip(self.numbers.tolist(), *(column.tolist() for column in columns), strict=True):
            watch(number, Extension(self.length, *each))

    def done(self) -> Bool[np.ndarray, " sentences"]:
        """Where the limit is reached or no beam can still get a score among the n best.

        Merits only fall, but for what soft terms add, so a beam's best possible score is the one it has now at the
        length that helps most: the next one, or the longest.
        """
        penalty = self.settings.length_penalty
        best = self.beams.merits.max(axis=1)
        for place, guided in self.guided.items():
            best[place] += guided.guide.most_bias
        reach = np.maximum(best / (self.length + 1) ** penalty, best / self.limits**penalty)
        return (self.limits <= self.length) | (self.finished.scores[:, -1] >= reach)

    def given_up(self, wanted: Wanted) -> Bool[np.ndarray, " sentences"]:
        """Where nobody waits for what is found."""
        return np.array([not wanted(number) for number in self.numbers.tolist()])

    def finish(self, done: Bool[np.ndarray, " sentences"]) -> list[tuple[int, list[Hypothesis]]]:
        """The numbers and results of the sentences that are done."""
        ended = self.finished.select(done).listed("end", self.settings.length_penalty)
        cut = self.beams.select(done).listed("length", self.settings.length_penalty)
        best = [(one + other)[: self.settings.n_best] for one, other in zip(ended, cut, strict=True)]
        return list(zip(self.numbers[done].tolist(), best, strict=True))

    def select(self, kept: Bool[np.ndarray, " sentences"]) -> "_Search":
        return _Search(
            self.settings,
            self.numbers[kept],
            self.limits[kept],
            self.beams.select(kept),
            self.finished.select(kept),
            self.length,
            {new: self.guided[old] for new, old in enumerate(kept.nonzero()[0].tolist()) if old in self.guided},
        )

    def last_tokens(self) -> Int[np.ndarray, " rows"]:
        return self.beams.tokens[:, :, self.length - 1].ravel()
