"""Initial parameters of a model."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from penwright.config import ModelSettings, Task
from penwright.model import DecoderOnly, make_model, weights

SMALL = {"d_model": 64, "n_layers": 3, "n_heads": 4}


@pytest.mark.parametrize("task", ["generate", "translate", "classify"])
def test_new_block_outputs_start_at_zero(task: Task) -> None:
    model = make_model(task, 20, ModelSettings.model_validate(SMALL), n_labels=2)
    added = [p for name, p in model.named_parameters() if name.endswith(("attention.output.weight", ".down.weight"))]
    assert added and not any(parameter.any() for parameter in added)


def test_nonzero_block_outputs_shrink_with_the_number_of_layers() -> None:
    torch.manual_seed(0)
    deviations = []
    for n_layers in (2, 8):
        settings = ModelSettings.model_validate(SMALL | {"n_layers": n_layers, "zero_init_outputs": False})
        model = make_model("generate", 20, settings)
        deviations.append(model.get_parameter("decoder.blocks.0.attention.output.weight").std().item())
    assert deviations[0] / deviations[1] == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("task", ["generate", "translate", "classify"])
def test_biases_start_at_zero_and_norms_at_one(task: Task) -> None:
    settings = ModelSettings.model_validate(SMALL | {"norm": {"type": "layer"}, "bias": True, "output_bias": True})
    model = make_model(task, 20, settings, n_labels=2)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name


def test_same_seed_gives_the_same_model() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(11)
        models.append(make_model("translate", 20, ModelSettings.model_validate(SMALL)))
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


@pytest.mark.parametrize("n_rows", [100, 8], ids=["all tokens in each step", "some tokens in each step"])
def test_bigram_init_predicts_the_next_token_as_well_as_bigrams(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "BIGRAM_ROWS", n_rows)
    rng = np.random.default_rng(3)
    likely, tokens = rng.permutation(20), [0]
    for is_likely, other in zip(rng.random(5000) < 0.8, rng.integers(20, size=5000), strict=True):
        tokens.append(int(likely[tokens[-1]]) if is_likely else int(other))
    entropy = -(0.81 * np.log(0.81) + 19 * 0.01 * np.log(0.01))
    torch.manual_seed(0)
    model = make_model("generate", 24, ModelSettings.model_validate(SMALL | {"tie_embeddings": "none"}))  # 4 are unused
    assert isinstance(model, DecoderOnly)
    before = torch.get_rng_state()
    weights.start_from_bigrams(model, np.array(tokens, np.uint16))
    assert torch.equal(torch.get_rng_state(), before)
    logits = model.eval()(torch.tensor(tokens)[None, :2000])
    assert logits.isfinite().all() and all(parameter.grad is None for parameter in model.parameters())
    loss = F.cross_entropy(logits[0], torch.tensor(tokens)[1:2001]).item()
    assert loss == pytest.approx(entropy, abs=0.1)
