from collections.abc import Callable

import pytest
import torch

from penwright.data.batches import Prefetcher, TextBatch
from penwright.training.trainer import Trainer

MakeTrainer = Callable[..., Trainer]


@pytest.mark.parametrize("ahead", [True, False])
def test_prefetched_batches_match_their_steps_in_any_order(make_trainer: MakeTrainer, ahead: bool) -> None:
    batches = make_trainer().batches
    prefetcher = Prefetcher(batches, 2, torch.device("cpu"), ahead=ahead)
    for step in (0, 1, 2, 7, 8, 3):
        for given, wanted in zip(prefetcher(step), batches.for_step(step, 2), strict=True):
            assert isinstance(given, TextBatch) and isinstance(wanted, TextBatch)
            assert torch.equal(given.tokens, wanted.tokens) and torch.equal(given.targets, wanted.targets)


def test_prefetch_error_is_raised_at_its_own_step(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = make_trainer().batches
    made = batches.for_step(0, 1)
    monkeypatch.setattr(batches, "for_step", lambda step, _: made if step < 2 else 1 / 0)
    prefetcher = Prefetcher(batches, 1, torch.device("cpu"), ahead=True)
    assert prefetcher(0) and prefetcher(1)
    with pytest.raises(ZeroDivisionError):
        prefetcher(2)
