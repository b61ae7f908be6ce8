"""Inspection of arbitrary texts: tokens and offsets, scores of long texts, attribution, and embeddings."""

import json
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penwright.config import DecodingSettings, Task
from penwright.decoding.hypotheses import Extension
from penwright.errors import PenwrightWarning, UsageError
from penwright.inspection import Inspector, as_record
from penwright.inspection.beams import BeamTree
from penwright.inspection.embeddings import cosines, nearest, plane
from penwright.inspection.forward_pass import tokens_of
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.checks import FOREIGN
from penwright.tokenizers.foreign import ForeignTokenizer
from penwright.tokenizers.tokenizer import well_formed
from penwright.tokenizers.training import train_tokenizer

MakeInspector = Callable[..., Inspector]
HARD = ["", " ", "\n\n", "\0", "a\u2028b", "naïve 🦊🦊", "\ud83d", "</s><pad>", "é" * 50, "the fox " * 40]


@pytest.fixture(scope="session")
def prefix_space_tokenizer() -> Tokenizer:
    return train_tokenizer("bpe", ["the fox and the 🦊 see the fox. "] * 3, 290, prefix_space=True)


@pytest.fixture(scope="session")
def normalizing_tokenizer(pieces: Tokenizer) -> Tokenizer:
    """A byte-level BPE with a normalizer, as in Qwen."""
    file = {**json.loads(pieces.library.to_str()), "normalizer": {"type": "NFC"}}
    return ForeignTokenizer({**file, FOREIGN: {"pad": pieces.pad_id, "start": pieces.start_id, "end": pieces.end_id}})


@pytest.mark.parametrize("kind", ["characters", "pieces", "prefix_space_tokenizer", "normalizing_tokenizer"])
@given(text=st.text())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_tokens_cover_the_text_in_order_and_are_readable(request: pytest.FixtureRequest, kind: str, text: str) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    tokens = tokens_of(tokenizer, text)
    assert [token.id for token in tokens] == tokenizer.encode(text)
    covered = {place for token in tokens for place in range(token.start, token.end)}
    assert covered == set(range(len(well_formed(text))))
    assert all(token.start < token.end for token in tokens[1:])  # only a space before the text covers nothing
    for before, after in pairwise(tokens):
        assert before.start <= after.start
        assert before.end - after.start <= 1  # they may share the bytes of one character
    assert not any(
        "Ġ" in token.text or "\ufffd" in token.text for token in tokens if "Ġ" not in text and "\ufffd" not in text
    )


@pytest.mark.parametrize("kind", ["pieces", "normalizing_tokenizer"])
def test_partial_characters_are_shown_as_bytes(request: pytest.FixtureRequest, kind: str) -> None:
    tokenizer = request.getfixturevalue(kind)
    assert [token.text for token in tokens_of(tokenizer, "the fox")] == ["the", " fox"]
    fox = tokens_of(tokenizer, "🦊")
    assert [token.text for token in fox] == ["⟨f0⟩", "⟨9f⟩", "⟨a6⟩", "⟨8a⟩"]
    assert {(token.start, token.end) for token in fox} == {(0, 1)}


def test_prefix_space_has_no_position_in_the_text(prefix_space_tokenizer: Tokenizer) -> None:
    tokens = tokens_of(prefix_space_tokenizer, "the fox")
    assert [(token.text, token.start, token.end) for token in tokens] == [(" the", 0, 3), (" fox", 3, 7)]


@pytest.mark.parametrize("text", HARD)
def test_every_text_can_be_inspected(make_inspector: MakeInspector, pieces: Tokenizer, task: Task, text: str) -> None:
    inspector = make_inspector(task, tokenizer=pieces)
    target = text if task == "translate" else None
    found = [
        inspector.attention(text, target, layers=[0]),
        inspector.head_statistics(text, target),
        inspector.rollout(text, target),
        inspector.lens(text, target, k=2),
        inspector.attribution(text, target, n_steps=2),
        inspector.ablate(text, ["0.0"], target),
        inspector.arithmetic(text, "0.1", target),
    ]
    if task == "classify":
        found.append(inspector.occlusion(text))
    else:
        found += [
            inspector.token_scores(text, target),
            inspector.loss_by_position([text], None if target is None else [target]),
        ]
    json.dumps(as_record(found), allow_nan=False)


