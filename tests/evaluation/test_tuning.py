"""Tuning of decoding settings on held-out pairs."""

import pytest
import torch

from penwright.config import DecodingSettings, ModelSettings
from penwright.errors import PenwrightError
from penwright.evaluation import tuning
from penwright.evaluation.tuning import COVERAGE_PENALTIES, LENGTH_PENALTIES, Tuning, apply_trial, tune
from penwright.model.transformer import EncoderDecoder
from penwright.tokenizers.training import train_tokenizer
from penwright.translation.translator import Translator

SOURCES = ["abc d", "dcba", "a b c", "dd aa bb"] * 6


@pytest.fixture
def translator() -> Translator:
    torch.manual_seed(5)
    tokenizer = train_tokenizer("characters", ["abcd "])
    settings = {"d_model": 16, "n_layers": 1, "n_heads": 2, "context_length": 32, "zero_init_outputs": False}
    model = EncoderDecoder(tokenizer.vocab_size, ModelSettings.model_validate(settings)).double().eval()
    return Translator(model, tokenizer, DecodingSettings(beam_size=3))


def test_all_settings_are_tried_and_sorted_best_first(translator: Translator) -> None:
    tuning = tune(translator, SOURCES, ["a b c d"] * len(SOURCES))
    assert len(tuning.trials) == len(LENGTH_PENALTIES) * len(COVERAGE_PENALTIES)
    sums = [trial.bleu + trial.chrf for trial in tuning.trials]
    assert sums == sorted(sums, reverse=True)
    assert translator.defaults == DecodingSettings(beam_size=3)


def test_tuning_optimal_settings_reports_no_improvement(translator: Translator) -> None:
    own = [translation.text for translation in translator.translate(SOURCES)]
    tuning = tune(translator, SOURCES, own)
    assert tuning.before >= tuning.after and not tuning.is_better


@pytest.mark.parametrize(
    ("bleu", "p", "chrf", "kept"),
    [(31.0, 0.01, 50.0, True), (31.0, 0.2, 55.0, False), (31.0, 0.01, 49.5, True), (31.0, 0.01, 48.5, False)],
)
def test_settings_that_lower_chrf_more_than_they_raise_bleu_lose(
    bleu: float, p: float, chrf: float, kept: bool
) -> None:
    assert Tuning((), before=30.0, after=bleu, p=p, before_chrf=50.0, after_chrf=chrf).is_better == kept


def test_settings_are_compared_on_pairs_that_did_not_choose_them(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, translate = list[list[str]](), translator.translate
    monkeypatch.setattr(
        translator, "translate", lambda texts, **more: read.append([*texts]) or translate(texts, **more)
    )
    sources = [f"{a}{b} {c}" for a in "abcd" for b in "ab" for c in "abc" for _ in range(1 + (c == "b"))]
    tune(translator, sources, sources)
    chosen_on, *compared_on = map(set, read)
    assert len(compared_on) == 2 and compared_on[0] == compared_on[1]
    assert chosen_on | compared_on[0] == set(sources) and not chosen_on & compared_on[0]


def test_reranking_equals_the_search_with_a_coverage_penalty(translator: Translator) -> None:
    translator.defaults = DecodingSettings(beam_size=3, max_new_tokens=4, length_penalty=1.0)  # covers little
    lists = [each.candidates for each in translator.translate(SOURCES[:4], n_best=3)]
    ranked = []
    for weight in (0.0, 5.0):
        ranked.append(tuning._ranked(lists, tuning._coverages(translator, SOURCES[:4], lists), 1.0, weight))
        expected = translator.translate(SOURCES[:4], coverage_penalty=weight)
        assert ranked[-1] == [each.text for each in expected]
    assert ranked[0] != ranked[1], "the penalty has an effect"


def test_too_few_pairs_are_refused(translator: Translator) -> None:
    for sources in (SOURCES[:3], SOURCES[:1] * 20):
        with pytest.raises(PenwrightError, match=f"pairs is {len(sources)}, but tuning needs at least 20, with at"):
            tune(translator, sources, sources)


def test_tuning_recovers_settings_at_least_as_good(translator: Translator) -> None:
    wanted = translator.defaults.model_copy(update={"length_penalty": 0.0})
    original, translator.defaults = translator.defaults, wanted
    references = [translation.text for translation in translator.translate(SOURCES)]
    translator.defaults = original
    tuning = tune(translator, SOURCES, references)
    assert tuning.after >= tuning.before
    assert apply_trial(original, tuning.trials[0]).length_penalty == tuning.trials[0].length_penalty
