import re
from collections.abc import Callable, Sequence

import pytest
import torch

from penwright.config import DecodingSettings
from penwright.decoding.beam_search import beam_search
from penwright.decoding.hypotheses import BeamSettings, Hypothesis
from penwright.errors import UsageError
from penwright.model.transformer import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.translation.constraints import search
from penwright.translation.constraints.glossary import Entry, Glossary
from penwright.translation.constraints.requirements import Constraint, Constraints, DraftReport, TargetWord
from penwright.translation.constraints.revision import HiddenSource, Revision, Scorer
from penwright.translation.results import ConstrainedSegment, Segment
from penwright.translation.translator import Translator

TEXTS = ["abc", "", "j, a b", "   ", "Aé bc", "abc", "h", "abcdefgh ab. A bcdefgh. C"]


@pytest.fixture
def translator(translating_model: Callable[..., EncoderDecoder], characters: Tokenizer) -> Translator:
    model = translating_model(characters.vocab_size, context_length=24).double()  # float64: no near-ties
    return Translator(model, characters, DecodingSettings(beam_size=3))


def texts_of(translator: Translator, texts: Sequence[str]) -> list[str]:
    return [translation.text for translation in translator.translate(texts)]


def test_translations_keep_their_order_and_do_not_depend_on_the_batch(translator: Translator) -> None:
    assert texts_of(translator, TEXTS) == [texts_of(translator, [text])[0] for text in TEXTS]


@pytest.mark.parametrize(
    "constraints", [Constraints(), Constraints(Glossary((Entry("ab", ("jig",)),)))], ids=["free", "constrained"]
)
def test_cancelled_texts_end_early_and_others_are_unchanged(translator: Translator, constraints: Constraints) -> None:
    expected = translator.translate(TEXTS, constraints=constraints, max_new_tokens=20)
    n_steps = 0

    def wanted(number: int) -> bool:
        return number in (1, 5) or n_steps < 3

    def count() -> None:
        nonlocal n_steps
        n_steps += 1

    with translator.watched(count, wanted):
        found = translator.translate(TEXTS, constraints=constraints, max_new_tokens=20)
    assert [found[n].candidates for n in (0, 1, 5)] == [
        expected[n].candidates for n in (0, 1, 5)
    ]  # texts 0 and 5 are equal
    assert all(len(found[n].candidates[0].pieces) <= 4 for n in (2, 4, 6))


