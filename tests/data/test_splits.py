"""Selection of the held-out set."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.data.cleaning import duplicates
from penwright.data.splits import held_out_documents, held_out_of_classes, held_out_rows, tail_start

rows = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), st.booleans()), min_size=1, max_size=40)


def arrays(table):
    keys, classes, keep = zip(*table, strict=True)
    return np.array(keys, dtype=np.uint64), np.array(classes, dtype=np.uint64), np.array(keep)


@settings(max_examples=50)
@given(rows.filter(lambda table: any(keep for *_, keep in table)), st.integers(0, 40), st.integers(0, 3))
def test_rows_with_the_same_key_are_held_out_together(table, wanted, seed):
    keys, _, keep = arrays(table)
    chosen = held_out_rows(keys, keep, wanted, seed)
    assert chosen.any()
    assert not (chosen & ~keep).any()
    assert not np.isin(keys[keep & ~chosen], keys[chosen]).any()


def test_requested_number_of_rows_is_held_out():
    keys = np.arange(10_000, dtype=np.uint64)
    assert held_out_rows(keys, np.ones(10_000, dtype=bool), 100, seed=5).sum() == 100


@settings(max_examples=100)
@given(rows.filter(lambda table: any(keep for *_, keep in table)), st.integers(1, 40))
def test_no_class_loses_its_last_text(table, wanted):
    keys, classes, keep = arrays(table)
    chosen = held_out_of_classes(keys, classes, keep, wanted, seed=0)
    left = keep & ~np.isin(keys, keys[chosen])
    assert set(classes[chosen]) <= set(classes[left])


def test_held_out_documents_fill_the_size_but_never_take_all():
    sizes, hashes = np.full(100, 10), np.arange(100, dtype=np.uint64)
    assert sizes[held_out_documents(hashes, sizes, 205, seed=0)].sum() == 200
    assert held_out_documents(hashes, sizes, 5000, seed=0).sum() == 99


def test_short_documents_are_not_held_out_more_often():
    sizes, hashes = np.tile([100, 1], 50), np.arange(100, dtype=np.uint64)
    chosen = np.array([held_out_documents(hashes, sizes, 250, seed) for seed in range(30)])
    assert chosen[:, sizes == 1].sum() < 3 * chosen[:, sizes == 100].sum()


@pytest.mark.parametrize("select", [held_out_rows, held_out_of_classes])
def test_seed_changes_the_held_out_part(select):
    keys, rest = np.arange(200, dtype=np.uint64), (np.zeros(200, dtype=np.uint64),)
    rest = rest if select is held_out_of_classes else ()
    one, other = (select(keys, *rest, np.ones(200, dtype=bool), 20, seed) for seed in (1, 2))
    assert one.sum() == other.sum() == 20 and (one & other).sum() < 10


def test_smallest_document_is_held_out_when_all_are_too_large():
    sizes = np.array([50, 30, 40])
    assert held_out_documents(np.arange(3, dtype=np.uint64), sizes, 10, seed=0).tolist() == [False, True, False]


def test_tail_starts_at_a_line_for_any_chunk_size():
    text = "".join(f"line {i}\n" for i in range(40))
    starts = {
        tail_start([text[i : i + n] for i in range(0, len(text), n)], len(text), 0.3).characters
        for n in (1, 5, 64, 999)
    }
    assert len(starts) == 1
    assert text[starts.pop() - 1] == "\n"


def test_tail_start_counts_characters_and_bytes():
    cut = tail_start(["żółw\n", "jeż\n", "ryś\n", "ł\n"], 15, 0.4)
    assert cut == (9, len("żółw\njeż\n".encode()))


def test_tail_start_does_not_search_far_for_a_line_start():
    assert tail_start(["x" * 98 + "\n" + "y"], 100, 0.1).characters == 90


def test_repeats_marks_all_but_the_first_kept_row():
    hashes, keep = np.array([7, 7, 8, 7], dtype=np.uint64), np.array([False, True, True, True])
    assert duplicates(hashes, keep).tolist() == [False, False, False, True]


def test_rare_and_tiny_classes_are_held_out_in_proportion():
    keys = np.arange(2_000, dtype=np.uint64)
    classes = np.zeros(2_000, dtype=np.uint64)
    classes[:5], classes[5:205] = 1, np.repeat(np.arange(2, 102), 2)
    chosen = held_out_of_classes(keys, classes, np.ones(2_000, dtype=bool), 200, seed=0)
    assert chosen[classes == 1].sum() == 1
    assert chosen[classes > 1].sum() == pytest.approx(20, abs=1)
    assert chosen.sum() == pytest.approx(200, abs=5)


@pytest.mark.parametrize("n_same", [999, 990, 700])
def test_frequent_key_does_not_take_over_the_held_out_part(n_same):
    keys = np.r_[np.zeros(n_same, dtype=np.uint64), np.arange(1, 1001 - n_same, dtype=np.uint64)]
    for seed in range(20):
        chosen = held_out_rows(keys, np.ones(1000, dtype=bool), 100, seed)
        assert 1 <= chosen.sum() <= 100
