from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from penwright.data import batches as batches_module
from penwright.data.batches import IGNORED, Markers, TextBatches, permuted
from penwright.data.bucketing import LabelledBatches, PairBatches, TokenDropout
from penwright.data.store import Column
from penwright.errors import PenwrightError

MARKERS = Markers(pad=60000, start=60001, end=60002)


def column(rows: list[list[int]]) -> Column:
    tokens = np.array([token for row in rows for token in row], dtype=np.uint16)
    return Column(tokens, np.cumsum([0, *map(len, rows)]), n_bytes=len(tokens))


def numbered_rows(seed: int, n_rows: int, longest: int) -> list[list[int]]:
    """Return rows of random lengths in which no number occurs twice."""
    lengths = np.random.default_rng(seed).integers(1, longest, n_rows)
    ends = np.cumsum(lengths)
    return [list(range(end - length, end)) for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]


def test_every_token_is_a_target_once_an_epoch() -> None:
    text = column([list(range(318))])  # a multiple of the window length, with its two markers
    batches = TextBatches(text, 8, 32, MARKERS)
    seen = Counter(int(t) for n in range(int(batches.per_epoch)) for t in batches.batch(n).targets.flatten())
    assert {seen[token] for token in range(318)} == {1}
    assert seen[MARKERS.end] == 1


@pytest.mark.parametrize("n", [1, 2, 3, 64, 65, 1000])
def test_permutation_visits_every_index_once(n: int) -> None:
    places = np.arange(n)
    images = permuted(places, n, seed=1)
    assert sorted(images.tolist()) == places.tolist()
    assert images[n // 2 :].tolist() == permuted(places[n // 2 :], n, seed=1).tolist()
    if n >= 64:
        assert images.tolist() != permuted(places, n, seed=2).tolist()
        assert abs(np.corrcoef(places, images)[0, 1]) < 0.4 and abs(np.corrcoef(images[1:], images[:-1])[0, 1]) < 0.4


def test_very_large_text_is_shuffled_without_storing_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "MOST_SHUFFLED", 0)
    text = column([list(range(318))])
    batches = TextBatches(text, 8, 32, MARKERS)
    seen = Counter(int(t) for n in range(int(batches.per_epoch)) for t in batches.batch(n).targets.flatten())
    assert {seen[token] for token in range(318)} == {1}
    assert not torch.equal(batches.batch(0).tokens, batches.batch(int(batches.per_epoch)).tokens)


def test_each_epoch_has_other_window_starts_and_another_order() -> None:
    batches = TextBatches(column([list(range(638))]), 8, 64, MARKERS)
    first, second = batches.batch(0).tokens, batches.batch(int(batches.per_epoch)).tokens
    assert not torch.equal(first, second)
    assert set((first[:, 0] % 8).tolist()) != set((second[:, 0] % 8).tolist())


def test_batch_depends_only_on_seed_and_batch_number() -> None:
    def batches(seed: int) -> TextBatches:
        return TextBatches(column([list(range(500))]), 8, 32, MARKERS, seed)

    late = batches(3).batch(40).tokens
    assert torch.equal(late, batches(3).batch(40).tokens)
    assert not torch.equal(late, batches(4).batch(40).tokens)


def test_attention_stops_at_documents_and_start_token_is_no_target() -> None:
    batches = TextBatches(column([[1, 2, 3], [4, 5], [6, 7, 8, 9]]), 6, 12, MARKERS)
    batch = next(batches.in_order())
    assert batch.tokens[0].tolist() == [60001, 1, 2, 3, 60002, 60001]
    assert batch.targets[0].tolist() == [1, 2, 3, 60002, IGNORED, 4]
    assert batch.segments is not None and batch.segments[0].tolist() == [0, 0, 0, 0, 0, 1]


def test_without_a_start_token_documents_follow_the_end_token() -> None:
    markers = replace(MARKERS, begins=False)
    batches = TextBatches(column([[1, 2, 3], [4, 5], [6, 7, 8, 9]]), 6, 12, markers)
    batch = next(batches.in_order())
    assert batch.tokens[0].tolist() == [1, 2, 3, 60002, 4, 5]
    assert batch.targets[0].tolist() == [2, 3, 60002, IGNORED, 5, 60002]
    assert batch.segments is not None and batch.segments[0].tolist() == [0, 0, 0, 0, 1, 1]
    targets = [t for each in batches.in_order() for t in each.targets.flatten().tolist() if t != IGNORED]
    assert sorted(targets) == [2, 3, 5, 7, 8, 9, 60002, 60002, 60002]


def test_one_document_needs_no_segments() -> None:
    batch = TextBatches(column([list(range(100))]), 8, 16, MARKERS).batch(3)
    assert batch.segments is None


