"""Wrong types and shapes raise errors during the tests."""

import math

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation

from penwright.config import ModelSettings
from penwright.decoding.continuous_batching import log_probs_of
from penwright.model.cache import Cache
from penwright.text import rounded


def test_wrong_argument_type_raises_in_functions_and_methods() -> None:
    cache = Cache(ModelSettings(n_kv_heads=1, d_head=2, d_ff=2), 1, 1, 4, torch.zeros(1))
    for call in (rounded, cache.make_room):
        with pytest.raises(BeartypeCallHintViolation):
            call("1.5")


@pytest.mark.parametrize(
    "tokens", [torch.tensor([[0, 1]]), torch.tensor([0.0, 1.0]), torch.tensor([0, 1, 2])], ids=["shape", "kind", "rows"]
)
def test_wrong_tensor_shape_or_dtype_raises(tokens: torch.Tensor) -> None:
    logits = torch.zeros(2, 5)
    assert log_probs_of(torch.tensor([0, 1]), logits).tolist() == pytest.approx([-math.log(5)] * 2)
    with pytest.raises(BeartypeCallHintViolation):
        log_probs_of(tokens, logits)
