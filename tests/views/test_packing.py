import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penwright.views.packing import pack, to_root_bytes


def header(packed: bytes) -> Any:
    return json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")])


class ExampleTuple(NamedTuple):
    text: str


@dataclass
class ExampleDataclass:
    numbers: np.ndarray


@given(st.floats(0, 1))
def test_packed_probability_error_is_at_most_0_004(probability: float) -> None:
    byte = to_root_bytes(np.array([probability]))
    assert byte.dtype == np.uint8
    assert abs((byte[0] / 255) ** 2 - probability) <= 0.004


def test_arrays_are_found_at_the_offsets_in_the_header() -> None:
    arrays = {"a": np.arange(5, dtype=np.uint8), "b": np.array([[0.5, -np.inf]]), "c": np.array([7, -2])}
    packed = pack(arrays)
    first = 4 + int.from_bytes(packed[:4], "little")
    for name, kind in (("a", np.uint8), ("b", np.float32), ("c", np.int32)):
        place = header(packed)[name]
        assert (first + place["offset"]) % 8 == 0, "browsers require aligned offsets"
        size = int(np.prod(place["shape"]))
        found = np.frombuffer(packed, kind, size, first + place["offset"]).reshape(place["shape"])
        np.testing.assert_array_equal(found, arrays[name].astype(kind))


def test_records_become_objects_and_non_finite_numbers_null() -> None:
    data = {
        "tokens": [ExampleTuple("a\ud800")],
        "record": ExampleDataclass(np.zeros(2)),
        "worst": float("-inf"),
        "n": np.int64(3),
    }
    found = header(pack(data))
    assert found["tokens"] == [{"text": "a\ud800"}]
    assert found["record"]["numbers"]["shape"] == [2]
    assert found["worst"] is None
    assert found["n"] == 3