def test_evaluation_predicts_every_token_of_the_text_once() -> None:
    batches = TextBatches(column([list(range(10, 60)), list(range(60, 93))]), 7, 21, MARKERS)
    targets = [t for batch in batches.in_order() for t in batch.targets.flatten().tolist() if t != IGNORED]
    assert sorted(targets) == sorted([*range(10, 93), MARKERS.end, MARKERS.end])
    assert sum(batch.n_targets for batch in batches.in_order()) == len(targets)


@pytest.mark.parametrize("n_tokens", [1, 2, 7])
def test_text_shorter_than_the_context_is_one_short_window(n_tokens: int) -> None:
    batches = TextBatches(column([list(range(n_tokens))]), 256, 4096, MARKERS)
    assert batches.length == n_tokens + 1
    assert batches.batch(0).n_targets > 0
    assert sum(batch.n_targets for batch in batches.in_order()) == n_tokens + 1


def test_each_pair_occurs_once_per_epoch_with_its_own_target() -> None:
    rows = numbered_rows(0, 200, 30)
    batches = PairBatches(column(rows), column([row[::-1] for row in rows]), 256, MARKERS)
    for epoch in range(2):
        seen = []
        for number in range(int(batches.per_epoch)):
            batch = batches.batch(epoch * int(batches.per_epoch) + number)
            for source, targets in zip(batch.source.tolist(), batch.targets.tolist(), strict=True):
                tokens = source[: source.index(MARKERS.end)]
                assert targets[: targets.index(MARKERS.end)] == tokens[::-1]
                seen.append(tokens[0])
        assert sorted(seen) == sorted(row[0] for row in rows)


def test_pairs_are_shifted_and_padded() -> None:
    batches = PairBatches(column([[5, 6], [7]]), column([[8], [9, 10, 11]]), 64, MARKERS)
    batch = next(batches.in_order())
    rows = {row[0]: n for n, row in enumerate(batch.source.tolist())}
    two = rows[5]
    assert batch.source[two].tolist() == [5, 6, 60002, 60000]
    assert batch.source_is_token[two].tolist() == [True, True, True, False]
    assert batch.target[two].tolist() == [60001, 8, 60000, 60000]
    assert batch.targets[two].tolist() == [8, 60002, IGNORED, IGNORED]
    assert batch.n_targets == 6


def test_pairs_get_their_language_tokens_as_prefixes() -> None:
    markers = replace(MARKERS, source_prefix=(100,), target_prefix=(200,))
    batches = PairBatches(column([[5, 6], [7]]), column([[8], [9, 10, 11]]), 64, markers, longest=5)
    batch = next(batches.in_order())
    assert batch.source.tolist() == [[100, 5, 6, 60002], [100, 7, 60002, 60000]]
    assert batch.source_is_token.sum(1).tolist() == [4, 3]
    assert batch.target.tolist() == [[60001, 200, 8, 60000, 60000], [60001, 200, 9, 10, 11]]
    assert batch.targets.tolist() == [[IGNORED, 8, 60002, IGNORED, IGNORED], [IGNORED, 9, 10, 11, 60002]]
    assert batch.n_targets == 6  # the language token is given, not predicted


def test_pair_batches_stay_within_batch_tokens() -> None:
    rows = numbered_rows(1, 300, 40)
    batches = PairBatches(column(rows), column(rows[::-1]), 200, MARKERS)
    for number in range(int(batches.per_epoch)):
        batch = batches.batch(number)
        assert batch.source.shape[0] * max(batch.source.shape[1], batch.target.shape[1]) <= 200


def test_pair_longer_than_a_batch_gets_its_own_batch() -> None:
    long = list(range(500))
    batches = PairBatches(column([long, [1]]), column([[1], [2]]), 64, MARKERS)
    assert sorted(batch.source.shape[0] for batch in batches.in_order()) == [1, 1]


def test_pairs_of_similar_length_share_a_batch() -> None:
    rows = numbered_rows(2, 2000, 60)
    batches = PairBatches(column(rows), column(rows), 1024, MARKERS)
    real = sum(batch.n_targets for batch in batches.in_order())
    padded = sum(batch.targets.numel() for batch in batches.in_order())
    assert real / padded > 0.9


def test_labelled_batches_have_nearly_equal_numbers_of_texts() -> None:
    """The loss of a batch is a mean: in a batch of few texts, each text would count for more."""
    lengths = [1] * 400 + [38] * 100 + [254]
    batches = LabelledBatches(column([[5] * n for n in lengths]), np.zeros(501, dtype=np.int32), 256, 256, MARKERS)
    sizes = [len(batch.targets) for batch in batches.in_order()]
    usual = max(sizes)
    assert sum(sizes) == 501
    assert sum(size < usual - 1 for size in sizes) <= 3, sizes  # batches of the longest texts: fewer, to save memory
    assert max(batch.tokens.numel() for batch in batches.in_order()) <= 4 * 256 + 256
    assert 0.8 * 256 < np.mean([batch.tokens.numel() for batch in batches.in_order()]) < 1.2 * 256


