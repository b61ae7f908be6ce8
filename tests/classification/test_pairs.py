"""Classification of text pairs: reading, encoding, batching and predicting."""

from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penwright.classification.classifier import Classifier
from penwright.classification.linear import LinearClassifier
from penwright.classification.ngrams import count_ngrams
from penwright.config import ModelSettings
from penwright.data.batches import LabelledBatch
from penwright.data.bucketing import TokenDropout
from penwright.data.corpus import Columns, Labelled, ReadingOptions
from penwright.data.labelled import open_evaluation_labelled, open_labelled
from penwright.errors import PenwrightError, PenwrightWarning, Undecided, UsageError
from penwright.model.transformer import EncoderOnly
from penwright.tokenizers.chat_template import encode_pieces
from penwright.tokenizers.markup import cut_pair, encode_text, text_in_pieces
from penwright.tokenizers.training import train_tokenizer

ROWS = [(f"a man number {i} sleeps", f"a {'man' if i % 2 else 'dog'} {i} sleeps", "yn"[i % 2]) for i in range(40)]
END = 1


def table(folder: Path, header: str = "premise,hypothesis,label", name: str = "a.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *map(",".join, ROWS)]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("header", ["premise,hypothesis,label", "sentence1,sentence2,label", "question,answer,label"])
def test_columns_named_like_a_pair_are_read_as_pairs(tmp_path: Path, header: str) -> None:
    corpus = open_labelled([table(tmp_path, header)])
    assert corpus.text_pairs
    assert {*corpus.training, *corpus.held_out} == {Labelled(f"{a}\x1e{b}", label) for a, b, label in ROWS}


def test_older_runs_join_the_columns_with_a_space(tmp_path: Path) -> None:
    corpus = open_evaluation_labelled([table(tmp_path)], ReadingOptions(Columns(text_pairs=False)))
    assert not corpus.text_pairs
    assert {each.text for each in corpus.held_out} == {f"{a} {b}" for a, b, _ in ROWS}


def test_pair_with_a_blank_text_is_dropped_and_reported(tmp_path: Path) -> None:
    path = table(tmp_path)
    path.write_text(path.read_text() + ",only one,y\nonly one,,n\n", encoding="utf-8")
    corpus = open_labelled([path])
    assert {each.reason: each.count for each in corpus.report.dropped} == {"one text of the pair is blank": 2}


def test_pair_model_needs_two_text_columns(tmp_path: Path) -> None:
    reading = ReadingOptions(Columns(text="premise", label="label", text_pairs=True))
    with pytest.raises(PenwrightError, match=r"expects pairs of texts. .*--columns"):
        open_evaluation_labelled([table(tmp_path)], reading)


def test_two_text_columns_with_unclear_names_are_undecided(tmp_path: Path) -> None:
    with pytest.raises(Undecided) as undecided:
        path = table(tmp_path, "left,right,label")
        words = ["ash", "oak", "elm", "fir", "yew", "bay", "fig", "box", "may", "nut"]
        rows = [
            f"the {words[i % 10]} and {words[i // 4]} grow,some {words[i * 3 % 10]} near {words[i // 5]},{'ab'[i % 2]}"
            for i in range(40)
        ]
        path.write_text("\n".join(["left,right,label", *rows]), encoding="utf-8")
        open_labelled([path])
    assert 'data.text=["left", "right"]' in [each.settings[0] for each in undecided.value.options]


def test_mixing_pairs_and_single_texts_is_refused(tmp_path: Path) -> None:
    single = tmp_path / "b.csv"
    single.write_text("text,label\n" + "".join(f"a text {i},{'yn'[i % 2]}\n" for i in range(30)), encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"a\.csv has pairs of texts, but .*b\.csv has single texts"):
        open_labelled([table(tmp_path), single])


def test_stored_tokens_of_a_pair_equal_the_classifiers() -> None:
    tokenizer = train_tokenizer("bpe", [" ".join(row) for row in ROWS], 300, prefix_space=True)
    pair = "a man\x1ea dog </s>"
    tokens = encode_text(pair, tokenizer)
    assert encode_pieces(tokenizer, text_in_pieces(pair, tokenizer)) == tokens
    assert tokens == [*tokenizer.encode("a man"), tokenizer.end_id, *tokenizer.encode("a dog </s>")]


@given(st.integers(0, 12), st.integers(0, 12), st.integers(2, 20), st.integers(1, 2))
def test_too_long_pair_is_truncated_at_its_longer_text(n_first: int, n_second: int, room: int, n_ends: int) -> None:
    first, second = list(range(10, 10 + n_first)), list(range(30, 30 + n_second))
    cut = cut_pair([*first, *[END] * n_ends, *second], END, room)
    assert len(cut) == min(room, n_first + n_ends + n_second) and cut.count(END) == n_ends
    one, other = cut[: cut.index(END)], cut[cut.index(END) + n_ends :]
    assert one == first[: len(one)] and other == second[: len(other)]
    if len(one) < n_first and len(other) < n_second:
        assert abs(len(one) - len(other)) <= 1
    elif len(one) < n_first:
        assert len(one) >= len(other) - 1


def test_ngrams_of_each_text_and_of_shared_words_are_distinct() -> None:
    swapped = count_ngrams(["good film\x1ebad film", "bad film\x1egood film"])
    first, second = ({*swapped.keys[swapped.rows == row].tolist()} for row in range(2))
    assert first != second
    single = {*count_ngrams(["good film"]).keys.tolist()}
    assert single < first and first & second > {*count_ngrams(["film"]).keys.tolist()}  # "film" in each view


def test_linear_classifier_learns_whether_texts_share_a_word() -> None:
    texts = [f"{'abcdefgh'[i % 8]}\x1e{'abcdefgh'[i * j % 8]}" for i in range(8) for j in range(8)]
    labels = torch.tensor([int(text[0] == text[2]) for text in texts])
    found = LinearClassifier.fit(texts, labels, 2).outputs(texts).argmax(-1)
    assert (found == labels).all()


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    tokenizer = train_tokenizer("bpe", [" ".join(row) for row in ROWS], 300, prefix_space=True)
    torch.manual_seed(0)
    settings = ModelSettings(
        d_model=16, n_layers=1, n_heads=2, context_length=24, text_pairs=True, token_types=2, zero_init_outputs=False
    )
    model = EncoderOnly(tokenizer.vocab_size, settings, 2).eval()
    assert model.embedding.second is not None
    torch.nn.init.normal_(model.embedding.second.weight)
    return Classifier(model, tokenizer, ("n", "y"))


def test_pairs_are_tuples_or_texts_with_a_tab(classifier: Classifier) -> None:
    pairs = [("a man", "a dog"), ("a dog", "a man sleeps")]
    found = classifier.classify(pairs)
    assert found == classifier.classify(["a man\ta dog", "a dog\ta man sleeps"])
    assert found[0].scores != classifier.classify([("a dog", "a man")])[0].scores  # the order matters
    assert [each.scores for each in found] == [  # a batch gives what single pairs give
        pytest.approx(classifier.classify([pair])[0].scores, abs=1e-6) for pair in pairs
    ]
    assert classifier.classify([("a man", " ")])[0].label is None


@pytest.mark.parametrize("missing", [None, float("nan"), ("a man", None)])
def test_missing_text_is_refused(classifier: Classifier, monkeypatch: pytest.MonkeyPatch, missing: Any) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # a table of pandas has no types
    with pytest.raises(UsageError, match=r"text 2: .* is neither a text nor a pair"):
        classifier.classify(["a man\ta dog", missing])


@pytest.mark.parametrize("text", ["a man", "a\tb\tc"])
def test_text_that_is_not_a_pair_is_refused(classifier: Classifier, text: str) -> None:
    with pytest.raises(UsageError, match="one tab between the two texts"):
        classifier.classify([text])
    with pytest.raises(UsageError, match=r"text 3: .*one tab between the two texts"):
        classifier.classify(["a man\ta dog", "", text])
    assert classifier.classify([" ", "a man\ta dog"])[0].label is None


def test_too_long_pair_gives_a_truncation_warning(classifier: Classifier) -> None:
    found = classifier.classify([("a man " * 50, "a dog")])[0]
    assert found.label and any("longer text" in each for each in found.warnings)


def test_pairs_and_single_texts_can_be_embedded(classifier: Classifier) -> None:
    pair, same, padded, turned = classifier.embed(
        [("a man", "a dog"), "a man\ta dog", " a man \ta dog ", "a dog\ta man"]
    )
    torch.testing.assert_close(pair, same)
    torch.testing.assert_close(pair, padded)
    assert (pair - turned).abs().max() > 1e-3
    long, beginning = classifier.embed(["a man sleeps " * 20 + "a dog", "a man sleeps " * 20])
    assert (long - beginning).abs().max() > 1e-4  # windows reach the end of a long text


def test_only_the_second_text_has_the_second_token_type() -> None:
    tokens = torch.tensor([[5, 8, 8, END, 9, 9, END], [5, 8, END, 9, END, 0, 0]])
    found = EncoderOnly._in_second_text(tokens, tokens != 0)
    assert found[0].tolist() == [False, False, False, False, True, True, True]
    assert found[1].tolist()[:5] == [False, False, False, True, True]


def test_token_dropout_keeps_both_end_tokens_of_a_pair() -> None:
    random, dropout = np.random.default_rng(0), TokenDropout(0.8, kept=END)
    row = [5, *range(10, 20), END, *range(20, 30), END]
    tokens = torch.tensor([row] * 20)
    batch = LabelledBatch(20, tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros(20, dtype=torch.long))
    numbers = dropout.draw_lengths(np.full(20, len(row)), random)
    shown = dropout.shown(batch, numbers, random)
    for kept, padding, n in zip(shown.tokens, shown.is_token, numbers.tolist(), strict=True):
        assert len(kept[padding]) == n < len(row)
        assert kept[padding].tolist().count(END) == 2 and kept[padding][-1] == END


def test_old_names_of_the_outputs_give_a_warning(classifier: Classifier) -> None:
    texts = [np.array(encode_text("a man\x1ea dog", classifier.tokenizer))]
    with pytest.warns(PenwrightWarning, match=r"use Classifier\.outputs"):
        assert torch.equal(classifier.log_probabilities(texts), classifier.outputs(texts))
    with pytest.warns(PenwrightWarning, match="use Classifier.linear_outputs"):
        assert classifier.linear_log_probabilities(["a"]) is None
