"""Embeddings: tied matrices, scaling, positions and dropout."""

from math import sqrt

import pytest
import torch

from penwright.config import ModelSettings, Table
from penwright.model.embedding import Embedding
from penwright.model.transformer import DecoderOnly, EncoderDecoder

VOCABULARY, WIDTH = 11, 8


def settings_of(**changes: object) -> ModelSettings:
    table: Table = {"d_model": WIDTH, "n_layers": 1, "n_heads": 2, "positions": {"type": "none"}}
    return ModelSettings.model_validate(table | changes)


def n_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("tie", "n_matrices"), [("all", 1), ("output", 2), ("none", 3)])
def test_encoder_decoder_ties_the_requested_matrices(tie: str, n_matrices: int) -> None:
    model = EncoderDecoder(VOCABULARY, settings_of(tie_embeddings=tie))
    source, target, output = (
        model.source_embedding.tokens.weight,
        model.target_embedding.tokens.weight,
        model.output.weight,
    )
    assert (source is target, target is output) == (tie == "all", tie != "none")
    others = n_parameters(model.encoder) + n_parameters(model.decoder)
    assert n_parameters(model) - others == n_matrices * VOCABULARY * WIDTH


@pytest.mark.parametrize(("tie", "n_matrices"), [("all", 1), ("output", 1), ("none", 2)])
def test_decoder_only_ties_its_output_unless_set_to_none(tie: str, n_matrices: int) -> None:
    model = DecoderOnly(VOCABULARY, settings_of(tie_embeddings=tie))
    assert n_parameters(model) - n_parameters(model.decoder) == n_matrices * VOCABULARY * WIDTH


def test_output_bias_has_one_parameter_per_token() -> None:
    with_bias, without = (DecoderOnly(VOCABULARY, settings_of(output_bias=bias)) for bias in (True, False))
    assert n_parameters(with_bias) - n_parameters(without) == VOCABULARY


@pytest.mark.parametrize(("scaled", "factor"), [(True, sqrt(WIDTH)), (False, 1.0)])
def test_embeddings_are_scaled_by_the_root_of_the_width_on_request(scaled: bool, factor: float) -> None:
    embedding = Embedding(VOCABULARY, settings_of(scale_embeddings=scaled))
    found = embedding(torch.tensor([[3, 4]]), torch.arange(2)[None])
    torch.testing.assert_close(found[0], embedding.tokens.weight[3:5] * factor)


def test_positions_are_added_after_scaling() -> None:
    settings = settings_of(scale_embeddings=True, positions={"type": "learned"})
    embedding = Embedding(VOCABULARY, settings)
    assert isinstance(embedding.positions, torch.nn.Embedding)
    expected = embedding.tokens.weight[3] * sqrt(WIDTH) + embedding.positions.weight[1]
    torch.testing.assert_close(embedding(torch.tensor([[3]]), torch.tensor([[1]]))[0, 0], expected)


def test_dropout_applies_to_the_sum_of_embeddings_and_positions() -> None:
    torch.manual_seed(0)
    embedding = Embedding(VOCABULARY, settings_of(dropout=0.5, positions={"type": "sinusoidal"}))
    found = embedding(torch.randint(VOCABULARY, (20, 10)), torch.arange(10)[None])
    assert 0.4 < (found == 0).float().mean().item() < 0.6
