"""Masked-token training: which tokens are masked, and what the loss counts."""

import numpy as np
import pytest
import torch

from penwright.config import ModelSettings
from penwright.data.batches import IGNORED, Markers, MaskedBatch
from penwright.data.bucketing import LabelledBatches
from penwright.data.store import Column
from penwright.losses import summed_loss
from penwright.model.transformer import EncoderOnly
from penwright.tasks.encoding import MASKED, MOST_CHARACTERS, MaskedBatches, passages

MARKERS = Markers(pad=0, start=1, end=2)
LENGTHS = np.random.default_rng(3).integers(1, 90, 400)


MASK = 3


def batches(seed: int = 7) -> MaskedBatches:
    tokens = np.random.default_rng(1).integers(10, 60, LENGTHS.sum())
    column = Column(tokens.astype(np.uint16), np.concatenate([[0], np.cumsum(LENGTHS)]), 0)
    return MaskedBatches(LabelledBatches(column, np.zeros(400, np.int32), 48, 512, MARKERS, seed), 60, MASK)


def epoch(of: MaskedBatches) -> list[MaskedBatch]:
    return [of.batch(number) for number in range(int(of.per_epoch))]


def test_a_fifth_of_the_tokens_is_masked_but_never_markers() -> None:
    found = epoch(batches())
    targets = torch.cat([batch.targets.flatten() for batch in found])
    n_tokens = sum(int(batch.is_token.sum()) - 2 * len(batch.is_token) for batch in found)
    assert int((targets != IGNORED).sum()) / n_tokens == pytest.approx(MASKED, abs=0.01)
    assert sum(batch.n_targets for batch in found) == int((targets != IGNORED).sum())
    assert not torch.isin(targets, torch.tensor([0, 1, 2, MASK])).any()
    is_target = [batch.targets != IGNORED for batch in found]
    kept = torch.cat([(batch.tokens == batch.targets)[each] for batch, each in zip(found, is_target, strict=True)])
    masked = torch.cat([batch.tokens[each] == MASK for batch, each in zip(found, is_target, strict=True)])
    assert masked.double().mean() == pytest.approx(0.8, abs=0.04)
    assert kept.double().mean() == pytest.approx(0.1, abs=0.04)


def test_masks_differ_by_epoch_and_repeat_in_evaluation_and_on_resume() -> None:
    one, other = batches(), batches()
    n = int(one.per_epoch)
    assert torch.equal(one.batch(3).targets, other.batch(3).targets)
    first, second = ({tuple(row) for b in range(n) for row in one.batch(e * n + b).targets.tolist()} for e in (0, 1))
    assert len(first & second) < len(first) / 2
    for ours, again in zip(one.in_order(), other.in_order(), strict=True):
        assert torch.equal(ours.tokens, again.tokens) and torch.equal(ours.targets, again.targets)


def test_masked_loss_is_the_cross_entropy_of_masked_tokens_only() -> None:
    torch.manual_seed(0)
    model = EncoderOnly(60, ModelSettings(d_model=16, n_heads=2, n_layers=1, zero_init_outputs=False), 0)
    batch = batches().batch(0)
    logits = model.hidden(batch.tokens, batch.is_token) @ model.embedding.tokens.weight.T
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    torch.testing.assert_close(summed_loss(model, batch), expected, rtol=1e-5, atol=1e-4)
    summed_loss(model, batch).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_passages_join_lines_and_hold_the_whole_text() -> None:
    lines = [f"line {number} " + "x" * (number * 7 % 50) for number in range(100)]
    lines[20] = lines[60] = ""
    lines[40] = "y" * 1000
    text = "\n".join(lines)
    found = list(passages([text[:333], text[333:2000], text[2000:]]))
    assert "\n".join(found).split("\n") == [line for line in lines if line]
    assert all(len(each) <= MOST_CHARACTERS or "\n" not in each for each in found) and len(found) < 30
    assert any(each.startswith("line 21 ") for each in found)
    assert list(passages(["", "\n\n", " "])) == []
