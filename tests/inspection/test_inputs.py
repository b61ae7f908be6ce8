"""What the inspector reads equals what the model reads in normal use, and nothing is cut or guessed in silence."""

from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from penwright.classification.classifier import Classifier
from penwright.cli.answers import draw, top_tokens
from penwright.cli.questions import Questions
from penwright.config import Table
from penwright.errors import UsageError
from penwright.inspection import Inspector, overview, view
from penwright.inspection.inputs import Outcomes
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.checks import FOREIGN
from penwright.tokenizers.foreign import ForeignTokenizer
from penwright.tokenizers.training import train_tokenizer
from penwright.views.pictures import render

MakeInspector = Callable[..., Inspector]
BERT: Table = {
    "norm": {"type": "layer"},
    "norm_position": "post",
    "embedding_norm": True,
    "bias": True,
    "pooling": "first",
    "pooler": True,
    "positions": {"type": "learned"},
    "token_types": 2,
}


class WithoutStart(Tokenizer):
    """A tokenizer whose model uses no start token, as GPT-2."""

    begins = False


class WithLanguage(Tokenizer):
    """A tokenizer whose model reads a language token before each source, as M2M100."""

    def source(self, tokens: Sequence[int]) -> list[int]:
        return [self.pad_id, *tokens, self.end_id]


def shown_labels(inspector: Inspector, text: str) -> dict[object, float]:
    found = inspector.lens(text, k=3)
    return dict(zip(found.top_tokens[-1][0], found.top_probabilities[-1, 0], strict=True))  # type: ignore[index]


