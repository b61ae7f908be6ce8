"""Key-value caches: lengths of rows, and positions of new tokens."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from penwright.config import ModelSettings
from penwright.model.attention import KeysValues
from penwright.model.cache import GPU_ROOM, Cache, ContinuousCache, LayerCache, _room_for, positions_of, room_for

SETTINGS = ModelSettings.model_validate({"d_model": 8, "n_heads": 2})
NEW = torch.zeros(3, 2, dtype=torch.long)


def cache_of(lengths: list[int]) -> Cache:
    cache = Cache(SETTINGS, n_layers=1, batch=len(lengths), capacity=8, like=torch.zeros(1))
    cache.advance(torch.tensor(lengths))
    return cache


def test_positions_without_a_cache_count_from_zero() -> None:
    assert positions_of(NEW, None, SETTINGS).tolist() == [[0, 1]]


def test_rows_of_equal_length_share_their_positions() -> None:
    assert positions_of(NEW, cache_of([4, 4, 4]), SETTINGS).tolist() == [[4, 5]]


def test_rows_of_different_lengths_continue_at_their_own_ends() -> None:
    assert positions_of(NEW, cache_of([4, 1, 3]), SETTINGS).tolist() == [[4, 5], [1, 2], [3, 4]]


def test_selected_rows_keep_their_lengths() -> None:
    cache = cache_of([4, 1, 3])
    cache.select(torch.tensor([2, 0, 0]))
    cache.advance(1)
    assert positions_of(NEW, cache, SETTINGS).tolist() == [[4, 5], [5, 6], [5, 6]]


def test_new_keys_and_values_are_stored_at_their_positions() -> None:
    layer = LayerCache(KeysValues(*torch.zeros(2, 2, 1, 4, 3)))
    new = KeysValues(torch.ones(2, 1, 1, 3), 2 * torch.ones(2, 1, 1, 3))
    kept = layer.append(new, torch.tensor([[0], [2]]), end=3)
    assert filled(kept.keys) == [[1, 0, 0], [0, 0, 1]]
    assert filled(kept.values) == [[2, 0, 0], [0, 0, 2]]


def filled(kept: Tensor) -> list[list[float]]:
    return [[float(value) for value in row] for row in kept[:, 0, :, 0].tolist()]


def test_cache_has_the_precision_of_the_model() -> None:
    cache = Cache(SETTINGS, n_layers=2, batch=1, capacity=4, like=torch.zeros(1, dtype=torch.bfloat16))
    assert [layer.cached.keys.dtype for layer in cache.layers] == [torch.bfloat16, torch.bfloat16]


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(1, 150), max_size=4)), max_size=8))
def test_continuous_cache_keeps_its_rows_as_others_join_and_leave(plan: list[tuple[int, list[int]]]) -> None:
    settings = ModelSettings.model_validate({"d_model": 4, "n_heads": 1, "n_layers": 2, "context_length": 150})
    like, number = torch.zeros(1), 1.0
    cache, expected = ContinuousCache(settings, 2, 150, like), []
    for n_leaving, coming in plan:
        kept = list(range(n_leaving, len(expected)))[::-1]
        cache.select(torch.tensor(kept, dtype=torch.long))
        expected = [expected[row] for row in kept]
        if coming:
            new = Cache(settings, 2, len(coming), 150, like)
            new.make_room(max(coming))
            for row, length in enumerate(coming):
                for layer in new.layers:
                    layer.cached.keys[row, :, :length] = number
                expected.append((length, number))
                number += 1
            new.advance(torch.tensor(coming))
            cache.extend(new)
        assert cache.lengths.tolist() == [length for length, _ in expected]
        assert cache.longest == max((length for length, _ in expected), default=0) <= cache.room <= 150
        for row, (length, value) in enumerate(expected):
            assert all((layer.keys[..., :length, :] == value).all() for layer in cache.row(row, length))
            assert cache.layers[0].cached.keys.shape[0] == len(expected)


@pytest.mark.parametrize("n_tokens", [1, 20, 32, 33, 127, 128, 129, 1000, 5000])
def test_room_for_is_at_most_twice_the_need(n_tokens: int) -> None:
    assert n_tokens <= room_for(n_tokens) <= max(32, 2 * n_tokens)


@pytest.mark.parametrize("capacity", [100, 3000])
def test_continuous_cache_on_a_gpu_seldom_changes_its_room(capacity: int) -> None:
    rooms, room = [], 32
    for n_tokens in [*range(1, capacity), *range(capacity, 0, -1)]:
        room = _room_for(n_tokens, room, capacity, "cuda")
        assert n_tokens <= room <= capacity
        rooms.append(room)
    changes = [(one, other) for one, other in pairwise(rooms) if one != other]
    assert len(changes) <= 2 * max(0, capacity // GPU_ROOM).bit_length()
    if changes:  # the room does not change at once if the text gets a little shorter
        grown = max(rooms[: rooms.index(changes[0][1]) + 1])
        assert _room_for(grown // 2 - 1, grown, capacity, "cuda") == grown
