"""Alternatives, samples and diverse translations."""

import re
from collections.abc import Callable

import pytest
import torch

from penwright.config import DecodingSettings
from penwright.errors import PenwrightError, UnknownArgument, UsageError
from penwright.model.quantized import to_precision
from penwright.model.transformer import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.translation.constraints.glossary import Entry, Glossary
from penwright.translation.constraints.requirements import Constraints
from penwright.translation.translator import Translator

TEXT = "the dog sees a cat near his house and the cat runs away from it, so he barks. " * 3


@pytest.fixture
def translator(translating_model: Callable[..., EncoderDecoder]) -> Translator:
    tokenizer: Tokenizer = train_tokenizer("bpe", [TEXT], 300)
    model = translating_model(tokenizer.vocab_size, context_length=64).double()
    return Translator(model, tokenizer, DecodingSettings(beam_size=3))


def test_alternatives_are_distinct_next_words_after_the_prefix(translator: Translator) -> None:
    prefix = "a house "
    found = translator.alternatives("the dog", prefix, n=4)
    assert 1 < len(found) <= 4 and len({each.word for each in found}) == len(found)
    for each in found:
        assert each.word and each.text.startswith("a house")
        assert each.text[len("a house") :].lstrip().startswith(each.word)
    assert [each.log_prob for each in found] == sorted((each.log_prob for each in found), reverse=True)


def test_alternatives_of_an_int8_model_are_nearly_those_of_its_own_weights(translator: Translator) -> None:
    expected = translator.alternatives("the dog", "a house ", n=3)
    to_precision(translator.model.float(), "int8")
    found = translator.alternatives("the dog", "a house ", n=3)
    assert [each.log_prob for each in found] == pytest.approx([each.log_prob for each in expected], abs=0.5)


@pytest.mark.parametrize("limit", [None, 2, 3, 4, 5])
def test_characters_are_complete_in_every_search_mode(translator: Translator, limit: int | None) -> None:
    texts = ["the dog", "a cat runs away"]
    found = translator.translate(texts, n_best=3, max_new_tokens=limit)
    found += translator.translate(texts, beam_size=1, max_new_tokens=limit)
    found += translator.translate(texts, max_new_tokens=limit, prefixes="é")
    if limit is None:
        found += translator.diverse(texts, 3) + translator.sample(texts, 3, DecodingSettings(temperature=2.0))
        found += translator.translate(texts, constraints=Constraints(Glossary((Entry("dog", ("漢字",)),))))
    written = "".join(candidate.text for each in found for candidate in each.candidates)
    written += "".join(each.text + each.word for each in translator.alternatives("the dog", "a house ", n=9))
    assert "\N{REPLACEMENT CHARACTER}" not in written and len(written.encode()) > len(written)
    assert not {*map(chr, range(0x20))} & set(written) - {"\t"}  # no control characters either


def test_best_alternative_to_an_empty_prefix_is_the_greedy_start(translator: Translator) -> None:
    first = translator.alternatives("the dog", "", n=3)[0]
    (greedy,) = translator.translate(["the dog"], beam_size=1)
    assert first.log_prob == pytest.approx(greedy.candidates[0].pieces[0].log_prob, abs=1e-4)


def test_diverged_model_is_reported(translator: Translator) -> None:
    torch.nn.init.constant_(translator.model.output.weight, float("nan"))
    with pytest.raises(PenwrightError, match="diverged"):
        translator.diverse(["the dog"], 3)


@pytest.mark.parametrize("source", ["", "a\nb", "the dog runs " * 40])
def test_alternatives_require_a_single_sentence(translator: Translator, source: str) -> None:
    with pytest.raises(UsageError, match="single sentence"):
        translator.alternatives(source, "")


def test_samples_depend_only_on_text_and_seed(translator: Translator) -> None:
    settings = DecodingSettings(temperature=1.5, seed=3)
    several = translator.sample(["the dog", "a cat runs", ""], 3, settings)
    (alone,) = translator.sample(["a cat runs"], 3, settings)
    assert [c.text for c in several[1].candidates] == [c.text for c in alone.candidates]
    assert len({c.text for c in alone.candidates}) == 3
    (other,) = translator.sample(["a cat runs"], 3, settings.model_copy(update={"seed": 4}))
    assert other.text != alone.text


def test_samples_and_diverse_translations_keep_to_their_settings(translator: Translator) -> None:
    several = [translator.sample("the dog", 2, max_new_tokens=3), translator.diverse("the dog", 2, max_new_tokens=3)]
    for (found,) in several:
        assert all(len(candidate.pieces) <= 3 for candidate in found.candidates)
    with pytest.raises(UnknownArgument, match="banned_words has no effect in this call"):
        translator.sample("the dog", banned_words=["cat"])
    for use in (translator.sample, translator.diverse):
        with pytest.raises(UsageError, match=r"number of translations \(0\) must be at least 1"):
            use("the dog", 0)


def test_sample_at_temperature_zero_is_greedy(translator: Translator) -> None:
    (sample,) = translator.sample(["the dog"], 1, DecodingSettings(temperature=0.0))
    assert sample.text == translator.translate(["the dog"], beam_size=1)[0].text


def test_diverse_translations_start_with_the_best_and_vary_at_least_as_much(translator: Translator) -> None:
    texts = ["the dog", "a cat runs away"]
    best = translator.translate(texts, n_best=3)
    for usual, found in zip(best, translator.diverse(texts, 3, strength=5.0), strict=True):
        assert found.candidates[0].text == usual.text
        assert 1 < len({candidate.text for candidate in found.candidates}) == len(found.candidates)
        openings = [{candidate.text[:6] for candidate in each.candidates} for each in (usual, found)]
        assert len(openings[1]) >= len(openings[0])


def test_diverse_translations_and_alternatives_contain_the_required_terms(translator: Translator) -> None:
    required = Constraints(Glossary((Entry("dog", ("barker",)),)))
    (found,) = translator.diverse("the dog", 3, constraints=required)
    texts = [candidate.text for candidate in found.candidates]
    texts += [each.text for each in translator.alternatives("the dog", "a ", 3, required)]
    assert len(texts) > 3
    for text in texts:
        assert len(re.findall(r"\bbarker\b", text)) == 1, text
    assert not any("missing" in warning for warning in found.warnings)


def test_sampled_translations_obey_biases_for_texts(translator: Translator) -> None:
    (found,) = translator.sample("the dog", 3, logit_bias={" cat": 50.0}, max_new_tokens=5)
    assert {candidate.text.strip() for candidate in found.candidates} == {"cat cat cat cat cat"}


def test_no_character_is_cut_by_a_required_term(translating_model: Callable[..., EncoderDecoder]) -> None:
    tokenizer = train_tokenizer("bpe", [TEXT], 300)
    model = translating_model(tokenizer.vocab_size, seed=1, context_length=64, output_bias=True).double()
    with torch.no_grad():
        model.output.bias[tokenizer.end_id] = -100.0
    translator = Translator(model, tokenizer, DecodingSettings(beam_size=2))
    required = Constraints(Glossary((Entry("dog", ("漢字",)),)))
    for limit in (10, 11, 14, 15):  # a term once cut a character at these limits
        for found in translator.translate(["the dog", "a dog runs"], constraints=required, max_new_tokens=limit):
            assert "漢字" in found.text and "\N{REPLACEMENT CHARACTER}" not in found.text
