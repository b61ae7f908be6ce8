"""Constraints on translations: glossary, protected spans, prefixes."""

import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch

from penwright.config import DecodingSettings
from penwright.decoding.hypotheses import Hypothesis
from penwright.model.transformer import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.translation.constraints import revision
from penwright.translation.constraints.glossary import Entry, Glossary
from penwright.translation.constraints.protection import Protection
from penwright.translation.constraints.requirements import (
    NO_DRAFT,
    Constraint,
    Constraints,
    TargetWord,
    constraint_results,
    constraints_of,
    find_span,
    find_spans,
)
from penwright.translation.constraints.revision import HiddenSource, Scorer, words_of
from penwright.translation.translator import Translator

TEXT = "the dog sees a cat near his house and the cat runs away from it, so he barks. " * 3


@pytest.fixture(scope="session")
def pieces() -> Tokenizer:
    return train_tokenizer("bpe", [TEXT], 300)


@pytest.fixture
def translator(translating_model: Callable[..., EncoderDecoder], pieces: Tokenizer) -> Translator:
    model = translating_model(pieces.vocab_size, context_length=96).double()
    return Translator(model, pieces, DecodingSettings(beam_size=3, max_new_tokens=24))


def glossary(**terms: str) -> Constraints:
    return Constraints(Glossary(tuple(Entry(source, tuple(target.split("|"))) for source, target in terms.items())))


