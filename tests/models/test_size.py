"""Sizes of models, compared with those that papers report."""

import pytest
import torch

from penwright.config import LoraSettings, ModelSettings
from penwright.model import make_model
from penwright.model.size import size_of


def named(size: str, **changes: object) -> ModelSettings:
    return ModelSettings.model_validate({"size": size} | changes)


def test_gpt2_has_its_published_number_of_parameters() -> None:
    assert size_of("generate", 50257, named("gpt2")).parameters == 124_439_808


def test_transformer_base_has_its_published_number_of_parameters() -> None:
    assert round(size_of("translate", 37_000, named("transformer-base")).parameters / 1e6) == 63  # "65" in table 3


def test_transformer_big_has_its_published_number_of_parameters() -> None:
    assert round(size_of("translate", 37_000, named("transformer-big")).parameters / 1e6) == 214  # "213" in table 3


@pytest.mark.parametrize(("size", "parameters"), [("llama3-1b", 1_235_814_400), ("llama3-8b", 8_030_261_248)])
def test_llama3_has_its_published_number_of_parameters(size: str, parameters: int) -> None:
    assert size_of("generate", 128_256, named(size)).parameters == parameters


def test_tied_output_costs_the_same_multiplications() -> None:
    tied, untied = (size_of("generate", 1000, named("nano", tie_embeddings=tie)) for tie in ("all", "none"))
    assert tied.matrix_parameters == untied.matrix_parameters
    assert tied.parameters == untied.parameters - 64_000


def test_vocabulary_size_does_not_change_the_flops_of_a_classifier() -> None:
    small, large = (size_of("classify", vocabulary, named("nano")) for vocabulary in (10, 1000))
    assert small.flops_per_token == large.flops_per_token


@pytest.mark.parametrize("task", ["generate", "classify"])
def test_longer_context_adds_only_attention_flops(task: str) -> None:
    short, long = (size_of(task, 10, named("nano", context_length=length)) for length in (100, 300))
    assert long.flops_per_token - short.flops_per_token == 4 * 4 * 200 * 64


@pytest.mark.parametrize(
    ("size", "rank"),
    [("mini", 4), *((size, 8) for size in ("small", "medium", "base", "large", "gpt2")), ("smollm2", 16)],
)
def test_lora_adapters_are_at_most_4_percent_of_the_weights(size: str, rank: int) -> None:
    smollm2 = {"d_model": 576, "n_layers": 30, "n_heads": 9, "n_kv_heads": 3, "d_ff": 1536}
    settings = ModelSettings(**smollm2 if size == "smollm2" else {"size": size})
    vocabulary, lora = 49_152 if size == "smollm2" else 8000, LoraSettings(rank=rank)
    with torch.device("meta"):
        model = make_model("generate", vocabulary, settings, lora=lora)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert 0 < trained <= 0.04 * (sum(parameter.numel() for parameter in model.parameters()) - trained)
    found = size_of("generate", vocabulary, settings, lora=lora)
    assert found.trained == trained
    assert found.training_bytes < 0.5 * size_of("generate", vocabulary, settings).training_bytes