def test_labelled_text_longer_than_a_batch_gets_its_own_batch() -> None:
    batches = LabelledBatches(column([[5] * 90] * 3), np.zeros(3, dtype=np.int32), 100, 8, MARKERS)
    assert [len(batch.targets) for batch in batches.in_order()] == [1, 1, 1]


def test_labels_stay_with_their_texts_and_long_texts_are_truncated() -> None:
    rows = numbered_rows(3, 50, 40)
    labels = np.array([row[0] % 7 for row in rows], dtype=np.int32)
    batches = LabelledBatches(column(rows), labels, 16, 128, MARKERS)
    seen = 0
    for batch in batches.in_order():
        assert batch.tokens.shape[1] <= 16
        for tokens, padding, label in zip(batch.tokens, batch.is_token, batch.targets, strict=True):
            real = tokens[padding].tolist()
            assert real[0] == MARKERS.start and real[-1] == MARKERS.end
            assert label == real[1] % 7
            seen += 1
    assert seen == 50


def test_pairs_beyond_learned_positions_are_left_out() -> None:
    source, target = column([[1] * 3, [1] * 9, [1] * 3, [1] * 6]), column([[2] * 4, [2] * 2, [2] * 9, [2] * 5])
    batches = PairBatches(source, target, 64, MARKERS, longest=7)  # one more for the marker of each side
    assert batches.n_left_out == 2 and sorted(batches.order.tolist()) == [0, 3]
    assert {batch.source.shape[1] for batch in batches.in_order()} | {
        b.target.shape[1] for b in batches.in_order()
    } == {7}
    with pytest.raises(PenwrightError, match="context of 2 tokens"):
        PairBatches(source, target, 64, MARKERS, longest=2)


def test_labelled_texts_are_padded_at_most_to_the_context_length() -> None:
    batches = LabelledBatches(column([[1] * 60, [1] * 4]), np.array([0, 1], dtype=np.int32), 50, 512, MARKERS)
    assert max(batch.tokens.shape[1] for batch in batches.in_order()) == 50


@pytest.mark.parametrize("n_targets", [1, 40])
def test_tokens_per_epoch_equals_the_sum_over_its_batches(n_targets: int) -> None:
    pairs = PairBatches(column([[1] * 3] * 9), column([[2] * n_targets] * 9), 128, MARKERS)
    assert pairs.tokens_per_epoch == sum(batch.n_targets for batch in pairs.in_order()) == 9 * (n_targets + 1)
    text = TextBatches(column([list(range(318))]), 8, 32, MARKERS)
    found = sum(text.batch(n).n_targets for n in range(int(text.per_epoch)))
    assert text.tokens_per_epoch == found + 1  # the start token is never a target


@pytest.mark.parametrize("token_dropout", [None, TokenDropout(0.3, False)])
def test_each_epoch_reads_another_part_of_a_long_text(token_dropout: TokenDropout | None) -> None:
    long, short = list(range(10, 410)), [5, 6, 7]
    labels = np.array([0, 1], dtype=np.int32)
    batches = LabelledBatches(column([long, short]), labels, 34, 512, MARKERS, 0, token_dropout)
    assert batches.n_cut == 1
    seen: set[int] = set()
    for number in range(60):
        batch = batches.batch(number)
        row = batch.tokens[batch.targets.tolist().index(0)]
        part = [token for token in row.tolist() if 10 <= token < 410]
        assert part == sorted(part) and part[-1] - part[0] < 32
        seen |= set(part)
    assert len(seen) > 350
    assert all(torch.equal(batches.batch(7).tokens, batches.batch(7).tokens) for _ in range(3))
    (whole,) = batches.in_order()
    assert long[0] in whole.tokens.tolist()[whole.targets.tolist().index(0)]


@pytest.mark.parametrize("one_in", [2, 3, 7, 100])
def test_in_order_with_a_stride_yields_every_nth_batch(one_in: int) -> None:
    text = TextBatches(column([list(range(318))]), 8, 32, MARKERS)
    pairs = PairBatches(column(numbered_rows(1, 90, 20)), column(numbered_rows(1, 90, 20)), 64, MARKERS)
    for batches in (text, pairs):
        every = [batch.targets.tolist() for batch in batches.in_order()]
        assert [batch.targets.tolist() for batch in batches.in_order(one_in)] == every[::one_in]
