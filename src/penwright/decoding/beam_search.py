"""Beam search over many sources at once; finished sentences are dropped from the batch."""

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
from penwright.decoding.hypotheses import (
    BeamSettings,
    Ends,
    Extension,
    Hypothesis,
    Reals,
    SearchStep,
    Wanted,
    Watch,
    Whole,
    gather,
    hypothesis_of,
    topk_indices,
    trace_back,
)
from penwright.decoding.sampling.logits_process import NEG_INF
from penwright.decoding.sampling.topk import MAX_K, Choose, MaskedTopK, TokenSelector
from penwright.decoding.sampling.utf8 import FREE, Situations, States, Utf8Rules

MIN_PATIENCE = 4  # beams may always grow by this many tokens, even if `beam_patience` allows fewer


def _unmasked(best: MaskedTopK, n: int) -> list[list[int]]:
    """List, for each row, the n best tokens that are not masked."""
    pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    return [[token for value, token in zip(*row, strict=True) if value > NEG_INF][:n] for row in pairs]


class _Continuations(NamedTuple):
    """The continuations of each sentence's beams, best first."""

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
    guides: Sequence[ConstraintAutomaton | None] = (),
    selector: TokenSelector | None = None,
    watch: Watch | None = None,
    wanted: Wanted | None = None,
) -> list[list[Hypothesis]]:
    """Return the n best hypotheses of each row of the batch, best first.

    Each step keeps the beam_size best continuations of a sentence. Continuations that end with the end token are
    finished; the others are extended. A sentence is done when no unfinished beam can still rank among the n best, even
    if it grows as far as `settings.beam_patience` allows. A hypothesis without an end token, cut off at its limit,
    ranks below all hypotheses with one. With beam_size 1 this is greedy search.

    `limits` are the maximum lengths, end token included. `guides` holds a constraint automaton, or None, for each row.
    Constrained rows rank their hypotheses by log-probability plus the bonuses of the automaton; the other rows are not
    affected. `watch` is called with every step of every row, and may raise an exception to end the search. If `wanted`
    returns False for a sentence, its search ends at the next step with the best hypotheses so far.
    """
    results: list[list[Hypothesis]] = [[] for _ in limits]
    logits = model.first().repeat_interleave(settings.beam_size, 0)
    device = logits.device
    selector = selector or TokenSelector(Utf8Rules.free(logits.shape[1], settings.banned))
    search = _Search.start(limits, settings, guides, selector)
    model.branch(settings.beam_size)
    while True:
        parents = search.extend(search.best_continuations(logits, end_id), end_id)
        if watch is not None:
            search.notify(watch, parents)
        done = search.done() if wanted is None else search.done() | search.abandoned(wanted)
        if done.any():
            for sentence, hypotheses in search.finish(done):
                if not hypotheses:
                    raise diverged()
                results[sentence] = hypotheses
            if done.all():
                return results
            search = search.select(~done)
            selector.select(np.flatnonzero(~done).tolist())
            model.select(torch.from_numpy(parents[~done].ravel()).to(device))
        elif settings.beam_size > 1:
            model.reorder(torch.from_numpy(parents.ravel()).to(device))
        logits = model.step(torch.from_numpy(search.history[-1].tokens[~done].ravel()).to(device))


