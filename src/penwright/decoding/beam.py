"""Beam search for many sources at once; sentences that are finished leave the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from penwright.decoding.decodable import Decodable, diverged
from penwright.decoding.guided import Guided, put
from penwright.decoding.guides import Guide
from penwright.decoding.sampling import NEVER


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


class _Hypotheses(NamedTuple):
    """Some hypotheses of each sentence, best first; those with log-probability -inf are none."""

    tokens: Int[Tensor, "sentences n longest"]
    sums: Float[Tensor, "sentences n longest"]  # of log-probabilities, up to and with each token
    lengths: Int[Tensor, "sentences n"]  # of the tokens that count
    log_probs: Float[Tensor, "sentences n"]
    merits: Float[Tensor, "sentences n"]  # log-probabilities, with what a guide adds
    scores: Float[Tensor, "sentences n"]  # of the merits: what hypotheses are ranked by

    def best_with(self, others: "_Hypotheses") -> "_Hypotheses":
        """The best of both, as many as there are here."""
        both = [torch.cat(pair, dim=1) for pair in zip(self, others, strict=True)]
        best = both[-1].topk(self.scores.shape[1]).indices
        return _Hypotheses(*(_gather(values, best) for values in both))

    def select(self, sentences: Tensor) -> "_Hypotheses":
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


def _gather(values: Tensor, places: Int[Tensor, "sentences m"]) -> Tensor:
    """What stands at these places of each sentence."""
    if values.dim() == 2:
        return values.gather(1, places)
    return values.gather(1, places[:, :, None].expand(-1, -1, values.shape[2]))


class _Continuations(NamedTuple):
    """How the beams of each sentence go on, best first."""

    log_probs: Float[Tensor, "sentences beams"]
    merits: Float[Tensor, "sentences beams"]
    parents: Int[Tensor, "sentences beams"]
    tokens: Int[Tensor, "sentences beams"]


@torch.inference_mode()
def beam_search(
    model: Decodable,
    limits: Sequence[int],
    settings: BeamSettings,
    *,
    end_id: int,
    guides: Sequence[Guide | None] = (),
    watch: Watch | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each row of the model, best first; `limits` are their longest lengths, end included.

    Each step keeps the beam_size best continuations of a sentence; those with the end token are finished, the others go
    on. A sentence is finished when nothing that goes on can still come among the n best. A hypothesis that was cut at
    its limit ranks below all that ended. With beam_size 1 this is greedy search.

    A row with a guide is led through its terms, and its hypotheses are ranked by merit; other rows do not notice.
    `watch` sees every step of every row, and ends the search by raising.
    """
    results: list[list[Hypothesis]] = [[] for _ in limits]
    logits = model.first().repeat_interleave(settings.beam_size, 0)
    search = _Search.start(limits, settings, logits.device, guides)
    model.select(torch.arange(len(limits), device=logits.device).repeat_interleave(settings.beam_size))
    while True:
        parents = search.extend(logits, end_id)
        if watch is not None:
            search.tell(watch, parents)
        done = search.done()
        leaving = bool(done.any())
        if leaving:
            for sentence, hypotheses in search.finish(done):
                if not hypotheses:
                    raise diverged()
                results[sentence] = hypotheses
            search = search.select(~done)
            if len(search.numbers) == 0:
                return results
            model.select(parents[~done].flatten())
        elif settings.beam_size > 1:
            model.reorder(parents.flatten())
        logits = model.step(search.last_tokens())