def test_too_long_text_is_truncated_with_a_warning(make_inspector: MakeInspector, task: Task) -> None:
    inspector = make_inspector(task)
    reading = inspector.read("ab" * 50, "c" * 99 if task == "translate" else None)
    assert max(len(reading.source), len(reading.target)) == 24
    assert len(reading.answers) in (0, 24)
    (warning,) = inspector.warnings("ab" * 50)
    assert "100 tokens" in warning
    assert inspector.warnings("ab") == ()


@pytest.mark.parametrize("context_length", [1, 2, 7, 8, 24])
def test_scores_of_generated_text_equal_generation_log_probs(
    make_inspector: MakeInspector, context_length: int
) -> None:
    inspector = make_inspector("generate", {"context_length": context_length, "output_bias": True})
    inspector.model.output.bias.data[inspector.tokenizer.end_id] = -1e9  # prevents an early end
    written = inspector.application.generate("a", DecodingSettings(max_new_tokens=60, temperature=1.0))[0]
    found = inspector.token_scores("a" + inspector.tokenizer.decode(written.tokens))
    np.testing.assert_allclose(found.log_probs[1:], written.log_probs, atol=1e-5)
    assert len(inspector.token_scores("abc " * 30).tokens) == 120


@pytest.mark.parametrize("text", ["", "abc " * 30])
def test_token_scores_do_not_depend_on_the_step_size(
    make_inspector: MakeInspector, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    inspector = make_inspector("generate", {"context_length": 8})
    whole = inspector.token_scores(text)
    monkeypatch.setattr("penwright.inspection.forward_pass.STEP_ROWS", 1)
    found = inspector.token_scores(text)
    assert found.alternatives.texts == whole.alternatives.texts
    assert found.ranks.tolist() == whole.ranks.tolist()
    np.testing.assert_allclose(found.log_probs, whole.log_probs, rtol=1e-9)
    np.testing.assert_allclose(found.next.probabilities, whole.next.probabilities, rtol=1e-9)
    assert len(list(inspector.token_scores_in_steps(text))) >= max(1, len(text))


def test_loss_by_position_is_the_mean_loss_at_each_position(make_inspector: MakeInspector) -> None:
    inspector = make_inspector("generate")
    text = "abc bad cab " * 3  # 36 tokens: positions 0 to 23, then 0 to 11 again
    found = inspector.loss_by_position([text, "abc"])
    assert found.counts.tolist() == [3, 3, 3, *[2] * 9, *[1] * 12]
    assert found.nats[12:] == pytest.approx(-inspector.token_scores(text).log_probs[12:24])
    assert np.isnan(inspector.loss_by_position(["ab"]).nats[2:]).all()
    pairs = make_inspector("translate").loss_by_position(["ab", "c"], ["ba", "c"])
    assert pairs.counts.tolist() == [2, 2, 1, *[0] * 21]


def test_completeness_gap_shrinks_with_more_steps(
    make_inspector: MakeInspector, task: Task, text_and_target: tuple[str, str | None]
) -> None:
    inspector = make_inspector(task)
    gaps = []
    for n_steps in (4, 32, 256):
        found = inspector.attribution(*text_and_target, n_steps=n_steps)
        whole = found.log_prob - found.baseline_log_prob
        assert found.gap == pytest.approx(whole - found.values.sum())
        gaps.append(abs(found.gap))
    assert gaps[2] < 1e-3 * max(1, abs(whole))
    assert gaps[2] < gaps[0]


def test_gradient_attribution_equals_finite_differences(
    make_inspector: MakeInspector, task: Task, text_and_target: tuple[str, str | None]
) -> None:
    inspector = make_inspector(task, {"tie_embeddings": "none"})
    found = inspector.attribution(*text_and_target, method="gradient_x_input")
    assert len(found.values) == len(found.tokens)
    model, at = inspector.model, 1 if task == "translate" else 2
    name = {"translate": "source_embedding", "generate": "embedding", "classify": "embedding"}[task]
    table = model.get_submodule(name).tokens.weight
    token = found.tokens[at]
    difference = (table[token.id] - table.mean(0)).detach()
    places = [i for i, other in enumerate(found.tokens[: found.n_source or None]) if other.id == token.id]
    around = []
    for step in (1e-4, -1e-4):
        kept = table.detach().clone()
        table.data[token.id] += step * difference
        around.append(inspector.attribution(*text_and_target, method="gradient_x_input").log_prob)
        table.data.copy_(kept)
    assert found.values[places].sum() == pytest.approx((around[0] - around[1]) / 2e-4, rel=1e-3, abs=1e-6)


def test_special_and_later_tokens_have_zero_attribution(make_inspector: MakeInspector) -> None:
    inspector = make_inspector("translate")
    found = inspector.attribution("abc", "bad ace", position=2)
    assert found.target == "d"
    special = [at for at, token in enumerate(found.tokens) if token.text in ("<s>", "</s>")]
    assert found.values[special].tolist() == [0, 0]
    assert found.values[found.n_source + 3 :].tolist() == [0] * 5
    with pytest.raises(UsageError, match="positions are 0 to 7"):
        inspector.attribution("abc", "bad ace", position=99)


def test_every_byte_of_a_character_has_an_attribution(
    make_inspector: MakeInspector, normalizing_tokenizer: Tokenizer
) -> None:
    inspector = make_inspector("classify", tokenizer=normalizing_tokenizer)
    for found in (inspector.attribution("🦊", n_steps=8), inspector.occlusion("🦊")):
        assert len(found.tokens) == 6 and found.values[1:-1].all()


def test_occlusion_equals_the_loss_without_each_token(
    make_inspector: MakeInspector, text_and_target: tuple[str, str | None], task: Task
) -> None:
    inspector = make_inspector(task)
    if task != "classify":
        with pytest.raises(UsageError, match="needs a classifier"):
            inspector.occlusion(text_and_target[0])
        return
    found = inspector.occlusion("abc", "fair")
    classify = inspector.application.classify
    whole = np.log(classify("abc")[0].scores["fair"])
    without = [np.log(classify(text)[0].scores["fair"]) for text in ("bc", "ac", "ab")]
    np.testing.assert_allclose(found.values, [0, *(whole - without), 0], atol=1e-5)
    assert found.log_prob == pytest.approx(whole, abs=1e-5)
    assert inspector.occlusion("abc").target == classify("abc")[0].label
    with pytest.warns(PenwrightWarning, match=r"use Inspector\.occlusion"):
        np.testing.assert_array_equal(inspector.leaving_out("abc", "fair").values, found.values)
    with pytest.warns(PenwrightWarning, match=r"use Inspector\.token_nlls"):
        np.testing.assert_array_equal(inspector.surprises("abc").nats, inspector.token_nlls("abc").nats)
    with pytest.warns(PenwrightWarning, match=r"use Inspector\.kind"):
        assert inspector.shape == inspector.kind == "classifier"


def test_given_label_is_used_and_must_exist(make_inspector: MakeInspector) -> None:
    inspector = make_inspector("classify")
    assert inspector.attribution("abc", "fair").target == "fair"
    fair = inspector.ablate("abc", ["0.0"], "fair", k=3)
    place = fair.next_texts.index("fair")
    assert (fair.loss_before, fair.loss_after) == (
        pytest.approx(-np.log(fair.next_before[place])),
        pytest.approx(-np.log(fair.next_after[place])),
    )
    with pytest.raises(UsageError, match="bad, fair, good"):
        inspector.attribution("abc", "excellent")


def test_unsupported_requests_are_refused_in_plain_words(make_inspector: MakeInspector) -> None:
    with pytest.raises(UsageError, match="predicts a label"):
        make_inspector("classify").token_scores("abc")
    with pytest.raises(UsageError, match="no target"):
        make_inspector("generate").lens("abc", "abc")
    with pytest.raises(UsageError, match="one line"):
        make_inspector("translate").attention("abc\nabc")
    with pytest.raises(UsageError, match="only a translator has a source"):
        make_inspector("generate").neighbours("abc", side="source")
    with pytest.raises(UsageError, match="no position encodings"):
        make_inspector("generate", {"positions": {"type": "none"}}).positions()


def test_neighbours_are_ranked_by_cosine_excluding_the_word(make_inspector: MakeInspector, pieces: Tokenizer) -> None:
    inspector = make_inspector("generate", tokenizer=pieces)
    table = inspector.model.embedding.tokens.weight.detach()
    red = pieces.encode(" red")[0]
    with torch.no_grad():
        table[pieces.encode(" blue")[0]] = 3 * table[red]  # cosine similarity ignores the length of a vector
    found = inspector.neighbours("red", k=5)
    assert (found.pieces, found.texts[0], found.cosines[0]) == ((" red",), " blue", pytest.approx(1))
    expected = torch.nn.functional.cosine_similarity(table, table[red][None]).numpy()
    np.testing.assert_allclose(found.cosines, expected[found.ids], atol=1e-6)
    assert sorted(found.cosines, reverse=True) == found.cosines.tolist()
    inside = pieces.encode("red")[0]  # the same letters without a space
    assert inspector.neighbours("red", token=inside).pieces == ("red",)
    assert inspector.neighbours("red", token=inside + 1).pieces == (" red",), "a token with a different text is ignored"
    several = inspector.neighbours("sky naïve", k=10**6)
    assert len(several.pieces) > 1
    assert not {"<pad>", "<s>", "</s>", *several.pieces} & set(several.texts)
    with pytest.raises(UsageError, match="Name a word"):
        inspector.neighbours("")


def test_word_without_tokens_has_no_neighbours(make_inspector: MakeInspector, pieces: Tokenizer) -> None:
    file = {**json.loads(pieces.library.to_str()), "normalizer": {"type": "StripAccents"}}
    special = {"pad": pieces.pad_id, "start": pieces.start_id, "end": pieces.end_id}
    inspector = make_inspector("generate", tokenizer=ForeignTokenizer({**file, FOREIGN: special}))
    for find in (lambda: inspector.neighbours("\u0301"), lambda: inspector.embedding_map(["red", "\u0301"])):
        with pytest.raises(UsageError, match=r"has no tokens.*Name another word"):
            find()


def test_zero_vectors_have_cosine_zero() -> None:
    table = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    assert cosines(table, np.array([3.0, 0.0])).tolist() == [0, 1, 0]
    ids, _ = nearest(table, np.array([1.0, 1.0]), 5, left_out=[1])
    assert sorted(ids.tolist()) == [0, 2]


def test_beam_search_tree_joins_the_bytes_of_a_character(pieces: Tokenizer) -> None:
    tree = BeamTree()
    tokens = [*pieces.encode("é"), pieces.end_id]
    for length, token in enumerate(tokens, 1):
        tree(0, Extension(length, [0], [token], [-1.0 * length]))
    nodes = tree.nodes(pieces)
    assert [node.token for node in nodes] == ["⟨c3⟩", "⟨a9⟩", ""]
    assert [node.text for node in nodes] == ["⟨c3⟩", "é", "é"]


@pytest.mark.parametrize("text", ["abc\nabc", "abc def abc def ab. abc def abc def ab."])
def test_beam_search_tree_of_several_parts_is_refused(make_inspector: MakeInspector, text: str) -> None:
    with pytest.raises(UsageError, match="single sentence"):
        make_inspector("translate").beams(text)
    assert make_inspector("translate").beams(text[:3], 2).nodes


def test_projection_of_planar_points_keeps_distances() -> None:
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(20, 2)) * [5, 1] @ np.linalg.qr(rng.normal(size=(7, 2)))[0].T + 3
    xy, explained = plane(flat)
    assert explained.sum() == pytest.approx(1)
    assert explained[0] > explained[1]
    distances = [np.linalg.norm(points[:, None] - points[None], axis=-1) for points in (flat, xy)]
    np.testing.assert_allclose(*distances, atol=1e-9)
    for few in (flat[:1], flat[:, :1], np.ones((4, 3))):
        assert np.isfinite(plane(few)[0]).all()