@pytest.mark.parametrize("settings", [{"text_pairs": True}, {**BERT, "text_pairs": True}], ids=["own", "bert"])
@pytest.mark.parametrize("ends", [1, 2])
@pytest.mark.parametrize(
    "text", ["abc bad\tcab", " abc\tcab ", "abc bad face cab\tface", "face\tabc bad face cab abd ace"]
)
def test_pairs_are_read_as_in_classification(
    make_inspector: MakeInspector, settings: Table, ends: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspector = make_inspector("classify", settings)
    monkeypatch.setattr(inspector.tokenizer, "pair_ends", ends)
    assert shown_labels(inspector, text) == pytest.approx(inspector.application.classify(text)[0].scores, abs=1e-6)
    assert len(inspector.read(text).source) <= 24
    parts = inspector.logit_attribution(text)
    assert parts.values.sum() == pytest.approx(parts.logit)
    place = inspector.place_detail(text, "encoder.embedding", position=len(inspector.read(text).source) - 2)
    vectors = dict(zip(place.names, place.vectors, strict=True))
    np.testing.assert_allclose(
        vectors["token"] + vectors.get("position", 0), vectors.get("sum", vectors["embedded"]), atol=1e-5
    )


def test_only_a_pair_that_is_cut_gives_a_warning(make_inspector: MakeInspector) -> None:
    inspector = make_inspector("classify", {"text_pairs": True})
    assert inspector.warnings("abc bad\tcab") == ()
    (warning,) = inspector.warnings("abc bad face cab abd ace\tabc")
    assert "cover only 22" in warning
    with pytest.raises(UsageError, match="one tab"):
        inspector.lens("abc")


@pytest.mark.parametrize("settings", [{}, BERT, {"balanced": True}, {**BERT, "balanced": True}])
def test_labels_of_a_text_equal_those_of_the_classifier(make_inspector: MakeInspector, settings: Table) -> None:
    inspector = make_inspector("classify", settings)
    assert isinstance(inspector.application, Classifier)
    for text in ("abc bad", "  abc bad "):
        scores = inspector.application.classify(text)[0].scores
        assert shown_labels(inspector, text) == pytest.approx(scores, abs=1e-6)
        parts = inspector.logit_attribution(text)
        assert parts.values.sum() == pytest.approx(parts.logit)
        assert parts.target == max(scores, key=lambda label: scores[label])
        assert np.exp(inspector.occlusion(text).log_prob) == pytest.approx(scores[parts.target], abs=1e-6)
        assert np.exp(inspector.attribution(text, n_steps=1).log_prob) == pytest.approx(scores[parts.target], abs=1e-6)
        paths = inspector.paths(text)
        assert np.exp(paths.log_prob) == pytest.approx(scores[parts.target], abs=1e-6)


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_models_without_a_single_label_show_only_their_heads(make_inspector: MakeInspector, problem: str) -> None:
    inspector = make_inspector("classify", {"problem_type": problem})
    assert [each.name for each in overview(inspector, "abc bad")] == ["attention", "rollout"]
    for ask in (inspector.head_importance, inspector.token_nlls, inspector.lens):
        with pytest.raises(UsageError, match="one label per text"):
            ask("abc bad")
    one, other = (Questions(inspector, text, None) for text in ("abc bad", "bad abc"))
    (compared,) = one.beside(other, ("one", "other"))
    assert compared.name == "heads compared" and len(compared.find()) == 1


def test_translation_that_is_cut_gives_a_warning(make_inspector: MakeInspector) -> None:
    inspector = make_inspector("translate")
    assert inspector.warnings("abc", "a" * 23) == ()
    (warning,) = inspector.warnings("abc", "a" * 24)
    assert "the translation has 24 tokens" in warning and "first 23" in warning


def test_model_translates_only_the_part_of_a_source_that_is_read(make_inspector: MakeInspector) -> None:
    inspector = make_inspector("translate")
    text = "abc def. " * 5
    reading = inspector.read(text)
    assert inspector.warnings(text) and len(reading.source) == 24
    whole, part = inspector.application.translate([text, text[:23]])
    assert reading.target == inspector.read(text, part.text).target != inspector.read(text, whole.text).target


def test_source_that_is_cut_keeps_its_language_and_end_token(make_inspector: MakeInspector) -> None:
    tokenizer = train_tokenizer("characters", ["abcdefghij ,.ABCé\n"])
    tokenizer.__class__ = WithLanguage
    inspector = make_inspector("translate", tokenizer=tokenizer)
    source = [token.text for token in inspector.read("ab" * 50, "c").source]
    assert (len(source), source[0], source[-2:]) == (24, "<pad>", ["b", "</s>"])
    assert "first 22" in inspector.warnings("ab" * 50)[0]


@pytest.mark.parametrize("option", ["sort", "arithmetic", "ablate", "patch"])
def test_empty_options_are_refused(make_inspector: MakeInspector, option: str) -> None:
    with pytest.raises(UsageError):
        Questions(make_inspector("generate"), "abc", None).asked({option: ""}, None, None)[0].find()


def unigram(*pieces: str) -> Table:
    splitter = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], *([piece, -1.0] for piece in pieces)]}
    return {"version": "1.0", "added_tokens": [], "pre_tokenizer": splitter, "decoder": splitter, "model": model}


def test_translations_have_the_tokenizer_of_the_target(make_inspector: MakeInspector) -> None:
    special = {"<pad>": 0, "</s>": 1}
    target = {**unigram("▁rot", "▁Haus"), FOREIGN: {"ids": [2, 5, 6], "extra": {**special, "▁red": 3, "▁house": 4}}}
    own = {"pad": 0, "start": 0, "end": 1, "ids": [2, 3, 4], "extra": {**special, "▁rot": 5, "▁Haus": 6}}
    tokenizer = ForeignTokenizer({**unigram("▁red", "▁house"), FOREIGN: {**own, "target": target}})
    inspector = make_inspector("translate", tokenizer=tokenizer)
    assert inspector.neighbours("rot", side="target").pieces == (" rot",)
    assert inspector.neighbours("red", side="source").pieces == (" red",)
    assert inspector.embedding_map(["rot", "Haus"], side="target").texts == (" rot", " Haus")
    assert inspector.warnings("red house", "rot Haus") == ()
    assert [text[-2:] for text in inspector.warnings("rot", "red")] == ["ot", "ed"]


