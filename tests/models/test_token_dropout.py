"""Token dropout: while it learns, a classifier is not shown every token; afterwards it is."""

import pytest
import torch

from penwright.config import ModelSettings
from penwright.models import EncoderOnly

TOKENS, REAL = torch.randint(1, 9, (4, 6)), torch.ones(4, 6, dtype=torch.bool)


def classifier(token_dropout: float) -> EncoderOnly:
    torch.manual_seed(5)
    table = {"d_model": 16, "n_heads": 2, "zero_init_outputs": False, "token_dropout": token_dropout}
    return EncoderOnly(9, ModelSettings.model_validate(table), n_labels=3)


def test_hidden_tokens_are_neither_attended_to_nor_pooled() -> None:
    model, only_second = classifier(1 - 1e-9), torch.arange(6).expand(4, 6) == 1  # the first is the start token
    torch.testing.assert_close(model.train()(TOKENS, REAL), model.eval()(TOKENS, only_second))


def test_a_trained_model_is_shown_every_token() -> None:
    torch.testing.assert_close(classifier(0.5).eval()(TOKENS, REAL), classifier(0.0).eval()(TOKENS, REAL))


def test_about_the_stated_share_is_hidden_and_other_ones_each_time() -> None:
    model = classifier(0.3)
    shown = torch.stack([model.shown(torch.ones(400, 40, dtype=torch.bool)) for _ in range(2)])
    assert 0.27 < 1 - shown[:, :, 2:].float().mean().item() < 0.33
    assert (shown[0] != shown[1]).any()


@pytest.mark.parametrize(
    ("mean", "least", "most"), [(0.1, 0.0, 0.2), (0.45, 0.0, 0.9), (0.6, 0.3, 0.9), (0.95, 0.95, 0.95)]
)
def test_of_each_text_another_share_is_hidden_as_far_as_can_be_around_the_mean(
    mean: float, least: float, most: float
) -> None:
    shares = 1 - classifier(mean).shown(torch.ones(400, 2000, dtype=torch.bool))[:, 2:].float().mean(1)
    assert shares.min().item() == pytest.approx(least, abs=0.04)
    assert shares.max().item() == pytest.approx(most, abs=0.04)