def test_constrained_search_is_little_longer_than_the_draft(
    translating_model: Callable[..., EncoderDecoder], characters: Tokenizer
) -> None:
    model, text = translating_model(characters.vocab_size, context_length=200), "abcdefgh abc"
    translator = Translator(model, characters, DecodingSettings(beam_size=3))
    (draft,) = translator.translate([text])
    lengths: list[int] = []
    required = Constraints(Glossary((Entry("abcdefgh", ("jig",)),)))
    (constrained,) = translator.translate(
        [text], constraints=required, watch=lambda _, extension: lengths.append(extension.length)
    )
    assert constrained.candidates[0].outcomes[0].state == "forced" and lengths.count(1) == 2
    n_tokens = len(draft.candidates[0].pieces)
    assert max(lengths[lengths.index(1, 1) :]) <= n_tokens + max(4, n_tokens // 4) + len(" jig")


@pytest.mark.parametrize(("loss", "n_searches"), [(1.0, 1), (3.0, 2)])
def test_likely_swapped_draft_is_searched_no_further(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, loss: float, n_searches: int
) -> None:
    searches: list[object] = []
    monkeypatch.setattr(search, "beam_search", lambda *each, **how: searches.append(each) or beam_search(*each, **how))

    def swapped_draft(
        _: Revision, asked: object, written: Sequence[Hypothesis], *how: object
    ) -> list[Hypothesis | None]:
        tokens = tuple(translator.tokenizer.encode("jig"))
        each = (written[0].log_prob - loss) / 4
        return [Hypothesis(tokens, 4 * each, each, "end", (each,) * 4)]

    monkeypatch.setattr(Revision, "swapped", swapped_draft)
    (found,) = translator.translate(["abc"], constraints=Constraints(Glossary((Entry("abc", ("jig",)),))))
    assert len(searches) == n_searches
    assert found.candidates[0].outcomes[0].state == "forced" and (found.text == "jig" or n_searches > 1)


@pytest.mark.parametrize(("limit", "fits"), [(None, True), (6, True), (5, False)])
def test_swapped_draft_respects_the_token_limit(translator: Translator, limit: int | None, fits: bool) -> None:
    encode, required = translator.tokenizer.encode, Constraint(0, 3, ("jig",), False)
    draft = Hypothesis(tuple(encode("ab c")), -4.0, -1.0, "end", (-1.0,) * 5)
    asked = ConstrainedSegment(
        Segment("abc", Constraints()),
        (required,),
        None,
        DraftReport(((required, TargetWord("ab", 0, 2)),), (), frozenset()),
    )
    (found,) = Revision(translator.model, translator.tokenizer).swapped([asked], [draft], 1.0, limit)
    assert (found is not None) == fits and (found is None or found.tokens == tuple(encode("jig c")))


def test_scorer_accepts_empty_drafts(translator: Translator) -> None:
    hidden_source = HiddenSource([1, 2, translator.tokenizer.end_id], (), range(1))
    assert Scorer(translator.model, translator.tokenizer).log_probs([hidden_source, hidden_source]) == [[], []]


def test_beam_search_gets_the_decoding_settings(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[BeamSettings] = []
    monkeypatch.setattr(search, "beam_search", lambda *each, **how: seen.append(each[2]) or beam_search(*each, **how))
    translator.defaults = DecodingSettings(beam_size=2, beam_patience=2.0, length_penalty=0.5)
    translator.translate(["abc"])
    assert [(each.beam_size, each.beam_patience, each.length_penalty) for each in seen] == [(2, 2.0, 0.5)]


def test_different_texts_get_different_translations(translator: Translator) -> None:
    assert len(set(texts_of(translator, ["abc", "j, a b", "h", "Aé bc"]))) == 4


@pytest.mark.parametrize("blank", ["", " ", "\t\r", "\u2028"])
def test_blank_line_is_translated_as_an_empty_line(translator: Translator, blank: str) -> None:
    assert translator.translate([blank])[0].text == ""
    assert texts_of(translator, [f"abc\n{blank}\nh\n"]) == ["\n".join([*texts_of(translator, ["abc", "", "h"]), ""])]


def test_text_longer_than_the_context_is_translated_by_sentence(translator: Translator) -> None:
    (whole,) = translator.translate(["abcdefgh ab.  A bcdefgh. C"])
    first, second, third = texts_of(translator, ["abcdefgh ab.", "A bcdefgh.", "C"])
    assert whole.text == f"{first}  {second} {third}"
    assert "translated in parts: the text is longer than the model's limit of 24 tokens" in whole.warnings


def test_max_source_tokens_limits_the_parts(
    translating_model: Callable[..., EncoderDecoder], characters: Tokenizer
) -> None:
    translator = Translator(translating_model(characters.vocab_size), characters, max_source_tokens=6)
    assert translator.translate(["ab cd ef"])[0].text == " ".join(texts_of(translator, ["ab", "cd ef"])) or (
        translator.translate(["ab cd ef"])[0].text == " ".join(texts_of(translator, ["ab cd", "ef"]))
    )


def test_one_long_word_is_translated_in_parts(translator: Translator) -> None:
    halves = texts_of(translator, ["abcdefghij" * 2, "abcdefghij" * 2])
    assert texts_of(translator, ["abcdefghij" * 4]) == ["".join(halves)]


def test_n_best_are_distinct_and_sorted_with_the_best_first(translator: Translator) -> None:
    (several,), (one,) = (
        translator.translate(["abc"], beam_size=4, n_best=4),
        translator.translate(["abc"], beam_size=4),
    )
    assert several.candidates[0] == one.candidates[0]
    ended = [candidate for candidate in several.candidates if candidate.finish == "end"]
    assert [c.score for c in ended] == sorted((c.score for c in ended), reverse=True)
    assert len({candidate.text for candidate in several.candidates}) == 4


def test_n_best_of_a_text_in_parts_join_the_parts_by_rank(translator: Translator) -> None:
    whole, first, second = translator.translate(["abc\nh", "abc", "h"], n_best=2)
    assert [c.text for c in whole.candidates] == [
        f"{one.text}\n{other.text}" for one, other in zip(first.candidates, second.candidates, strict=True)
    ]
    assert whole.candidates[0].log_prob == pytest.approx(first.candidates[0].log_prob + second.candidates[0].log_prob)


@pytest.mark.parametrize("n_best", [0, 4])
def test_n_best_outside_the_beam_size_is_refused(translator: Translator, n_best: int) -> None:
    with pytest.raises(UsageError, match=f"n_best \\({n_best}\\) must be between 1 and beam_size \\(3\\)"):
        translator.translate(["a"], n_best=n_best)


def test_unfinished_translation_is_marked(
    translating_model: Callable[..., EncoderDecoder], characters: Tokenizer
) -> None:
    model = translating_model(characters.vocab_size, context_length=64, output_bias=True)
    with torch.no_grad():
        model.output.bias[characters.end_id] = -1000.0
    short, long = Translator(model, characters).translate(["a", "abcdefghij"])
    assert short.candidates[0].finish == "length"
    assert short.warnings[0] == "the translation reached the length limit and was cut off"
    assert (len(short.text), len(long.text)) == (2 * 2 + 20, 2 * 11 + 20)


def test_unknown_characters_are_named_in_a_warning(translator: Translator) -> None:
    assert "characters the model does not know: ñ" in translator.translate(["añb"])[0].warnings


@pytest.mark.parametrize("text", ["a\ud800b", "a\x00b", "\ud800" * 99, "\x00"])
def test_unusual_texts_are_translated(translator: Translator, text: str) -> None:
    assert len(translator.translate([text])) == 1


def test_single_text_is_treated_as_a_list_of_one(translator: Translator) -> None:
    assert translator.translate("abc") == translator.translate(["abc"])


def test_empty_list_of_texts_gives_no_translations(translator: Translator) -> None:
    assert translator.translate([]) == []


def test_training_mode_of_the_model_is_restored(translator: Translator) -> None:
    translator.model.train()
    translator.translate(["a"])
    assert translator.model.training


def test_prefix_longer_than_the_context_is_refused(translator: Translator) -> None:
    for ask in (lambda p: translator.translate(["abc"], prefixes=p), lambda p: translator.alternatives("abc", p)):
        with pytest.raises(UsageError, match=r"prefix has 30 tokens.*24"):
            ask("a" * 30)


def test_white_space_before_a_prefix_is_ignored(translator: Translator) -> None:
    assert translator.alternatives("abc", "  ab ", 3) == translator.alternatives("abc", "ab ", 3)


def test_length_penalty_out_of_range_is_refused(translator: Translator) -> None:
    with pytest.raises(UsageError, match=r"length_penalty.*10"):
        translator.translate(["abc"], length_penalty=1000.0)


@pytest.mark.parametrize("limit", [None, 24, 99])
def test_longest_target_leaves_room_for_the_language_token(
    translating_model: Callable[..., EncoderDecoder],
    characters: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
) -> None:
    model = translating_model(characters.vocab_size, context_length=24, output_bias=True)
    with torch.no_grad():
        model.output.bias[characters.end_id] = -100.0
    monkeypatch.setattr(Tokenizer, "target_prefix", (5,))
    (found,) = Translator(model, characters).translate(["abc defghij"], max_new_tokens=limit, beam_size=2)
    assert (len(found.candidates[0].pieces), found.candidates[0].finish) == (23, "length")


@pytest.mark.parametrize("prefix", ["aΩ", "a\nb"])
def test_prefix_that_the_model_cannot_write_is_refused(translator: Translator, prefix: str) -> None:
    for ask in (lambda p: translator.translate(["abc"], prefixes=p), lambda p: translator.alternatives("abc", p)):
        with pytest.raises(UsageError, match=rf"cannot write: {re.escape(repr(prefix[1]))}\. Leave"):
            ask(prefix)


def test_token_limit_does_not_count_the_prefix(translator: Translator) -> None:
    (found,) = translator.translate(["abc"], prefixes="abcdefgh", max_new_tokens=2)
    assert found.text.startswith("abcdefgh") and len(found.candidates[0].pieces) <= 8 + 2


def test_span_is_inserted_after_the_prefix(translator: Translator) -> None:
    for prefix in ("ab", "ab ", ""):
        (found,) = translator.translate(["`Ω` abc"], prefixes=prefix, max_new_tokens=4)
        assert found.text.startswith(prefix or "`Ω`") and "`Ω`" in found.text


def test_span_that_does_not_fit_is_copied_in_every_search_mode(
    translating_model: Callable[..., EncoderDecoder], characters: Tokenizer
) -> None:
    model = translating_model(characters.vocab_size, context_length=24, positions={"type": "learned"})
    translator, span = Translator(model, characters), f"`{'abc ' * 9}`"
    for found in (translator.translate(span), translator.diverse(span, 2), translator.sample(span, 2)):
        assert [candidate.text for candidate in found[0].candidates] == [span]