@pytest.fixture
def without_start(make_inspector: MakeInspector) -> Inspector:
    tokenizer = train_tokenizer("characters", ["abcdefghij ,.ABCé\n"])
    tokenizer.__class__ = WithoutStart
    return make_inspector("generate", tokenizer=tokenizer)


def test_whole_context_is_read_without_a_start_token(without_start: Inspector) -> None:
    assert without_start.warnings("abcdefgh" * 3) == ()
    assert len(without_start.read("abcdefgh" * 3).target) == 24
    (warning,) = without_start.warnings("abcdefgh" * 3 + "a")
    assert "first 24" in warning


def test_first_token_without_a_score_is_shown(without_start: Inspector, make_inspector: MakeInspector) -> None:
    found = without_start.token_scores("abc")
    assert [token.text for token in found.unscored] == ["a"] and len(found.tokens) == len(found.log_probs) == 2
    shown = view(found)
    assert [token.text for token in shown.data["tokens"]] == ["a", "b", "c"]
    assert b">a<" not in render("text", shown.data, ".svg"), "a picture has only bars"
    console = Console(width=80, record=True, file=StringIO())
    for drawn in (*draw(found, console), *top_tokens(found, console)):
        console.print(drawn)
    assert "abc" in console.export_text(clear=False) and "“a” has no surprisal" in console.export_text()
    for whole in (make_inspector("generate").token_scores("abc"), without_start.token_scores("")):
        assert whole.unscored == ()


def test_empty_text_becomes_a_start_token(without_start: Inspector) -> None:
    start = without_start.tokenizer.start_id
    expected = without_start.application.next_logits([start]).double().softmax(-1).numpy()  # type: ignore[union-attr]
    found = without_start.token_scores("", k=3).next
    np.testing.assert_allclose(found.probabilities, expected[found.ids], atol=1e-6)
    assert without_start.logit_attribution("").position == 0


def test_name_of_a_token_means_the_token_and_not_a_single_byte(make_inspector: MakeInspector) -> None:
    model = make_inspector("generate").model
    outcomes = Outcomes(model, ["<s>", "A", "B", "the", "A"])  # as in SentencePiece, where bytes come first
    assert outcomes.index("A") == 4


@pytest.mark.parametrize(
    "ask",
    [
        lambda inspector, text: inspector.lens(text),
        lambda inspector, text: inspector.token_scores(text),
        lambda inspector, text: inspector.token_nlls(text),
        lambda inspector, text: inspector.loss_by_position([text]),
        lambda inspector, text: inspector.ablate(text, ["0.0"]),
        lambda inspector, text: inspector.head_importance(text),
        lambda inspector, text: inspector.attribution(text, n_steps=8),
        lambda inspector, text: inspector.logit_attribution(text),
        lambda inspector, text: inspector.model_map(text),
        lambda inspector, text: inspector.paths(text, n_edges=4),
        lambda inspector, text: inspector.patching(text, text.replace("c", "d")),
        lambda inspector, text: inspector.head_statistics(text),
    ],
)
def test_logits_of_a_long_text_are_never_all_in_memory(
    make_inspector: MakeInspector, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Inspector, str], Any]
) -> None:
    monkeypatch.setattr("penwright.inspection.forward_pass.STEP_ROWS", 4)
    monkeypatch.setattr("penwright.inspection.logit_attribution.STEP_ROWS", 4)
    inspector = make_inspector("generate")
    n_positions: list[int] = []
    inspector.model.output.register_forward_pre_hook(lambda module, given: n_positions.append(given[0].shape[-2]))
    ask(inspector, "abc bad cab face")
    assert max(n_positions, default=0) <= 4


def test_attention_of_too_long_texts_is_refused(make_inspector: MakeInspector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penwright.inspection.attention_maps.MOST_WEIGHTS", 8 * 10**2)
    inspector = make_inspector("generate")
    inspector.attention("abc bad c")  # 10 tokens, 8 heads
    inspector.head_statistics("abc bad cab")  # one layer at a time
    with pytest.raises(UsageError, match=r"12 tokens, too many for the attention of 8 heads\. Use at most 10"):
        inspector.rollout("abc bad cab")
