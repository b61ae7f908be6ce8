"""Throughput and memory estimates for GPUs, compared with published and measured figures."""

from typing import NamedTuple

import pytest

from penwright.cli import plan as plan_command
from penwright.config import Recipe, Table, validate
from penwright.model.size import size_of
from penwright.text import duration
from penwright.training.auto.choices import Plan
from penwright.training.auto.cluster import GPUS, ClusterEstimate, estimate_cluster


class Published(NamedTuple):
    """A published or measured throughput, in tokens per second of all GPUs."""

    source: str
    gpu: str
    n_gpus: int
    vocab_size: int
    model: Table
    tokens: int  # per step
    tokens_per_second: float


LLAMA_8B: Table = {
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 8,
    "d_ff": 14336,
    "context_length": 8192,
    "tie_embeddings": "none",
}
PUBLISHED = [
    Published(
        "nanoGPT README: GPT-2 (124M) on 8 A100 40GB in about 4 days; config/train_gpt2.py: 600,000 steps",
        *("a100", 8, 50304),
        {"d_model": 768, "n_layers": 12, "n_heads": 12, "context_length": 1024},
        491_520,
        600_000 * 491_520 / (4 * 86_400),
    ),
    Published(
        "benchmarks/results/gpu_train-2026-11-27.md: Penwright, GPT-2 (124M) on one H100, compiled",
        *("h100", 1, 50304),
        {"d_model": 768, "n_layers": 12, "n_heads": 12, "context_length": 1024},
        32_768,
        467_535,
    ),
    Published(
        "benchmarks/results/gpu_train-2026-11-27.md, nanoGPT in the same run",
        *("h100", 1, 50304),
        {"d_model": 768, "n_layers": 12, "n_heads": 12, "context_length": 1024},
        32_768,
        455_238,
    ),
    Published(
        # Three of four layers attend to half of the 2,048 tokens, so the mean is 1,280.
        "nanochat dev/LEADERBOARD.md, run 1 (depth 24, bfloat16): 16,704 steps in 10,949 s on 8 H100",
        *("h100", 8, 32768),
        {"d_model": 1536, "n_layers": 24, "n_heads": 12, "context_length": 1280, "tie_embeddings": "none"},
        524_288,
        16_704 * 524_288 / 10_949,
    ),
    Published(
        "nanochat speedrun.sh (2025), depth 20, 11.2 billion tokens: about 4 hours for the whole script on 8 H100",
        *("h100", 8, 65536),
        {"d_model": 1280, "n_layers": 20, "n_heads": 10, "context_length": 2048, "tie_embeddings": "none"},
        524_288,
        11.2e9 / (4 * 3600),
    ),
    Published(
        "torchtitan benchmarks/llama3_h100_202412_torchtitan.md, table 1: Llama 3.1 8B, FSDP and torch.compile",
        *("h100", 8, 128_256, LLAMA_8B, 16 * 8192, 8 * 6_667.0),
    ),
    Published(
        "torchtitan benchmarks/llama3_h100_202412_torchtitan.md, table 3: the same on 128 GPUs",
        *("h100", 128, 128_256, LLAMA_8B, 256 * 8192, 128 * 6_514.0),
    ),
    Published(
        "torchtitan docs/performance.md (2024): Llama 3 8B on 64 A100, selective activation checkpointing",
        *("a100", 64, 128_256, LLAMA_8B, 64 * 8192, 64 * 2_973.0),
    ),
]


def estimate(model: Table, vocab_size: int, tokens: int, n_gpus: int, gpu: str, **training: object) -> ClusterEstimate:
    table = {"task": "generate", "data": {"train": ["nowhere"]}, "model": model}
    table["training"] = {"steps": 1, "batch_tokens": tokens, **training}
    recipe = validate(Recipe, table, "test")
    size = size_of("generate", vocab_size, recipe.model, tokens, recomputes=recipe.training.activation_checkpointing)
    return estimate_cluster(recipe, size, n_gpus, GPUS[gpu])


def plan_of_8b(tokens: int) -> Plan:
    table = {"task": "generate", "data": {"train": ["nowhere"]}, "model": LLAMA_8B, "training": {"steps": 1}}
    recipe = validate(Recipe, table, "test")
    return Plan(recipe, (), size_of("generate", 128_256, recipe.model, tokens), 2.0, None, 1e9, 128_256)


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda each: each.source.split(":")[0])
def test_estimates_are_near_published_and_measured_throughput(published: Published) -> None:
    found = estimate(
        published.model, published.vocab_size, published.tokens, published.n_gpus, published.gpu, parallelism="fsdp"
    )
    assert found.tokens_per_second == pytest.approx(published.tokens_per_second, rel=0.2)


def test_sharded_memory_falls_with_more_gpus_as_published() -> None:
    """torchtitan: 82.4 GiB on 8 GPUs, and 67.0 GiB on 128, with the same batch per GPU."""
    for n, published in ((8, 82.4), (128, 67.0)):
        found = estimate(LLAMA_8B, 128_256, n * 2 * 8192, n, "h100", parallelism="fsdp")
        assert found.bytes_per_gpu == pytest.approx(published * 2**30, rel=0.25)


@pytest.mark.parametrize("recomputes", [False, True])
def test_plan_says_that_a_model_does_not_fit_the_gpus(recomputes: bool) -> None:
    found = estimate(LLAMA_8B, 128_256, 16 * 8192, 8, "h100", activation_checkpointing=recomputes)
    lines = list(plan_command._estimate_in_words(found, plan_of_8b(16 * 8192), "8 h100"))
    assert found.fits == recomputes == (not any("does not fit" in line for line in lines))


def test_model_is_sharded_only_if_it_does_not_fit() -> None:
    assert estimate(LLAMA_8B, 128_256, 16 * 8192, 8, "h100").parallelism == "fsdp"
    small = {"d_model": 768, "n_layers": 12, "n_heads": 12, "context_length": 1024}
    one, eight = (estimate(small, 50304, 16_384, n, "h100") for n in (1, 8))
    assert one.parallelism == eight.parallelism == "ddp"
    assert 2 * one.tokens_per_second < eight.tokens_per_second <= 8 * one.tokens_per_second
    assert eight.is_underused and not one.is_underused
    again = estimate(small, 50304, 16_384, 1, "h100", activation_checkpointing=True)
    assert again.tokens_per_second == pytest.approx(0.75 * one.tokens_per_second)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.65, "0.65 seconds"), (60.0, "60 seconds"), (90.0, "1.5 minutes"), (5400.0, "1.5 hours"), (345_600.0, "4 days")],
)
def test_duration_chooses_a_suitable_unit(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_gpu_plan_gives_times_for_the_text_and_for_the_model_size() -> None:
    found = estimate(LLAMA_8B, 128_256, 131_072, 8, "h100")
    _, _, times, *_ = plan_command._estimate_in_words(found, plan_of_8b(131_072), "8 h100")
    assert found.tokens_per_second == pytest.approx(61_100, rel=0.02)
    assert "about 2.3 hours for one epoch, and 30 days for 161 billion tokens (20 per parameter)" in times
