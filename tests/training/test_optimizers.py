import pytest
import torch
from torch import nn

from penwright.config import AdamW, LoraSettings, ModelSettings, Muon
from penwright.model import make_model
from penwright.model.transformer import DecoderOnly
from penwright.training.optimizers import MuonOptimizer, Optimizers, WeightAverage, orthogonalize


@pytest.mark.parametrize("shape", [(2, 8, 8), (1, 4, 16), (3, 16, 4)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape), torch.float32))
    assert values.min() > 0.5 and values.max() < 1.4


@pytest.mark.parametrize(("rows", "columns"), [(16, 8), (8, 16)])
def test_muon_equals_torch_muon_in_bfloat16(rows: int, columns: int) -> None:
    ours, theirs = (nn.Linear(columns, rows, bias=False) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    one = MuonOptimizer(ours.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, precision=torch.bfloat16)
    other = torch.optim.Muon(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        gradient = torch.randn(rows, columns)
        for layer, optimizer in ((ours, one), (theirs, other)):
            layer.weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=0, atol=0.01)


def test_muon_gets_the_block_matrices_and_adamw_the_rest() -> None:
    model = DecoderOnly(11, ModelSettings(d_model=16, n_layers=2, n_heads=2))
    (_, rest), (_, inner) = Optimizers(model, Muon()).parts
    assert set(inner) == {n for n, p in model.named_parameters() if n.startswith("decoder.blocks.") and p.ndim == 2}
    assert set(inner) | set(rest) == {name for name, _ in model.named_parameters()}
    assert not set(inner) & set(rest)


def test_muon_trains_adapters_without_adamw() -> None:
    settings = ModelSettings(d_model=16, n_layers=1, n_heads=2)
    model = make_model("generate", 11, settings, lora=LoraSettings(rank=2))
    ((_, adapters),) = Optimizers(model, Muon()).parts
    assert set(adapters) == {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_weight_decay_excludes_norms_biases_and_embeddings() -> None:
    model = DecoderOnly(11, ModelSettings(d_model=16, n_layers=1, n_heads=2, bias=True))
    ((adamw, _),) = Optimizers(model, AdamW(weight_decay=0.5)).parts
    decayed = {id(p) for group in adamw.param_groups if group["weight_decay"] for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert (id(parameter) in decayed) == (parameter.ndim == 2 and "embedding" not in name), name


@pytest.mark.parametrize("settings", [AdamW(), Muon()], ids=["adamw", "muon"])
def test_optimizer_state_round_trips_by_parameter_name(settings: AdamW | Muon) -> None:
    def optimizers_after_a_step() -> Optimizers:
        torch.manual_seed(0)
        model = DecoderOnly(11, ModelSettings(d_model=16, n_layers=1, n_heads=2))
        optimizers = Optimizers(model, settings)
        model(torch.arange(6)[None]).square().sum().backward()
        optimizers.step(1.0)
        return optimizers

    optimizers, fresh = optimizers_after_a_step(), optimizers_after_a_step()
    for part, _ in fresh.parts:
        part.state.clear()
    fresh.load_state(optimizers.state())
    before, after = optimizers.state(), fresh.state()
    assert before.keys() == after.keys() and before
    for name in before:
        torch.testing.assert_close(before[name], after[name], rtol=0, atol=0)


@pytest.mark.parametrize(("before", "now"), [(AdamW(), Muon()), (Muon(), AdamW())], ids=["muon", "adamw"])
def test_state_of_another_optimizer_is_refused(before: AdamW | Muon, now: AdamW | Muon) -> None:
    model = DecoderOnly(11, ModelSettings(d_model=16, n_layers=1, n_heads=2))
    trained = Optimizers(model, before)
    model(torch.arange(6)[None]).square().sum().backward()
    trained.step(1.0)
    with pytest.raises(ValueError, match="was trained by another optimizer"):
        Optimizers(model, now).load_state(trained.state())


def test_loaded_state_moves_to_the_device_of_the_parameters() -> None:
    settings = ModelSettings(d_model=16, n_layers=1, n_heads=2)
    model = DecoderOnly(11, settings)
    before = Optimizers(model, Muon())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before.step(1.0)
    on_meta = Optimizers(DecoderOnly(11, settings).to("meta"), Muon())
    on_meta.load_state(before.state())
    assert on_meta.state().keys() == before.state().keys()
    assert {tensor.device.type for tensor in on_meta.state().values()} == {"meta"}


def test_state_of_another_shape_is_refused() -> None:
    small, large = (
        Optimizers(DecoderOnly(11, ModelSettings(d_model=width, n_layers=1, n_heads=2)), AdamW()) for width in (16, 32)
    )
    for parameter in small.parts[0][1].values():
        parameter.grad = torch.randn_like(parameter)
    small.step(1.0)
    with pytest.raises(ValueError, match="has a different shape than its parameter"):
        large.load_state(small.state())


def test_average_soon_forgets_the_first_weights_and_later_changes_slowly() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    average = WeightAverage(layer, 0.999)
    nn.init.ones_(layer.weight)
    for step in range(1, 11):
        average.update(step)
    assert average.average["weight"].item() == pytest.approx(1, abs=1e-4)
    nn.init.zeros_(layer.weight)
    average.update(10**6)
    assert average.average["weight"].item() == pytest.approx(0.999, abs=1e-4)


def test_failed_evaluation_restores_the_current_weights() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    average = WeightAverage(layer, 0.9)
    nn.init.ones_(layer.weight)
    with pytest.raises(ZeroDivisionError), average.applied():
        _ = 1 / layer.weight.item()
    assert (layer.weight.item(), average.average["weight"].item()) == (1, 0)
