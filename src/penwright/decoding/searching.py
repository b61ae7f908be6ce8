"""Search for the translations of single parts: in batches of like length, led by what is asked of each."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import fsum
from typing import NamedTuple

import torch

from penwright.decoding.beam import BeamSettings, Hypothesis, beam_search
from penwright.decoding.constraints import Guide
from penwright.decoding.decodable import Translating, evaluating
from penwright.decoding.demands import (
    NO_DRAFT,
    Demands,
    Draft,
    GuideMaker,
    Outcome,
    Wish,
    outcomes,
    wishes_of,
)
from penwright.decoding.glossary import capitalised
from penwright.decoding.padding import batches_by_length
from penwright.decoding.placement import Hiding, Word, replaced_words, target_log_probs, words_of
from penwright.decoding.protection import Span
from penwright.models import EncoderDecoder
from penwright.tokenizers import Tokenizer

BATCH_TOKENS = 4096  # of the sources of one batch, with padding, times beam_size


class Job(NamedTuple):
    """What is translated in one go."""

    source: str
    demands: Demands
    prefix: str = ""  # that the translation begins with; white space at its end ends a word


class Found(NamedTuple):
    """A translation of a part."""

    text: str
    hypothesis: Hypothesis
    wishes: Sequence[Wish] = ()
    outcomes: Sequence[Outcome] = ()

    @property
    def missed(self) -> list[Wish]:
        """The words of a glossary that are not there."""
        pairs = zip(self.wishes, self.outcomes, strict=True)
        return [wish for wish, outcome in pairs if outcome.state == "missed" and not wish.protected]


class Asked(NamedTuple):
    """A job with what is asked of it, and a guide to some of it."""

    job: Job
    wishes: Sequence[Wish]
    guide: Guide | None
    draft: Draft = NO_DRAFT


class Searcher:
    """Finds the n best translations of sources that fit the model."""

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer):
        self._model, self._tokenizer = model, tokenizer

    def find(self, jobs: Sequence[Job], settings: BeamSettings, max_new_tokens: int | None) -> dict[Job, list[Found]]:
        """What is found for each job, best first, each text once.

        First the model writes as it will, but for spans that are kept. Where it missed the glossary's words, this draft
        shows where they belong, and search goes once more, with them.
        """
        kept = {job: _as_it_is(job) for job in jobs if _is_protected(job)}
        found = kept | self._search([self._freely(job) for job in jobs if job not in kept], settings, max_new_tokens)
        missed = [job for job in jobs if job.demands.is_hard and found[job][0].missed]
        if missed:
            written = [found[job][0].hypothesis for job in missed]
            drafts = self._drafts(missed, [found[job][0] for job in missed])
            led = [self._led(job, draft) for job, draft in zip(missed, drafts, strict=True)]
            found |= self._search(led, settings, max_new_tokens)
            for each, hypothesis in zip(led, self._swapped(led, written, settings), strict=True):
                ranked = [*found[each.job], *self._distinct(each, [hypothesis] if hypothesis else [])]
                ranked.sort(key=lambda one: (bool(one.missed), -one.hypothesis.score))
                found[each.job] = ranked[: settings.n_best]
        return found

    def _swapped(
        self, asked: Sequence[Asked], written: Sequence[Hypothesis], settings: BeamSettings
    ) -> list[Hypothesis | None]:
        """The drafts with the wished words in place of those that stood for them, where all of those are known."""
        end = self._tokenizer.end_id
        targets = [self._swap(each, hypothesis.tokens) for each, hypothesis in zip(asked, written, strict=True)]
        pairs = [
            Hiding(self._tokens(each.job), [*target, end], range(0))
            for each, target in zip(asked, targets, strict=True)
            if target
        ]
        with evaluating(self._model):
            scored = iter(target_log_probs(self._model, pairs, self._tokenizer.start_id))
        return [_hypothesis(target, next(scored), settings.length_penalty) if target else None for target in targets]

    def _swap(self, asked: Asked, tokens: Sequence[int]) -> list[int]:
        """Nothing where it is not known what a wished word stands for."""
        spots = asked.draft.spots
        if len(spots) < len(asked.draft.missed) or len({word.first for _, word in spots}) < len(spots):
            return []
        swapped = list(tokens)
        for wish, word in sorted(spots, key=lambda spot: -spot[1].first):
            form = wish.forms[0] if word.first else capitalised(wish.forms[0])
            new = self._tokenizer.encode(f" {form}" if word.first else form)
            swapped[word.first : word.first + word.length] = new
        return swapped if len(swapped) < self._model.settings.context_length else []

    @cached_property
    def _guides(self) -> GuideMaker:
        return GuideMaker(self._tokenizer)

    def _freely(self, job: Job) -> Asked:
        """As the model will, but for protected spans, the prefix, and a glossary that only makes words likelier."""
        wishes = wishes_of(job.source, job.demands)
        asked = [wish for wish in wishes if wish.protected or not job.demands.is_hard]
        return self._asked(job, wishes, asked, NO_DRAFT)

    def _led(self, job: Job, draft: Draft) -> Asked:
        """With all that must come."""
        wishes = wishes_of(job.source, job.demands)
        return self._asked(job, wishes, wishes, draft)

    def _asked(self, job: Job, wishes: Sequence[Wish], led: Sequence[Wish], draft: Draft) -> Asked:
        guide = self._guides.guide(job.source, led, job.demands.bias, draft) if led else None
        return Asked(job, wishes, self._guides.beginning(job.prefix, guide) if job.prefix else guide, draft)

    def _search(
        self, asked: Sequence[Asked], settings: BeamSettings, max_new_tokens: int | None
    ) -> dict[Job, list[Found]]:
        wider = replace(settings, n_best=settings.beam_size) if settings.n_best > 1 else settings  # texts may be equal
        tokens = [self._tokens(each.job) for each in asked]
        found: dict[Job, list[Found]] = {}
        with evaluating(self._model), torch.inference_mode():
            for batch in batches_by_length([len(t) for t in tokens], BATCH_TOKENS // settings.beam_size):
                chosen = [asked[number] for number in batch]
                limits = [self._limit(len(tokens[n]), asked[n].guide, max_new_tokens) for n in batch]
                model = Translating(
                    self._model,
                    [tokens[number] for number in batch],
                    start_id=self._tokenizer.start_id,
                    max_new_tokens=max(limits),
                )
                guides = [each.guide for each in chosen]
                results = beam_search(model, limits, wider, end_id=self._tokenizer.end_id, guides=guides)
                for each, hypotheses in zip(chosen, results, strict=True):
                    found[each.job] = self._distinct(each, hypotheses)[: settings.n_best]
        return found

    def _tokens(self, job: Job) -> list[int]:
        return [*self._tokenizer.encode(job.source), self._tokenizer.end_id]

    def _limit(self, n_source: int, guide: Guide | None, max_new_tokens: int | None) -> int:
        """The longest target: twice the source is more than any language pair needs, and short ones vary most."""
        asked = len(guide.prefix) + guide.prospects(guide.start()).needed if guide else 0
        return min(max_new_tokens or 2 * n_source + 20 + asked, self._model.settings.context_length)

    def _distinct(self, asked: Asked, hypotheses: Sequence[Hypothesis]) -> list[Found]:
        texts: dict[str, Found] = {}
        for hypothesis in hypotheses:
            text, results = outcomes(asked.job.source, asked.wishes, hypothesis, self._tokenizer, asked.draft)
            texts.setdefault(text, Found(text, hypothesis, asked.wishes, results))
        return list(texts.values())

    def _drafts(self, jobs: Sequence[Job], found: Sequence[Found]) -> list[Draft]:
        """Which words of the glossary are missing in each, and what stands in their place."""
        targets = [each.hypothesis.tokens for each in found]
        missed = [each.missed for each in found]
        pairs = [
            Hiding(self._tokens(job), target, self._tokens_of(job.source, wish))
            for job, target, wishes in zip(jobs, targets, missed, strict=True)
            for wish in wishes
        ]
        with evaluating(self._model):
            words = iter(replaced_words(self._model, self._tokenizer, pairs))
        return [
            _draft({wish: next(words) for wish in wishes}, words_of(target, self._tokenizer), each.wishes)
            for target, wishes, each in zip(targets, missed, found, strict=True)
        ]

    def _tokens_of(self, source: str, wish: Wish) -> range:
        return range(self._guides.tokens_before(source, wish.start), self._guides.tokens_before(source, wish.end))


def _draft(standing_for: Mapping[Wish, Word | None], words: Sequence[Word], wishes: Sequence[Wish]) -> Draft:
    """A word that the draft has twice may come once more, and no wished word is one that others replace."""
    found = {wish: word for wish, word in standing_for.items() if word is not None}
    wished = {form.casefold() for wish in wishes for form in wish.forms}
    times = Counter(word.text.casefold() for word in words)
    unwanted = {w.text for w in found.values() if times[w.text.casefold()] == 1 and w.text.casefold() not in wished}
    return Draft(tuple(found.items()), sorted(unwanted), frozenset(wish.forms for wish in standing_for))


def _hypothesis(tokens: Sequence[int], log_probs: Sequence[float], length_penalty: float) -> Hypothesis:
    total = fsum(log_probs)
    return Hypothesis(tuple(tokens), total, total / len(log_probs) ** length_penalty, "end", tuple(log_probs))


def _is_protected(job: Job) -> bool:
    """Whether all of it stays as it is."""
    return not job.prefix and job.demands.protection.spans(job.source) == [Span(0, len(job.source))]


def _as_it_is(job: Job) -> list[Found]:
    wish = Wish(0, len(job.source), (job.source,), True)
    kept = Outcome(job.source, 0, len(job.source), True, "found", job.source, 0, len(job.source))
    return [Found(job.source, Hypothesis((), 0.0, 0.0, "end"), [wish], [kept])]
