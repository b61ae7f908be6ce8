"""A translator that obeys: glossary, protected spans, prefixes."""

import random
import re
from collections.abc import Callable

import pytest
import torch

from penwright.config import DecodingSettings
from penwright.decoding.hypotheses import Hypothesis
from penwright.model.encoder_decoder import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.translation.constraints.glossary import Entry, Glossary
from penwright.translation.constraints.protection import Protection
from penwright.translation.constraints.requirements import (
    NO_DRAFT,
    Constraint,
    Constraints,
    constraint_results,
    first_place,
    places_of,
)
from penwright.translation.translator import Translator

TEXT = "the dog sees a cat near his house and the cat runs away from it, so he barks. " * 3


@pytest.fixture(scope="session")
def pieces() -> Tokenizer:
    return train_tokenizer("bpe", [TEXT], 300)


@pytest.fixture
def translator(translating_model: Callable[..., EncoderDecoder], pieces: Tokenizer) -> Translator:
    model = translating_model(pieces.vocab_size, context_length=96).double()
    return Translator(model, pieces, DecodingSettings(beam_size=3))


def glossary(**terms: str) -> Constraints:
    return Constraints(Glossary(tuple(Entry(source, tuple(target.split("|"))) for source, target in terms.items())))


def stands(word: str, text: str) -> int:
    return len(re.findall(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", text, re.IGNORECASE))


def test_a_term_stands_once_where_the_source_has_it(translator: Translator) -> None:
    texts = ["the dog runs", "a cat sees the dog and the house", "no term", "dog"]
    wished = {"dog": "barker", "cat": "purrer", "house": "home sweet home"}
    for text, translation in zip(texts, translator.translate(texts, constraints=glossary(**wished)), strict=True):
        for source, target in wished.items():
            assert stands(target, translation.text) == text.split().count(source), translation.text


def test_a_translation_does_not_begin_with_the_space_before_its_first_term(pieces: Tokenizer) -> None:
    tokens = tuple(pieces.encode("  cat runs"))
    wishes = [Constraint(0, 3, ("cat",), False), Constraint(4, 7, ("runs",), True)]
    hypothesis = Hypothesis(tokens, -1.0, -1.0, "end", (-1.0,) * len(tokens))
    text, results = constraint_results("Kat ren", wishes, hypothesis, pieces, NO_DRAFT)
    assert text == "cat runs"
    assert [(each.state, each.target_start, each.target_end) for each in results] == [("found", 0, 3), ("found", 4, 8)]


def test_what_became_of_each_term_is_said_with_its_places(translator: Translator) -> None:
    text = "run\nthe dog and the cat, dog"
    (translation,) = translator.translate([text], constraints=glossary(dog="barker|barkers", cat="purrer"))
    outcomes = translation.candidates[0].outcomes
    assert [outcome.source for outcome in outcomes] == ["dog", "cat", "dog"]
    assert {outcome.state for outcome in outcomes} == {"forced"}
    for outcome in outcomes:
        assert text[outcome.start : outcome.end] == outcome.source
        assert translation.text[outcome.target_start : outcome.target_end] == outcome.target
    assert len({outcome.target_start for outcome in outcomes}) == 3


def test_what_the_model_writes_by_itself_is_found_and_left_alone(translator: Translator) -> None:
    (plain,) = translator.translate(["the dog runs"])
    word = next(
        word for word in re.findall(r"(?<![^\W_])[a-z]+(?![^\W_])", plain.text) if stands(word, plain.text) == 1
    )
    (asked,) = translator.translate(["the dog runs"], constraints=glossary(dog=word))
    assert asked.text == plain.text
    assert [outcome.state for outcome in asked.candidates[0].outcomes] == ["found"]


def test_other_sentences_do_not_notice_a_glossary(translator: Translator) -> None:
    texts = ["the house", "a dog", "so he runs"]
    plain = [each.text for each in translator.translate(texts)]
    asked = [each.text for each in translator.translate(texts, constraints=glossary(dog="barker"))]
    assert plain[0] == asked[0] and plain[2] == asked[2] and "barker" in asked[1].lower()
    assert asked[1] == translator.translate(texts[1:2], constraints=glossary(dog="barker"))[0].text


def test_each_text_can_have_a_glossary_of_its_own(translator: Translator) -> None:
    first, second = translator.translate(["a dog"] * 2, constraints=[glossary(dog="barker"), glossary(dog="runner")])
    assert stands("barker", first.text) and stands("runner", second.text)


def test_a_bias_is_not_an_order(translator: Translator) -> None:
    demands = Constraints(Glossary((Entry("dog", ("xylophone",)),)), bias=0.01)
    (weak,) = translator.translate(["the dog"], constraints=demands)
    assert [outcome.state for outcome in weak.candidates[0].outcomes] == ["missed"]
    assert "the glossary's translation is missing: dog" in weak.warnings


SPANS = [
    lambda chance: f"https://{chance.choice('abc')}.example/{chance.randrange(99)}?q={chance.choice('xyz')}#ü",
    lambda chance: f"{chance.choice('abc')}.{chance.randrange(99)}@mail.example.org",
    lambda chance: f"{chance.randrange(1, 999)}.{chance.randrange(9)} {chance.choice(['kg', 'km/h', '%', '€', '°C'])}",
    lambda chance: f"`f({chance.randrange(9)}) → {{}}`",
    lambda chance: f"<a id={chance.randrange(99)}>",
    lambda chance: "{" + chance.choice("abc") * 3 + "}",
    lambda chance: f"#{chance.randrange(999)}#",
]


def sentences_with_spans(n: int) -> list[tuple[str, list[str]]]:
    chance = random.Random(0)
    made = []
    for _ in range(n):
        spans = [chance.choice(SPANS)(chance) for _ in range(chance.choice([1, 1, 2]))]
        words = chance.choices(TEXT.split(), k=chance.randrange(1, 7))
        for span in spans:
            words.insert(chance.randrange(len(words) + 1), span)
        made.append((" ".join(words), spans))
    return made


@pytest.mark.parametrize(("kind", "n"), [("bpe", 120), ("characters", 60), ("unigram", 60)])
def test_protected_spans_come_through_letter_by_letter(
    translating_model: Callable[..., EncoderDecoder], kind: str, n: int
) -> None:
    tokenizer = train_tokenizer(kind, [TEXT], 300 if kind != "characters" else None)  # type: ignore[arg-type]
    model = translating_model(tokenizer.vocab_size, context_length=160)
    translator = Translator(model, tokenizer, DecodingSettings(beam_size=2))
    made = sentences_with_spans(n)
    demands = Constraints(protection=Protection([r"#\d+#"]))
    translations = translator.translate([text for text, _ in made], constraints=demands, max_new_tokens=40)
    for (text, spans), translation in zip(made, translations, strict=True):
        for span in spans:
            assert translation.text.count(span) == text.count(span), (text, translation.text)


def test_characters_that_a_model_cannot_write_are_put_in_afterwards(
    translating_model: Callable[..., EncoderDecoder], characters: Tokenizer
) -> None:
    translator = Translator(translating_model(characters.vocab_size), characters)
    (translation,) = translator.translate(["abc `Ω` d"])
    (outcome,) = translation.candidates[0].outcomes
    assert translation.text.count("`Ω`") == 1 and outcome.state == "inserted"
    assert translation.text[outcome.target_start : outcome.target_end] == "`Ω`"
    assert any("inserted after translation" in warning for warning in translation.warnings)


def test_a_line_that_is_a_span_stays_as_it_is(translator: Translator) -> None:
    assert translator.translate(["  https://example.org/x\n<b>"])[0].text == "https://example.org/x\n<b>"


def test_a_span_is_not_cut_when_a_text_is_translated_in_parts(
    translating_model: Callable[..., EncoderDecoder], pieces: Tokenizer
) -> None:
    translator = Translator(translating_model(pieces.vocab_size, context_length=40), pieces, max_source_tokens=12)
    span = "https://example.org/a.b,c;d/e"
    (translation,) = translator.translate([f"the dog sees a cat near {span} and the cat runs away"])
    assert translation.text.count(span) == 1


def test_a_translation_begins_with_its_prefix(translator: Translator) -> None:
    texts, prefixes = ["the dog", "a cat", "he runs"], ["a house", "", "barks "]
    first, second, third = translator.translate(texts, prefixes=prefixes, constraints=glossary(dog="barker"))
    assert first.text.startswith("a house") and stands("barker", first.text)
    assert second == translator.translate(["a cat"])[0]
    assert re.match(r"barks(?![\w-])", third.text)


def test_a_model_that_would_break_a_line_does_not(
    translating_model: Callable[..., EncoderDecoder], raw_bytes: Tokenizer
) -> None:
    model = translating_model(raw_bytes.vocab_size, output_bias=True, context_length=32)
    with torch.no_grad():
        model.output.bias[ord("\n")] = 100.0
    translator = Translator(model, raw_bytes)
    assert "\n" not in translator.translate(["ab"])[0].text + translator.sample(["ab"])[0].text


@pytest.mark.parametrize(
    "text",
    ["", "   ", "🙂", "ᚠᛇᚻ᛫ᛒᛦᚦ", "THE DOG SEES A CAT", "dog " * 10_000, "dog" * 400, "\ud800 dog \x00", "dog\u2028dog"],
)
def test_odd_texts_with_a_glossary_give_a_line_each(translator: Translator, text: str) -> None:
    demands = glossary(dog="barker")
    (translation,) = translator.translate([text], constraints=demands, beam_size=1, max_new_tokens=12)
    assert translation.text.count("\n") == 0
    translation.text.encode("utf-8")


def test_wished_words_come_as_they_are_written(translator: Translator) -> None:
    (plain,) = translator.translate(["the dog runs"])
    word = next(word for word in re.findall(r"(?<![^\W_])[a-z]+(?![^\W_])", plain.text) if stands(word, plain.text))
    (asked,) = translator.translate(["the dog runs"], constraints=glossary(dog=word.upper()))
    assert stands(word.upper(), asked.text) and [o.state for o in asked.candidates[0].outcomes] == ["forced"]


@pytest.mark.parametrize(("text", "found"), [("我看见了宝玉。", True), ("我用Python写", True), ("Pythons", False)])
def test_a_wish_is_whole_between_letters_of_a_script_without_spaces(text: str, found: bool) -> None:
    wish = Constraint(0, 1, ("宝玉", "Python"), False, False)
    assert (first_place(text, wish, set()) is not None) is found


def test_what_stands_inside_of_another_wish_or_a_longer_span_is_not_found_there() -> None:
    york, new_york = Constraint(0, 4, ("York",), False, True), Constraint(9, 17, ("Neu York",), False, True)
    assert places_of("Neu York und nichts", [york, new_york]) == [None, (0, 8)]
    assert places_of("York und Neu York", [new_york, york]) == [(9, 17), (0, 4)]
    one, eleven = Constraint(0, 4, ("1 kg",), True, False), Constraint(9, 14, ("11 kg",), True, False)
    assert places_of("11 kg", [one, eleven]) == [None, (0, 5)]
    assert places_of("AB-12 und nichts", [Constraint(0, 4, ("AB-1",), True, False)]) == [None]
    assert places_of(
        "(%s) und <b>fett</b>", [Constraint(0, 2, ("%s",), True, False), Constraint(0, 3, ("<b>",), True, False)]
    ) == [
        (1, 3),
        (9, 12),
    ]
