"""LoRA adapters on frozen matrices, which can be stored in bfloat16 during training."""

import torch

from penwright.config import LoraSettings, ModelSettings
from penwright.data.batches import TextBatch
from penwright.losses import summed_loss
from penwright.model import Model, make_model
from penwright.model.lora import A, LoraLinear, merged, narrow, widened


def gradients(model: Model) -> dict[str, torch.Tensor]:
    model.zero_grad()
    tokens = torch.arange(24).view(2, 12) % 9
    with torch.autocast("cpu", torch.bfloat16):
        loss = summed_loss(model, TextBatch(tokens.numel(), tokens, tokens.roll(-1, 1), None))
    loss.backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def test_narrow_matrices_give_the_same_gradients_and_can_be_widened() -> None:
    torch.manual_seed(0)
    model = make_model("generate", 9, ModelSettings(size="nano", qkv_bias=True, bias=True), lora=LoraSettings(rank=2))
    before = gradients(model)
    assert before and all("lora_" in name for name in before)
    narrow(model)
    matrices = [module.weight for module in model.modules() if isinstance(module, LoraLinear)]
    assert {each.dtype for each in matrices} == {torch.bfloat16}
    after = gradients(model)
    assert all(torch.equal(after[name], gradient) for name, gradient in before.items())
    with widened(model):
        assert {each.dtype for each in matrices} == {torch.float32}
        assert model(torch.zeros(1, 3, dtype=torch.long)).dtype == torch.float32
    assert {each.dtype for each in matrices} == {torch.bfloat16}
    assert {each.dtype for name, each in model.named_parameters() if name.endswith(A)} == {torch.float32}


def test_small_updates_are_not_rounded_away_in_narrow_weights() -> None:
    base, factors = {"up.weight": torch.ones(2, 2, dtype=torch.bfloat16)}, torch.full((2, 2), 0.01)
    found = merged(base, {"up.lora_A": factors, "up.lora_B": factors}, LoraSettings(rank=2))
    torch.testing.assert_close(found["up.weight"], torch.full((2, 2), 1.0004))
