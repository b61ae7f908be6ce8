"""Search for decoding settings that are significantly better than the current ones on held-out pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from sacrebleu.significance import PairedTest, Result

from penwright.config import DecodingSettings
from penwright.errors import PenwrightError, Say, say_nothing
from penwright.evaluation.translation import bleu_for, translation_scores
from penwright.translation.alignment import TokenPair, coverage, cross_attention
from penwright.translation.constraints.requirements import NO_CONSTRAINTS
from penwright.translation.results import Candidate
from penwright.translation.translator import Translator

LENGTH_PENALTIES = tuple(n / 5 for n in range(11))
COVERAGE_PENALTIES = (0.0, 0.05, 0.1, 0.2, 0.4)
FEWEST = 20  # minimum number of pairs for tuning
SIGNIFICANCE_LEVEL = 0.05  # a gain counts as an improvement if its p-value is below this threshold


class Trial(NamedTuple):
    """A pair of penalties, and the scores of the hypotheses after reranking with these penalties."""

    length_penalty: float
    coverage_penalty: float
    bleu: float
    chrf: float


@dataclass(frozen=True)
class Tuning:
    """The result of tuning: all trials, and the scores of a full search with the current and the best settings."""

    trials: tuple[Trial, ...]  # trials in descending order of BLEU plus chrF
    before: float  # BLEU with the current settings, on pairs that the trials did not use
    after: float  # BLEU with the best settings, on the same pairs
    p: float  # p-value of the difference in BLEU (paired bootstrap, Koehn 2004)
    before_chrf: float
    after_chrf: float

    @property
    def is_better(self) -> bool:
        """Whether BLEU rose significantly, and chrF did not fall by as much as BLEU rose."""
        gain, chrf_gain = self.after - self.before, self.after_chrf - self.before_chrf
        return gain > 0 and self.p < SIGNIFICANCE_LEVEL and gain + chrf_gain > 0


def tune(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    say: Say = say_nothing,
    current: DecodingSettings | None = None,
) -> Tuning:
    """Choose settings on half of the pairs, and compare them with the current settings on the other half.

    By default, the current settings are those of the translator. Pairs with the same source are in the same half. The
    n-best list of each source is generated once, then reranked with all settings. Raises PenwrightError for fewer than
    FEWEST pairs, or fewer than 2 different sources.
    """
    half = {source: number % 2 for number, source in enumerate(dict.fromkeys(sources))}
    if len(sources) < FEWEST or len(half) < 2:
        needed = f"tuning needs at least {FEWEST}, with at least 2 different sources"
        raise PenwrightError(f"the number of pairs is {len(sources)}, but {needed}. Pass more pairs")
    pairs = list(zip(sources, references, strict=True))
    first, second = ([pair for pair in pairs if half[pair[0]] == number] for number in (0, 1))
    current, chosen_on = current or translator.defaults, [source for source, _ in first]
    say(f"finding the {current.beam_size} best translations of {len(chosen_on):,} sources")
    n_best, constraints = current.beam_size, NO_CONSTRAINTS
    translations = translator.translate(chosen_on, settings=current, n_best=n_best, constraints=constraints)
    lists = [translation.candidates for translation in translations]
    say(f"reranking the translations with {len(LENGTH_PENALTIES) * len(COVERAGE_PENALTIES)} combinations of penalties")
    covered = _coverages(translator, chosen_on, lists)
    trials = [
        Trial(*settings, *_bleu_and_chrf(_ranked(lists, covered, *settings), [reference for _, reference in first]))
        for settings in product(LENGTH_PENALTIES, COVERAGE_PENALTIES)
    ]
    trials.sort(key=lambda trial: -(trial.bleu + trial.chrf))
    sources, references = zip(*second, strict=True)
    say(f"comparing the best settings with the current ones on the other {len(sources):,} sources")
    before, after = (
        [each.text for each in translator.translate(sources, settings=settings, constraints=constraints)]
        for settings in (current, apply_trial(current, trials[0]))
    )
    p = 1.0 if before == after else _p_value(before, after, references)
    (old_bleu, old_chrf), (new_bleu, new_chrf) = (_bleu_and_chrf(each, references) for each in (before, after))
    return Tuning(tuple(trials), old_bleu, new_bleu, p, old_chrf, new_chrf)


def apply_trial(settings: DecodingSettings, trial: Trial) -> DecodingSettings:
    """Return the settings with the penalties of the trial."""
    return settings.model_copy(
        update={"length_penalty": trial.length_penalty, "coverage_penalty": trial.coverage_penalty}
    )


def _coverages(
    translator: Translator, sources: Sequence[str], lists: Sequence[Sequence[Candidate]]
) -> list[list[float]]:
    tokenizer = translator.tokenizer
    pairs = [
        TokenPair(tokenizer.encode(source), tokenizer.target.encode(candidate.text))
        for source, candidates in zip(sources, lists, strict=True)
        for candidate in candidates
    ]
    maps = cross_attention(translator.model, tokenizer, pairs)
    coverages = iter(map(coverage, maps))
    return [[next(coverages) for _ in candidates] for candidates in lists]


def _ranked(
    lists: Sequence[Sequence[Candidate]],
    covered: Sequence[Sequence[float]],
    length_penalty: float,
    coverage_penalty: float,
) -> list[str]:
    def score(candidate: Candidate, got: float) -> float:
        return candidate.log_prob / max(1, len(candidate.pieces)) ** length_penalty + coverage_penalty * got

    return [
        max(zip(candidates, coverages, strict=True), key=lambda each: score(*each))[0].text
        for candidates, coverages in zip(lists, covered, strict=True)
    ]


def _p_value(before: Sequence[str], after: Sequence[str], references: Sequence[str]) -> float:
    test = PairedTest(
        [("before", before), ("after", after)], {"BLEU": bleu_for(references)}, [list(references)], test_type="bs"
    )
    result = test()[1]["BLEU"][1]
    assert isinstance(result, Result) and result.p_value is not None
    return float(result.p_value)


def _bleu_and_chrf(translations: Sequence[str], references: Sequence[str]) -> tuple[float, float]:
    bleu, chrf = translation_scores(translations, references)
    return bleu.value, chrf.value