def occurrences(word: str, text: str) -> int:
    return len(re.findall(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", text, re.IGNORECASE))


def test_term_occurs_once_per_occurrence_in_the_source(translator: Translator) -> None:
    texts = ["the dog runs", "a cat sees the dog and the house", "no term", "dog"]
    terms = {"dog": "barker", "cat": "purrer", "house": "home sweet home"}
    for text, translation in zip(texts, translator.translate(texts, constraints=glossary(**terms)), strict=True):
        for source, target in terms.items():
            assert occurrences(target, translation.text) == text.split().count(source), translation.text


def test_leading_space_of_a_first_term_is_stripped(pieces: Tokenizer) -> None:
    tokens = tuple(pieces.encode("  cat runs"))
    required = [Constraint(0, 3, ("cat",), False), Constraint(4, 7, ("runs",), True)]
    hypothesis = Hypothesis(tokens, -1.0, -1.0, "end", (-1.0,) * len(tokens))
    text, results = constraint_results("Kat ren", required, hypothesis, pieces, NO_DRAFT)
    assert text == "cat runs"
    assert [(each.state, each.target_start, each.target_end) for each in results] == [("found", 0, 3), ("found", 4, 8)]


def test_outcome_of_each_term_is_reported_with_its_positions(translator: Translator) -> None:
    text = "run\nthe dog and the cat, dog"
    (translation,) = translator.translate([text], constraints=glossary(dog="barker|barkers", cat="purrer"))
    outcomes = translation.candidates[0].outcomes
    assert [outcome.source for outcome in outcomes] == ["dog", "cat", "dog"]
    assert {outcome.state for outcome in outcomes} == {"forced"}
    for outcome in outcomes:
        assert text[outcome.start : outcome.end] == outcome.source
        assert translation.text[outcome.target_start : outcome.target_end] == outcome.target
    assert len({outcome.target_start for outcome in outcomes}) == 3


def test_term_in_the_unconstrained_translation_is_left_unchanged(translator: Translator) -> None:
    (plain,) = translator.translate(["the dog runs"])
    word = next(
        word for word in re.findall(r"(?<![^\W_])[a-z]+(?![^\W_])", plain.text) if occurrences(word, plain.text) == 1
    )
    (constrained,) = translator.translate(["the dog runs"], constraints=glossary(dog=word))
    assert constrained.text == plain.text
    assert [outcome.state for outcome in constrained.candidates[0].outcomes] == ["found"]


def test_glossary_does_not_change_sentences_without_its_terms(translator: Translator) -> None:
    texts = ["the house", "a dog", "so he runs"]
    plain = [each.text for each in translator.translate(texts)]
    constrained = [each.text for each in translator.translate(texts, constraints=glossary(dog="barker"))]
    assert plain[0] == constrained[0] and plain[2] == constrained[2] and "barker" in constrained[1].lower()
    assert constrained[1] == translator.translate(texts[1:2], constraints=glossary(dog="barker"))[0].text


def test_each_text_can_have_its_own_glossary(translator: Translator) -> None:
    first, second = translator.translate(["a dog"] * 2, constraints=[glossary(dog="barker"), glossary(dog="runner")])
    assert occurrences("barker", first.text) and occurrences("runner", second.text)


def test_weak_bias_does_not_force_a_term(translator: Translator) -> None:
    constraints = Constraints(Glossary((Entry("dog", ("xylophone",)),)), bias=0.01)
    (weak,) = translator.translate(["the dog"], constraints=constraints)
    assert [outcome.state for outcome in weak.candidates[0].outcomes] == ["missed"]
    assert "the glossary's translation is missing: dog" in weak.warnings


SPANS = [
    lambda rng: f"https://{rng.choice('abc')}.example/{rng.randrange(99)}?q={rng.choice('xyz')}#ü",
    lambda rng: f"{rng.choice('abc')}.{rng.randrange(99)}@mail.example.org",
    lambda rng: f"{rng.randrange(1, 999)}.{rng.randrange(9)} {rng.choice(['kg', 'km/h', '%', '€', '°C'])}",
    lambda rng: f"`f({rng.randrange(9)}) → {{}}`",
    lambda rng: f"<a id={rng.randrange(99)}>",
    lambda rng: "{" + rng.choice("abc") * 3 + "}",
    lambda rng: f"#{rng.randrange(999)}#",
]


def sentences_with_spans(n: int) -> list[tuple[str, list[str]]]:
    rng = random.Random(0)
    made = []
    for _ in range(n):
        spans = [rng.choice(SPANS)(rng) for _ in range(rng.choice([1, 1, 2]))]
        words = rng.choices(TEXT.split(), k=rng.randrange(1, 7))
        for span in spans:
            words.insert(rng.randrange(len(words) + 1), span)
        made.append((" ".join(words), spans))
    return made


@pytest.mark.parametrize(("kind", "n"), [("bpe", 60), ("characters", 30), ("unigram", 30)])
def test_protected_spans_are_copied_exactly(
    translating_model: Callable[..., EncoderDecoder], kind: str, n: int
) -> None:
    tokenizer = train_tokenizer(kind, [TEXT], 300 if kind != "characters" else None)  # type: ignore[arg-type]
    model = translating_model(tokenizer.vocab_size, context_length=160)
    translator = Translator(model, tokenizer, DecodingSettings(beam_size=2))
    made = sentences_with_spans(n)
    constraints = Constraints(protection=Protection([r"#\d+#"]))
    translations = translator.translate([text for text, _ in made], constraints=constraints, max_new_tokens=40)
    for (text, spans), translation in zip(made, translations, strict=True):
        for span in spans:
            assert translation.text.count(span) == text.count(span), (text, translation.text)


def test_span_with_unknown_characters_is_inserted_afterwards(
    translating_model: Callable[..., EncoderDecoder], characters: Tokenizer
) -> None:
    translator = Translator(translating_model(characters.vocab_size), characters)
    (translation,) = translator.translate(["abc `Ω` d"])
    (outcome,) = translation.candidates[0].outcomes
    assert translation.text.count("`Ω`") == 1 and outcome.state == "inserted"
    assert translation.text[outcome.target_start : outcome.target_end] == "`Ω`"
    assert any("inserted after translation" in warning for warning in translation.warnings)


def test_line_that_is_a_protected_span_is_unchanged(translator: Translator) -> None:
    assert translator.translate(["  https://example.org/x\n<b>"])[0].text == "https://example.org/x\n<b>"


@pytest.mark.parametrize(
    ("terms", "required"),
    [
        ({"20 ft container": "Frachtbehälter", "container": "Behälter"}, ["Frachtbehälter"]),
        ({"20 ft": "20 Fuß", "container": "Behälter"}, ["20 ft", "Behälter"]),
        ({"ft container": "Fußbehälter", "container": "Behälter"}, ["20 ft", "Behälter"]),
    ],
)
def test_term_outranks_the_spans_inside_it(terms: dict[str, str], required: list[str]) -> None:
    for text in ("a 20 ft container", "20 ft container in"):
        assert [each.forms[0] for each in constraints_of(text, glossary(**terms))] == required


def test_protected_span_is_not_split_between_parts(
    translating_model: Callable[..., EncoderDecoder], pieces: Tokenizer
) -> None:
    translator = Translator(translating_model(pieces.vocab_size, context_length=40), pieces, max_source_tokens=12)
    span = "https://example.org/a.b,c;d/e"
    (translation,) = translator.translate([f"the dog sees a cat near {span} and the cat runs away"])
    assert translation.text.count(span) == 1


def test_term_at_a_cut_is_required(translating_model: Callable[..., EncoderDecoder], pieces: Tokenizer) -> None:
    translator = Translator(translating_model(pieces.vocab_size, context_length=40), pieces, max_source_tokens=12)
    text = "the dog sees a cat near his house and the cat runs away from it"
    terms = [glossary(**{" ".join(pair): "barker"}) for pair in pairwise(text.split())]
    translations = translator.translate([text] * len(terms), constraints=terms)
    assert all(occurrences("barker", translation.text) for translation in translations)


def test_translation_starts_with_its_prefix(translator: Translator) -> None:
    texts, prefixes = ["the dog", "a cat", "he runs"], ["a house", "", "barks "]
    first, second, third = translator.translate(texts, prefixes=prefixes, constraints=glossary(dog="barker"))
    assert first.text.startswith("a house") and occurrences("barker", first.text)
    assert second == translator.translate(["a cat"])[0]
    assert re.match(r"barks(?![\w-])", third.text)


@pytest.mark.parametrize("prefix", ["a house", "a house "])
def test_no_word_of_the_prefix_is_replaced_by_a_term(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    def last_of_prefix(scorer: Scorer, pairs: Sequence[HiddenSource], _: object) -> list[TargetWord | None]:
        return [words_of(pair.target, scorer.tokenizer)[1] for pair in pairs]

    monkeypatch.setattr(revision, "replaced_words", last_of_prefix)
    (found,) = translator.translate(["the dog"], prefixes=prefix, constraints=glossary(dog="barker"))
    assert occurrences("house", found.text) and occurrences("barker", found.text), found.text


def test_prefix_may_repeat_a_required_span(translator: Translator) -> None:
    (found,) = translator.translate(["a 5 kg dog"], prefixes="5 kg, 5 kg ")
    assert re.match(r"5 kg, 5 kg\b", found.text)


def test_translation_never_contains_a_line_break(
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
def test_unusual_texts_with_a_glossary_give_one_line(translator: Translator, text: str) -> None:
    constraints = glossary(dog="barker")
    (translation,) = translator.translate([text], constraints=constraints, beam_size=1, max_new_tokens=12)
    assert translation.text.count("\n") == 0
    translation.text.encode("utf-8")


def test_required_word_keeps_its_case(translator: Translator) -> None:
    (plain,) = translator.translate(["the dog runs"])
    word = next(
        word for word in re.findall(r"(?<![^\W_])[a-z]+(?![^\W_])", plain.text) if occurrences(word, plain.text)
    )
    (constrained,) = translator.translate(["the dog runs"], constraints=glossary(dog=word.upper()))
    assert occurrences(word.upper(), constrained.text) and [o.state for o in constrained.candidates[0].outcomes] == [
        "forced"
    ]


@pytest.mark.parametrize(("text", "found"), [("我看见了宝玉。", True), ("我用Python写", True), ("Pythons", False)])
def test_required_word_is_whole_in_scripts_without_spaces(text: str, found: bool) -> None:
    required = Constraint(0, 1, ("宝玉", "Python"), False, False)
    assert (find_span(text, required, set()) is not None) is found


def test_match_inside_another_term_or_longer_span_does_not_count() -> None:
    york, new_york = Constraint(0, 4, ("York",), False, True), Constraint(9, 17, ("Neu York",), False, True)
    assert find_spans("Neu York und nichts", [york, new_york]) == [None, (0, 8)]
    assert find_spans("York und Neu York", [new_york, york]) == [(9, 17), (0, 4)]
    one, eleven = Constraint(0, 4, ("1 kg",), True, False), Constraint(9, 14, ("11 kg",), True, False)
    assert find_spans("11 kg", [one, eleven]) == [None, (0, 5)]
    assert find_spans("AB-12 und nichts", [Constraint(0, 4, ("AB-1",), True, False)]) == [None]
    assert find_spans(
        "(%s) und <b>fett</b>", [Constraint(0, 2, ("%s",), True, False), Constraint(0, 3, ("<b>",), True, False)]
    ) == [
        (1, 3),
        (9, 12),
    ]


@pytest.mark.parametrize("mark", ["\x0b", "\r", "\x1f"])
def test_span_with_a_control_character_is_copied(translator: Translator, mark: str) -> None:
    plain, found = translator.translate(["a cat", f"the `a{mark}b` dog"])
    assert f"`a{mark}b`" in found.text and plain.text == translator.translate("a cat")[0].text


@pytest.mark.parametrize(("text", "is_found"), [("यह कम है", True), ("यह कमी है", False), ("मीकम", False)])
def test_vowel_sign_is_part_of_the_word(text: str, is_found: bool) -> None:
    assert (find_span(text, Constraint(0, 1, ("कम",), False), set()) is not None) is is_found
