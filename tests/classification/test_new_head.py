"""The head of a classifier that starts from another run, and contrastive fine-tuning."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from penwright.classification.fitting import stratified_folds
from penwright.config import ModelSettings
from penwright.data.batches import Markers
from penwright.data.bucketing import LabelledBatches
from penwright.data.store import Column
from penwright.model.transformer import EncoderOnly
from penwright.workflows import new_head
from penwright.workflows.new_head import contrast, cross_validate, without_bias


def test_folds_are_stratified_by_label() -> None:
    folds = stratified_folds(torch.tensor([0] * 20 + [1] * 10), seed=3)
    assert [np.bincount(folds[part]).tolist() for part in (slice(20), slice(20, 30))] == [[4] * 5, [2] * 5]


def test_cross_validation_does_not_see_left_out_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.tensor([0, 1] * 20)
    vectors = torch.randn(40, 8, generator=generator)
    informative = vectors + 6 * F.one_hot(targets, 8)
    folds = stratified_folds(targets, 0)
    assert (cross_validate([informative] * 5, targets, 2, folds).logits.argmax(-1) == targets).all()
    chance = cross_validate([vectors] * 5, targets, 2, folds)
    assert (chance.logits.argmax(-1) == targets).float().mean() < 0.8
    assert chance.strength < cross_validate([informative] * 5, targets, 2, folds).strength  # noise needs regularization


def test_logits_of_few_texts_are_scaled_if_the_vectors_are_informative() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.tensor([0, 1] * 16)
    noise = torch.randn(32, 8, generator=generator)
    folds = stratified_folds(targets, 0, 2)
    known, unknown = (
        cross_validate([F.normalize(each, dim=-1)] * 2, targets, 2, folds, is_few=True)
        for each in (noise + 3 * F.one_hot(targets, 8), noise)
    )
    assert known.scale == pytest.approx(5.5**0.5) and unknown.scale == 1.0
    assert {known.strength, unknown.strength} <= set(new_head.FEW_STRENGTHS)
    assert cross_validate([noise] * 5, targets, 2, folds).scale == 1.0, "with many texts, logits are not scaled"


def test_a_bias_can_be_expressed_as_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    features = F.normalize(1 + torch.randn(20, 8, generator=generator), dim=-1)
    weights, bias = torch.randn(8, 3, generator=generator), torch.tensor([1.0, 0.0, -2.0])
    folded, zeros = without_bias(weights, bias, features)
    assert not zeros.any()
    mean = features.mean(0)
    assert torch.allclose(mean @ folded, mean @ weights + bias, atol=1e-5)  # the mean vector keeps its logits
    differences = features - mean
    orthogonal = differences - torch.outer(differences @ mean, mean) / mean.square().sum()
    assert torch.allclose(orthogonal @ folded, orthogonal @ weights, atol=1e-5)


def test_contrastive_tuning_raises_similarity_within_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_head, "RATE", 1e-3)
    torch.manual_seed(0)
    model = EncoderOnly(20, ModelSettings(d_model=16, n_layers=1, n_heads=2, zero_init_outputs=False), 2)
    labels = np.array([0, 1] * 8, dtype=np.int32)
    tokens = np.array([[3 + label, 5 + number % 7] for number, label in enumerate(labels)], dtype=np.uint16)
    column = Column(tokens.flatten(), np.arange(0, 33, 2), 0)
    texts = LabelledBatches(column, labels, 8, 128, Markers(0, 1, 2))
    before = model.output.weight.clone()

    def contrast_of_similarities() -> float:
        batch = texts.examples(np.arange(16))
        with torch.no_grad():
            vectors = F.normalize(model.pool(model.hidden(batch.tokens, batch.is_token), batch.is_token), dim=-1)
        same = batch.targets[:, None] == batch.targets
        similarities = vectors @ vectors.T
        return float(similarities[same].mean() - similarities[~same].mean())

    first = contrast_of_similarities()
    contrast(model, texts, np.arange(16), n_steps=50)
    assert contrast_of_similarities() > first + 0.1
    assert torch.equal(model.output.weight, before)  # the head is fitted afterwards