def test_embedding_map_has_a_point_per_word(make_inspector: MakeInspector, pieces: Tokenizer) -> None:
    inspector = make_inspector("generate", tokenizer=pieces)
    assert inspector.embedding_map(["red", "blue", "sky naïve"]).texts == (" red", " blue", "sky naïve")
    assert inspector.embedding_map(n=10).xy.shape == (10, 2)
    with pytest.raises(UsageError, match="needs at least one word"):
        inspector.embedding_map([])


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rotary"])
def test_similarity_of_positions_equals_the_formula(make_inspector: MakeInspector, task: Task, kind: str) -> None:
    inspector = make_inspector(task, {"positions": {"type": kind}})
    found = inspector.positions()
    assert (found.kind, len(found.encodings)) == (kind, 24)
    np.testing.assert_allclose(np.diag(found.similarity), 1)
    distances = abs(np.subtract.outer(np.arange(24), np.arange(24)))
    width = inspector.model.settings.d_head if kind == "rotary" else inspector.model.settings.d_model
    if kind != "learned":  # sine and cosine: the cosine between two positions is the mean of cos(frequency * distance)
        frequencies = 10_000 ** -(np.arange(0, width, 2) / width)
        np.testing.assert_allclose(found.frequencies, frequencies, rtol=1e-6)
        angles = distances[..., None] * frequencies
        np.testing.assert_allclose(found.similarity, np.cos(angles).mean(-1), atol=1e-5)
    assert len(inspector.positions(5).encodings) == 5
