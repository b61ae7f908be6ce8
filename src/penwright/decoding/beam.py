"""Beam search for many sources at once; sentences that are finished leave the batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from penwright.decoding.decodable import Decodable, diverged
from penwright.decoding.sampling import NEVER


@dataclass(frozen=True)
class BeamSettings:
    """Hypotheses are ranked by log-probability / length ** length_penalty; the end token counts as one."""

    beam_size: int = 5
    n_best: int = 1  # how many hypotheses are wanted of each sentence, at most beam_size
    length_penalty: float = 1.0
    banned: tuple[int, ...] = ()  # tokens that are never written


@dataclass(frozen=True)
class Hypothesis:
    """One translation that the search has found."""

    tokens: tuple[int, ...]  # without the end token
    log_prob: float  # in nats, of all tokens and the end token
    score: float
    finish: Literal["end", "length"]


class _Hypotheses(NamedTuple):
    """Some hypotheses of each sentence, best first; those with log-probability -inf are none."""

    tokens: Int[Tensor, "sentences n longest"]
    lengths: Int[Tensor, "sentences n"]  # of the tokens that count
    log_probs: Float[Tensor, "sentences n"]
    scores: Float[Tensor, "sentences n"]

    def best_with(self, others: "_Hypotheses") -> "_Hypotheses":
        """The best of both, as many as there are here."""
        both = [torch.cat(pair, dim=1) for pair in zip(self, others, strict=True)]
        best = both[-1].topk(self.scores.shape[1]).indices
        return _Hypotheses(_gather(both[0], best), *(values.gather(1, best) for values in both[1:]))

    def select(self, sentences: Tensor) -> "_Hypotheses":
        return _Hypotheses(*(values[sentences] for values in self))

    def listed(self, finish: Literal["end", "length"]) -> list[list[Hypothesis]]:
        found = zip(*(values.tolist() for values in self), strict=True)
        return [
            [
                Hypothesis(tuple(tokens[: length - (finish == "end")]), log_prob, score, finish)
                for tokens, length, log_prob, score in zip(*sentence, strict=True)
                if log_prob > NEVER
            ]
            for sentence in found
        ]


def _gather(tokens: Int[Tensor, "sentences n longest"], places: Int[Tensor, "sentences m"]) -> Tensor:
    return tokens.gather(1, places[:, :, None].expand(-1, -1, tokens.shape[2]))


@torch.inference_mode()
def beam_search(
    model: Decodable, limits: Sequence[int], settings: BeamSettings, *, end_id: int
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each row of the model, best first; `limits` are their longest lengths, end included.

    Each step keeps the beam_size best continuations of a sentence; those with the end token are finished, the others go
    on. A sentence is finished when nothing that goes on can still come among the n best. A hypothesis that was cut at
    its limit ranks below all that ended. With beam_size 1 this is greedy search.
    """
    results: list[list[Hypothesis]] = [[] for _ in limits]
    logits = model.first().repeat_interleave(settings.beam_size, 0)
    search = _Search.start(limits, settings, logits.device)
    model.select(torch.arange(len(limits), device=logits.device).repeat_interleave(settings.beam_size))
    while True:
        parents = search.extend(logits, end_id)
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

    @classmethod
    def start(cls, limits: Sequence[int], settings: BeamSettings, device: torch.device) -> "_Search":
        def none(n: int) -> _Hypotheses:
            shape = (len(limits), n)
            nothing = torch.full(shape, NEVER, dtype=torch.float64, device=device)
            tokens = torch.zeros(*shape, max(limits), dtype=torch.long, device=device)
            return _Hypotheses(tokens, torch.zeros(shape, dtype=torch.long, device=device), nothing, nothing.clone())

        beams = none(settings.beam_size)
        beams.log_probs[:, 0] = 0.0  # all beams begin alike, so that only the first may go on
        longest = torch.tensor(limits, device=device)
        return cls(settings, torch.arange(len(limits), device=device), longest, beams, none(settings.n_best))

    def extend(self, logits: Float[Tensor, "rows vocab_size"], end_id: int) -> Int[Tensor, "sentences beams"]:
        """Give each beam its next token; returns the rows that the new beams go on from."""
        log_probs, parents, tokens = self._best_continuations(logits)
        self.length += 1
        written = _gather(self.beams.tokens, parents)
        written[:, :, self.length - 1] = tokens
        lengths = torch.full_like(parents, self.length)
        scores = log_probs / self.length**self.settings.length_penalty
        ended = tokens == end_id
        if bool(ended.any()):
            new = _Hypotheses(written, lengths, *(x.masked_fill(~ended, NEVER) for x in (log_probs, scores)))
            self.finished = self.finished.best_with(new)
        self.beams = _Hypotheses(written, lengths, *(x.masked_fill(ended, NEVER) for x in (log_probs, scores)))
        return parents + torch.arange(len(parents), device=parents.device)[:, None] * self.settings.beam_size

    def _best_continuations(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, parent beams and tokens of the best continuations of each sentence."""
        n_sentences, beam_size = self.beams.log_probs.shape
        logits = logits.float()
        normaliser = logits.logsumexp(-1)  # before the ban: log-probabilities are the model's own
        logits[:, self.settings.banned] = NEVER
        best = logits.topk(min(beam_size, logits.shape[1]))  # no sentence takes more from one beam
        offsets = self.beams.log_probs.flatten() - normaliser
        candidates = (best.values + offsets[:, None]).view(n_sentences, -1)
        log_probs, places = candidates.topk(beam_size)
        tokens = best.indices.view(n_sentences, -1).gather(1, places)
        return log_probs, places // best.values.shape[1], tokens

    def done(self) -> Bool[Tensor, " sentences"]:
        """Where the limit is reached or no beam can still get a score among the n best.

        Log-probabilities only fall, so a beam's best possible score is the one it has now at the length that helps
        most: the next one, or the longest.
        """
        penalty = self.settings.length_penalty
        best = self.beams.log_probs.amax(1)
        reach = torch.maximum(best / (self.length + 1) ** penalty, best / self.limits.double() ** penalty)
        return (self.limits <= self.length) | (self.finished.scores[:, -1] >= reach)

    def finish(self, done: Bool[Tensor, " sentences"]) -> list[tuple[int, list[Hypothesis]]]:
        """The numbers and results of the sentences that are done."""
        ended = self.finished.select(done).listed("end")
        cut = self.beams.select(done).listed("length")
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
        )

    def last_tokens(self) -> Int[Tensor, " rows"]:
        return self.beams.tokens[:, :, self.length - 1].flatten()
