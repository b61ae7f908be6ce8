"""Sizes are those that papers report, and cost nothing to know."""

import pytest

from penwright.config import ModelSettings
from penwright.model.size import size_of


def named(size: str, **changes: object) -> ModelSettings:
    return ModelSettings.model_validate({"size": size} | changes)


def test_gpt2_has_the_parameters_of_gpt2() -> None:
    assert size_of("generate", 50257, named("gpt2")).parameters == 124_439_808


def test_the_base_transformer_has_the_parameters_of_the_paper() -> None:
    assert round(size_of("translate", 37_000, named("transformer-base")).parameters / 1e6) == 63  # "65" in table 3


def test_the_big_transformer_has_the_parameters_of_the_paper() -> None:
    assert round(size_of("translate", 37_000, named("transformer-big")).parameters / 1e6) == 214  # "213" in table 3


def test_a_tied_output_is_multiplied_with_like_a_separate_one() -> None:
    tied, untied = (size_of("generate", 1000, named("nano", tie_embeddings=tie)) for tie in ("all", "none"))
    assert tied.matrix_parameters == untied.matrix_parameters
    assert tied.parameters == untied.parameters - 64_000


def test_a_table_of_embeddings_costs_a_classifier_no_multiplication() -> None:
    small, large = (size_of("classify", vocabulary, named("nano")) for vocabulary in (10, 1000))
    assert small.flops_per_token == large.flops_per_token


@pytest.mark.parametrize("task", ["generate", "classify"])
def test_a_longer_context_costs_only_attention(task: str) -> None:
    short, long = (size_of(task, 10, named("nano", context_length=length)) for length in (100, 300))
    assert long.flops_per_token - short.flops_per_token == 4 * 4 * 200 * 64
