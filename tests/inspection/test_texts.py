"""Any text, as it is: readable tokens with their places, scores of long texts, and words in the embedding."""

import json
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penwright.config import DecodingSettings, Task
from penwright.errors import PenwrightWarning, UsageError
from penwright.inspection import Inspector, as_record
from penwright.inspection.embeddings import cosines, nearest, plane
from penwright.inspection.tokens import tokens_of
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import well_formed
from penwright.tokenizers.training import train_tokenizer

Make = Callable[..., Inspector]
HARD = ["", " ", "\n\n", "\0", "a\u2028b", "naïve 🦊🦊", "\ud83d", "</s><pad>", "é" * 50, "the fox " * 40]


@pytest.fixture(scope="session")
def spaced() -> Tokenizer:
    return train_tokenizer("bpe", ["the fox and the 🦊 see the fox. "] * 3, 290, prefix_space=True)


@pytest.mark.parametrize("kind", ["characters", "pieces", "spaced"])
@given(text=st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_tokens_cover_the_text_in_order_and_can_be_read(request: pytest.FixtureRequest, kind: str, text: str) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    tokens = tokens_of(tokenizer, text)
    assert [token.id for token in tokens] == tokenizer.encode(text)
    covered = {place for token in tokens for place in range(token.start, token.end)}
    assert covered == set(range(len(well_formed(text))))
    for before, after in pairwise(tokens):
        assert before.start <= after.start
        assert before.end - after.start <= 1  # only the bytes of one character can be shared
    assert not any(
        "Ġ" in token.text or "\ufffd" in token.text for token in tokens if "Ġ" not in text and "\ufffd" not in text
    )


def test_parts_of_a_character_are_shown_as_bytes_and_words_as_words(pieces: Tokenizer) -> None:
    assert [token.text for token in tokens_of(pieces, "the fox")] == ["the", " fox"]
    fox = tokens_of(pieces, "🦊")
    assert [token.text for token in fox] == ["⟨f0⟩", "⟨9f⟩", "⟨a6⟩", "⟨8a⟩"]
    assert {(token.start, token.end) for token in fox} == {(0, 1)}


def test_a_space_that_a_tokenizer_reads_before_a_text_is_no_place_in_it(spaced: Tokenizer) -> None:
    tokens = tokens_of(spaced, "the fox")
    assert [(token.text, token.start, token.end) for token in tokens] == [(" the", 0, 3), (" fox", 3, 7)]


@pytest.mark.parametrize("text", HARD)
def test_every_text_can_be_inspected(inspector: Make, pieces: Tokenizer, task: Task, text: str) -> None:
    if task == "translate" and "\n" in text.strip():
        return
    inspected = inspector(task, tokenizer=pieces)
    target = text if task == "translate" else None
    found = [
        inspected.attention(text, target, layers=[0]),
        inspected.head_statistics(text, target),
        inspected.rollout(text, target),
        inspected.lens(text, target, k=2),
        inspected.attribution(text, target, n_steps=2),
        inspected.ablate(text, ["0.0"], target),
        inspected.arithmetic(text, "0.1", target),
    ]
    if task == "classify":
        found.append(inspected.occlusion(text))
    else:
        found += [
            inspected.token_scores(text, target),
            inspected.loss_by_position([text], None if target is None else [target]),
        ]
    json.dumps(as_record(found), allow_nan=False)


def test_a_text_that_is_too_long_is_shown_from_its_beginning_with_a_warning(inspector: Make, task: Task) -> None:
    inspected = inspector(task)
    reading = inspected.read("ab" * 50, "c" * 99 if task == "translate" else None)
    assert max(len(reading.source), len(reading.target)) == 24
    assert len(reading.answers) in (0, 24)
    (warning,) = inspected.warnings("ab" * 50)
    assert "100 tokens" in warning
    assert inspected.warnings("ab") == ()


@pytest.mark.parametrize("context_length", [1, 2, 7, 8, 24])
def test_scores_of_what_a_writer_wrote_are_those_it_wrote_with(inspector: Make, context_length: int) -> None:
    inspected = inspector("generate", {"context_length": context_length, "output_bias": True})
    inspected.model.output.bias.data[inspected.tokenizer.end_id] = -1e9  # so that it goes on
    written = inspected.application.generate("a", DecodingSettings(max_new_tokens=60, temperature=1.0))[0]
    found = inspected.token_scores("a" + inspected.tokenizer.decode(written.tokens))
    np.testing.assert_allclose(found.log_probs[1:], written.log_probs, atol=1e-5)
    assert len(inspected.token_scores("abc " * 30).tokens) == 120


@pytest.mark.parametrize("text", ["", "abc " * 30])
def test_scores_are_the_same_in_steps_of_any_size(inspector: Make, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    inspected = inspector("generate", {"context_length": 8})
    found = [as_record(inspected.token_scores(text)), None]
    monkeypatch.setattr("penwright.inspection.token_scores.STEP_ROWS", 1)
    found[1] = as_record(inspected.token_scores(text))
    assert found[0] == found[1]
    assert len(list(inspected.token_scores_in_steps(text))) >= max(1, len(text))


def test_loss_by_position_is_the_mean_surprise_at_each_place(inspector: Make) -> None:
    inspected = inspector("generate")
    text = "abc bad cab " * 3  # 36 tokens: places 0 to 23, then 0 to 11 again
    found = inspected.loss_by_position([text, "abc"])
    assert found.counts.tolist() == [3, 3, 3, *[2] * 9, *[1] * 12]
    assert found.nats[12:] == pytest.approx(-inspected.token_scores(text).log_probs[12:24])
    assert np.isnan(inspected.loss_by_position(["ab"]).nats[2:]).all()
    pairs = inspector("translate").loss_by_position(["ab", "c"], ["ba", "c"])
    assert pairs.counts.tolist() == [2, 2, 1, *[0] * 21]


def test_the_gap_of_integrated_gradients_shrinks_with_the_steps(
    inspector: Make, task: Task, asked: tuple[str, str | None]
) -> None:
    inspected = inspector(task)
    gaps = []
    for n_steps in (4, 32, 256):
        found = inspected.attribution(*asked, n_steps=n_steps)
        whole = found.log_prob - found.baseline_log_prob
        assert found.gap == pytest.approx(whole - found.values.sum())
        gaps.append(abs(found.gap))
    assert gaps[2] < 1e-3 * max(1, abs(whole))
    assert gaps[2] < gaps[0]


def test_gradients_are_those_of_small_changes_of_the_vectors(
    inspector: Make, task: Task, asked: tuple[str, str | None]
) -> None:
    inspected = inspector(task, {"tie_embeddings": "none"})
    found = inspected.attribution(*asked, method="gradient_x_input")
    assert len(found.values) == len(found.tokens)
    model, at = inspected.model, 1 if task == "translate" else 2
    name = {"translate": "source_embedding", "generate": "embedding", "classify": "embedding"}[task]
    table = model.get_submodule(name).tokens.weight
    token = found.tokens[at]
    difference = (table[token.id] - table.mean(0)).detach()
    places = [i for i, other in enumerate(found.tokens[: found.n_source or None]) if other.id == token.id]
    around = []
    for step in (1e-4, -1e-4):
        kept = table.detach().clone()
        table.data[token.id] += step * difference
        around.append(inspected.attribution(*asked, method="gradient_x_input").log_prob)
        table.data.copy_(kept)
    assert found.values[places].sum() == pytest.approx((around[0] - around[1]) / 2e-4, rel=1e-3, abs=1e-6)


def test_special_tokens_have_no_share_and_tokens_to_come_have_none(inspector: Make) -> None:
    inspected = inspector("translate")
    found = inspected.attribution("abc", "bad ace", position=2)
    assert found.target == "d"
    special = [at for at, token in enumerate(found.tokens) if token.text in ("<s>", "</s>")]
    assert found.values[special].tolist() == [0, 0]
    assert found.values[found.n_source + 3 :].tolist() == [0] * 5
    with pytest.raises(UsageError, match="positions are 0 to 7"):
        inspected.attribution("abc", "bad ace", position=99)


def test_what_a_token_adds_is_lost_without_it(inspector: Make, asked: tuple[str, str | None], task: Task) -> None:
    inspected = inspector(task)
    if task != "classify":
        with pytest.raises(UsageError, match="needs a classifier"):
            inspected.occlusion(asked[0])
        return
    found = inspected.occlusion("abc", "fair")
    classify = inspected.application.classify
    whole = np.log(classify("abc")[0].scores["fair"])
    without = [np.log(classify(text)[0].scores["fair"]) for text in ("bc", "ac", "ab")]
    np.testing.assert_allclose(found.values, [0, *(whole - without), 0], atol=1e-5)
    assert found.log_prob == pytest.approx(whole, abs=1e-5)
    assert inspected.occlusion("abc").target == classify("abc")[0].label
    with pytest.warns(PenwrightWarning, match=r"use Inspector\.occlusion"):
        np.testing.assert_array_equal(inspected.leaving_out("abc", "fair").values, found.values)


def test_a_label_can_be_asked_for_and_must_exist(inspector: Make) -> None:
    inspected = inspector("classify")
    assert inspected.attribution("abc", "fair").target == "fair"
    fair = inspected.ablate("abc", ["0.0"], "fair", k=3)
    place = fair.next_texts.index("fair")
    assert (fair.loss_before, fair.loss_after) == (
        pytest.approx(-np.log(fair.next_before[place])),
        pytest.approx(-np.log(fair.next_after[place])),
    )
    with pytest.raises(UsageError, match="bad, fair, good"):
        inspected.attribution("abc", "excellent")


def test_what_a_shape_does_not_have_is_refused_in_words(inspector: Make) -> None:
    with pytest.raises(UsageError, match="predicts a label"):
        inspector("classify").token_scores("abc")
    with pytest.raises(UsageError, match="no target"):
        inspector("generate").lens("abc", "abc")
    with pytest.raises(UsageError, match="one line"):
        inspector("translate").attention("abc\nabc")
    with pytest.raises(UsageError, match="only a translator has a source"):
        inspector("generate").neighbours("abc", side="source")
    with pytest.raises(UsageError, match="no position encodings"):
        inspector("generate", {"positions": {"type": "none"}}).positions()


def test_neighbours_are_ranked_by_cosine_without_the_word_itself(inspector: Make, pieces: Tokenizer) -> None:
    inspected = inspector("generate", tokenizer=pieces)
    table = inspected.model.embedding.tokens.weight.detach()
    red = pieces.encode(" red")[0]
    with torch.no_grad():
        table[pieces.encode(" blue")[0]] = 3 * table[red]  # the length of a vector does not count
    found = inspected.neighbours("red", k=5)
    assert (found.pieces, found.texts[0], found.cosines[0]) == ((" red",), " blue", pytest.approx(1))
    expected = torch.nn.functional.cosine_similarity(table, table[red][None]).numpy()
    np.testing.assert_allclose(found.cosines, expected[found.ids], atol=1e-6)
    assert sorted(found.cosines, reverse=True) == found.cosines.tolist()
    several = inspected.neighbours("sky naïve", k=10**6)
    assert len(several.pieces) > 1
    assert not {"<pad>", "<s>", "</s>", *several.pieces} & set(several.texts)
    with pytest.raises(UsageError, match="Name a word"):
        inspected.neighbours("")


def test_vectors_of_zero_have_no_direction_and_no_neighbours_are_invented() -> None:
    table = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    assert cosines(table, np.array([3.0, 0.0])).tolist() == [0, 1, 0]
    ids, _ = nearest(table, np.array([1.0, 1.0]), 5, left_out=[1])
    assert sorted(ids.tolist()) == [0, 2]


def test_the_plane_keeps_the_distances_of_points_that_lie_in_one() -> None:
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(20, 2)) * [5, 1] @ np.linalg.qr(rng.normal(size=(7, 2)))[0].T + 3
    xy, explained = plane(flat)
    assert explained.sum() == pytest.approx(1)
    assert explained[0] > explained[1]
    distances = [np.linalg.norm(points[:, None] - points[None], axis=-1) for points in (flat, xy)]
    np.testing.assert_allclose(*distances, atol=1e-9)
    for few in (flat[:1], flat[:, :1], np.ones((4, 3))):
        assert np.isfinite(plane(few)[0]).all()


def test_a_map_has_a_point_for_each_word(inspector: Make, pieces: Tokenizer) -> None:
    inspected = inspector("generate", tokenizer=pieces)
    assert inspected.embedding_map(["red", "blue", "sky naïve"]).texts == (" red", " blue", "sky naïve")
    assert inspected.embedding_map(n=10).xy.shape == (10, 2)
    with pytest.raises(UsageError, match="needs at least one word"):
        inspected.embedding_map([])


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rotary"])
def test_positions_are_as_alike_as_the_formula_says(inspector: Make, task: Task, kind: str) -> None:
    inspected = inspector(task, {"positions": {"type": kind}})
    found = inspected.positions()
    assert (found.kind, len(found.encodings)) == (kind, 24)
    np.testing.assert_allclose(np.diag(found.similarity), 1)
    distances = abs(np.subtract.outer(np.arange(24), np.arange(24)))
    width = inspected.model.settings.d_head if kind == "rotary" else inspected.model.settings.d_model
    if kind != "learned":  # sine and cosine: the cosine between two places is the mean of cos(frequency * distance)
        frequencies = 10_000 ** -(np.arange(0, width, 2) / width)
        np.testing.assert_allclose(found.frequencies, frequencies, rtol=1e-6)
        angles = distances[..., None] * frequencies
        np.testing.assert_allclose(found.similarity, np.cos(angles).mean(-1), atol=1e-5)
    assert len(inspected.positions(5).encodings) == 5