@dataclass
class _Search:
    """The sentences that are still searched: their beams, and the best finished hypotheses of each."""

    settings: BeamSettings
    numbers: Int[Tensor, " sentences"]
    limits: Int[Tensor, " sentences"]
    beams: _Hypotheses
    finished: _Hypotheses
    length: int = 0  # of the beams
    guided: dict[int, Guided] = field(default_factory=dict)  # by the places of their sentences in the tensors

    @classmethod
    def start(
        cls, limits: Sequence[int], settings: BeamSettings, device: torch.device, guides: Sequence[Guide | None]
    ) -> "_Search":
        def none(n: int) -> _Hypotheses:
            shape = (len(limits), n)
            nothing = [torch.full(shape, NEVER, dtype=torch.float64, device=device) for _ in range(3)]
            tokens = torch.zeros(*shape, max(limits), dtype=torch.long, device=device)
            lengths = torch.zeros(shape, dtype=torch.long, device=device)
            return _Hypotheses(tokens, torch.zeros_like(tokens, dtype=torch.float64), lengths, *nothing)

        beams = none(settings.beam_size)
        beams.log_probs[:, 0] = beams.merits[:, 0] = 0.0  # all begin alike, so that only the first beam may go on
        longest = torch.tensor(limits, device=device)
        guided = {
            place: Guided.start(guide, limits[place], settings.beam_size)
            for place, guide in enumerate(guides)
            if guide is not None
        }
        numbers = torch.arange(len(limits), device=device)
        return cls(settings, numbers, longest, beams, none(settings.n_best), guided=guided)

    def extend(self, logits: Float[Tensor, "rows vocab_size"], end_id: int) -> Int[Tensor, "sentences beams"]:
        """Give each beam its next token; returns the rows that the new beams go on from."""
        log_probs, merits, parents, tokens = self._best_continuations(logits, end_id)
        written, sums = _gather(self.beams.tokens, parents), _gather(self.beams.sums, parents)
        written[:, :, self.length], sums[:, :, self.length] = tokens, log_probs
        self.length += 1
        lengths = torch.full_like(parents, self.length)
        values = log_probs, merits, merits / self.length**self.settings.length_penalty
        ended = tokens == end_id
        if bool(ended.any()):
            new = _Hypotheses(written, sums, lengths, *(x.masked_fill(~ended, NEVER) for x in values))
            self.finished = self.finished.best_with(new)
        self.beams = _Hypotheses(written, sums, lengths, *(x.masked_fill(ended, NEVER) for x in values))
        return parents + torch.arange(len(parents), device=parents.device)[:, None] * self.settings.beam_size

    def _best_continuations(self, logits: Tensor, end_id: int) -> _Continuations:
        n_sentences, beam_size = self.beams.log_probs.shape
        logits = logits.float()
        normaliser = logits.logsumexp(-1)  # before the ban: log-probabilities are the model's own
        logits[:, self.settings.banned] = NEVER
        for place, guided in self.guided.items():
            guided.ban(logits[place * beam_size : (place + 1) * beam_size], self.length, end_id)
        best = logits.topk(min(beam_size, logits.shape[1]))  # no sentence takes more from one beam
        offsets = self.beams.log_probs.flatten() - normaliser
        candidates = (best.values + offsets[:, None]).view(n_sentences, -1)
        log_probs, places = candidates.topk(beam_size)
        tokens = best.indices.view(n_sentences, -1).gather(1, places)
        found = _Continuations(log_probs, log_probs.clone(), places // best.values.shape[1], tokens)
        for place, guided in self.guided.items():
            rows = slice(place * beam_size, (place + 1) * beam_size)
            before = list(zip(self.beams.log_probs[place].tolist(), self.beams.merits[place].tolist(), strict=True))
            own = logits[rows] - normaliser[rows, None]
            for row, values in zip(
                found, put(guided.choose(own, best.indices[rows], before, self.length), beam_size), strict=True
            ):
                row[place] = values
        return found

    def tell(self, watch: Watch, parents: Int[Tensor, "sentences beams"]) -> None:
        """Report the step that extend() took; `parents` are the rows that it gave."""
        last = self.length - 1
        columns = (parents % self.settings.beam_size, self.beams.tokens[:, :, last], self.beams.sums[:, :, last])
        for number, *each in zip(self.numbers.tolist(), *(column.tolist() for column in columns), strict=True):
            watch(number, Extension(self.length, *each))

    def done(self) -> Bool[Tensor, " sentences"]:
        """Where the limit is reached or no beam can still get a score among the n best.

        Merits only fall, but for what soft terms add, so a beam's best possible score is the one it has now at the
        length that helps most: the next one, or the longest.
        """
        penalty = self.settings.length_penalty
        best = self.beams.merits.amax(1)
        for place, guided in self.guided.items():
            best[place] += guided.guide.most_bias
        reach = torch.maximum(best / (self.length + 1) ** penalty, best / self.limits.double() ** penalty)
        return (self.limits <= self.length) | (self.finished.scores[:, -1] >= reach)

    def finish(self, done: Bool[Tensor, " sentences"]) -> list[tuple[int, list[Hypothesis]]]:
        """The numbers and results of the sentences that are done."""
        ended = self.finished.select(done).listed("end", self.settings.length_penalty)
        cut = self.beams.select(done).listed("length", self.settings.length_penalty)
        best = [(one + other)[: self.settings.n_best] for one, other in zip(ended, cut, strict=True)]
        return list(zip(self.numbers[done].tolist(), best, strict=True))

    def select(self, kept: Bool[Tensor, " sentences"]) -> "_Search":
        return _Search(
            self.settings,
            self.numbers[kept],
            self.limits[kept],
            self.beams.select(kept),
            self.finished.select(kept),
            self.length,
            {new: self.guided[old] for new, old in enumerate(kept.nonzero()[:, 0].tolist()) if old in self.guided},
        )

    def last_tokens(self) -> Int[Tensor, " rows"]:
        return self.beams.tokens[:, :, self.length - 1].flatten()