@dataclass
class _Search:
    """The unfinished sentences: the beams and the best finished hypotheses of each.

    The state is small and changes at every step. It is kept in NumPy arrays, because torch calls have more overhead.
    """

    settings: BeamSettings
    numbers: Int[np.ndarray, " sentences"]
    limits: Int[np.ndarray, " sentences"]
    log_probs: Reals  # log-probabilities of the beams; -inf marks a missing beam
    merits: Reals  # ranking scores: log-probabilities plus the bonuses of constraints
    states: States  # state of the UTF-8 decoder for each beam
    finished: Ends
    utf8_rules: Utf8Rules
    choose: Choose
    history: list[SearchStep] = field(default_factory=list)
    guided: dict[int, ConstrainedBeams] = field(default_factory=dict)  # beams of each constrained sentence, by index

    @classmethod
    def start(
        cls,
        limits: Sequence[int],
        settings: BeamSettings,
        guides: Sequence[ConstraintAutomaton | None],
        selector: TokenSelector,
    ) -> "_Search":
        """Create the search in its state before the first step."""
        n_sentences, beam_size = len(limits), settings.beam_size
        log_probs = np.full((n_sentences, beam_size), NEG_INF)
        log_probs[:, 0] = 0.0  # all beams begin alike, so only the first is extended
        none = np.zeros((n_sentences, settings.n_best), np.int64)
        never = np.full(none.shape, NEG_INF)
        guided = {
            sentence: ConstrainedBeams.start(guide, limits[sentence], beam_size)
            for sentence, guide in enumerate(guides)
            if guide is not None
        }
        numbers, states = np.arange(n_sentences), np.zeros((n_sentences, beam_size), np.uint8)
        ends = Ends(none, none, never, never)
        utf8_rules, choose = selector.utf8_rules, selector.choose
        return cls(
            settings, numbers, np.array(limits), log_probs, log_probs, states, ends, utf8_rules, choose, guided=guided
        )

    @property
    def length(self) -> int:
        """The current length of the beams, in tokens."""
        return len(self.history)

    def extend(self, continuations: _Continuations, end_id: int) -> Whole:
        """Append the next token of each beam; return the rows that the new beams extend."""
        self.log_probs, self.merits, parents, tokens = continuations
        self.history.append(SearchStep(self.numbers, parents, tokens, self.log_probs))
        self.states = self.utf8_rules.after[gather(self.states, parents), tokens]
        ended = tokens == end_id
        if ended.any():
            self.finished = self.finished.best_with(self._ends(ended))
            self.log_probs, self.merits = (np.where(ended, NEG_INF, x) for x in (self.log_probs, self.merits))
        return parents + np.arange(len(parents))[:, None] * self.settings.beam_size

    def _ends(self, which: Bool[np.ndarray, "sentences n"]) -> Ends:
        """Return these beams as hypotheses that end after the current step."""
        lengths = np.full_like(self.history[-1].tokens, self.length)
        log_probs, merits = (np.where(which, x, NEG_INF) for x in (self.log_probs, self.merits))
        beams = np.broadcast_to(np.arange(self.settings.beam_size), lengths.shape)
        return Ends(lengths, beams, log_probs, merits / self.length**self.settings.length_penalty)

    def best_continuations(self, logits: Float[Tensor, "rows vocab_size"], end_id: int) -> _Continuations:
        """Return the best continuations of the beams, given the logits of their next tokens."""
        n_sentences, beam_size = self.log_probs.shape
        logits, n_best = logits.float(), min(beam_size, logits.shape[1])  # of one beam, at most beam_size can be kept
        situations = self._situations()
        if self.guided:
            best = self._allowed_top_k(logits, situations, n_best, end_id)
        else:
            best = self.choose(logits, self.utf8_rules, situations, n_best)
        offsets = self.log_probs.ravel() - best.logsumexp.cpu().numpy()
        candidates = (best.values.cpu().numpy() + offsets[:, None]).reshape(n_sentences, -1)
        best_indices = topk_indices(candidates, beam_size)
        log_probs = gather(candidates, best_indices)
        tokens = gather(best.indices.cpu().numpy().reshape(n_sentences, -1), best_indices)
        continuations = _Continuations(log_probs, log_probs.copy(), best_indices // best.values.shape[1], tokens)
        if self.guided:
            self._apply_guides(continuations, logits, best)
        return continuations

    def _apply_guides(self, continuations: _Continuations, logits: Tensor, best: MaskedTopK) -> None:
        """Replace the continuations of constrained sentences with those that their constraint automata choose."""
        beam_size, sentences = self.settings.beam_size, list(self.guided)
        likely = _unmasked(best, beam_size)
        options = [
            guided.candidates(likely[i * beam_size : (i + 1) * beam_size], self.length)
            for i, guided in self.guided.items()
        ]
        rows = [i * beam_size + n for i, beams in zip(sentences, options, strict=True) for n in range(len(beams))]
        counts = [len(tokens) for beams in options for tokens in beams]
        which = torch.from_numpy(np.repeat(rows, counts)).to(logits.device)
        option_tokens = [token for beams in options for each in beams for token in each]
        tokens = torch.tensor(option_tokens, device=logits.device, dtype=torch.long)  # empty if all logits are NaN
        gains = iter((logits[which, tokens] - best.logsumexp[which]).tolist())  # one GPU transfer for all sentences
        before = np.stack([self.log_probs[sentences], self.merits[sentences]], axis=2).tolist()
        chosen = [
            guided.choose(beams, gains, each, self.length)
            for guided, beams, each in zip(self.guided.values(), options, before, strict=True)
        ]
        for values, column in zip(continuations, columns(chosen, beam_size), strict=True):
            values[sentences] = column

    def _situations(self) -> Int64[np.ndarray, " rows"]:
        """Return, for each beam, the index of its UTF-8 rules; FREE if a constraint forces the next token."""
        situations = self.utf8_rules.situations(self.states, (self.limits - self.length - 1)[:, None])
        for sentence, guided in self.guided.items():
            situations[sentence, guided.must_follow(self.length)] = FREE
        return situations.ravel()

    def _allowed_top_k(self, logits: Tensor, situations: Situations, n_best: int, end_id: int) -> MaskedTopK:
        """Return the likeliest tokens of each row, omitting tokens that the constraints of the row forbid."""
        best = self.choose(logits, self.utf8_rules, situations, max(n_best, min(MAX_K, logits.shape[1])))
        self.utf8_rules.forbid(logits, situations)  # a constraint may also choose tokens outside the top k
        rows, tokens = list[int](), list[int]()
        for sentence, guided in self.guided.items():
            for beam, banned in guided.banned(self.length, end_id, self.utf8_rules, self.states[sentence]):
                row = sentence * self.settings.beam_size + beam
                if isinstance(banned, Tensor):
                    logits[row].masked_fill_(banned.to(logits.device), NEG_INF)
                else:
                    rows += [row] * len(banned)
                    tokens += banned
        if rows:
            logits[rows, tokens] = NEG_INF
        values, indices = logits.gather(1, best.indices), best.indices
        short = ((values > NEG_INF).sum(1) < n_best).nonzero()[:, 0]
        if len(short):  # in these rows, too few of the top tokens are allowed
            others = self.choose(logits[short], self.utf8_rules, situations[short.cpu().numpy()], values.shape[1])
            values[short], indices[short] = others.values, others.indices
        return MaskedTopK(values, indices, best.logsumexp)  # the logsumexp of a row includes banned tokens

    def notify(self, watch: Watch, parents: Whole) -> None:
        """Pass the last step of extend() to `watch`; `parents` are the rows that extend() returned."""
        last = self.history[-1]
        columns = (last.numbers, parents % self.settings.beam_size, last.tokens, last.sums)
        for number, *each in zip(*(column.tolist() for column in columns), strict=True):
            watch(number, Extension(self.length, *each))

    def done(self) -> Bool[np.ndarray, " sentences"]:
        """Return which sentences have reached their limit, or have no beam that could still rank among the n best.

        A beam's merit (its log-probability plus bonuses) never rises, except by the bonuses of soft terms. So the upper
        bound on its score assumes its current merit, at either the next length or the greatest length that
        `beam_patience` allows. Without this limit, a third of the time would be spent on beams that grow to several
        times the length of the finished hypotheses.
        """
        penalty = self.settings.length_penalty
        best = self.merits.max(axis=1)
        for sentence, guided in self.guided.items():
            best[sentence] += guided.guide.most_bias
        longest = np.minimum(
            self.limits, self.length + 1 + max(MIN_PATIENCE, self.settings.beam_patience * self.length)
        )
        reach = np.maximum(best / (self.length + 1) ** penalty, best / longest**penalty)
        return (self.limits <= self.length) | (self.finished.scores[:, -1] >= reach)

    def abandoned(self, wanted: Wanted) -> Bool[np.ndarray, " sentences"]:
        """Return, for each sentence, whether the caller no longer needs it, according to `wanted`."""
        return np.array([not wanted(number) for number in self.numbers.tolist()])

    def finish(self, done: Bool[np.ndarray, " sentences"]) -> list[tuple[int, list[Hypothesis]]]:
        """Return the indices and hypotheses of the sentences that are done."""
        settings, numbers = self.settings, self.numbers[done]
        ends = self.finished.beside(self._ends(np.isfinite(self.log_probs))).select(done)
        columns = (*trace_back(self.history, numbers, ends), ends.lengths, ends.log_probs)
        results = []
        for number, *each in zip(numbers.tolist(), *(column.tolist() for column in columns), strict=True):
            hypotheses = (
                hypothesis_of(tokens, sums, length, log_prob, rank < settings.n_best, settings.length_penalty)
                for rank, (tokens, sums, length, log_prob) in enumerate(zip(*each, strict=True))
                if log_prob > NEG_INF
            )
            results.append((number, list(islice(hypotheses, settings.n_best))))
        return results

    def select(self, kept: Bool[np.ndarray, " sentences"]) -> "_Search":
        """Return the search restricted to these sentences."""
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
