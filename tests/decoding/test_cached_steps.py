from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from penwright.config import Table
from penwright.decoding.batches import PromptBatch, TargetBatch
from penwright.model import evaluating
from penwright.model.transformer import DecoderOnly, EncoderDecoder

VOCABULARY, CONTEXT, N_NEW = 29, 16, 20
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9], [8, 3, 8, 3, 5, 1, 2, 9, 11, 12, 3, 4, 5], list(range(16))]
SOURCES = [[4, 5, 6, 2], [7, 2], [1, 9, 8, 7, 6, 5, 4, 3, 2]]


def read_in_full(model: DecoderOnly, prompt: list[int], new: list[int]) -> Tensor:
    """Return the logits after the prompt and each new token, from full passes over the visible context."""
    context = model.settings.context_length
    half = context - context // 2
    context_tokens, logits = prompt if len(prompt) <= context else prompt[-half:], []
    n_read = len(context_tokens) - 1
    for token in new:
        if len(context_tokens) == context:
            logits.append(model(torch.tensor([context_tokens]))[0, n_read:])
            context_tokens = [*context_tokens, token][-half:]
            n_read = half - 1
        else:
            context_tokens = [*context_tokens, token]
    return torch.cat([*logits, model(torch.tensor([context_tokens]))[0, n_read:]])


def continuation(seed: int) -> list[int]:
    return torch.randint(0, VOCABULARY, (N_NEW,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def test_cached_ragged_batches_equal_the_full_pass_past_the_context(
    generating_model: Callable[..., DecoderOnly], variant: Table
) -> None:
    model = generating_model(VOCABULARY, **variant)
    new = [continuation(row) for row in range(len(PROMPTS))]
    expected = [read_in_full(model, *row) for row in zip(PROMPTS, new, strict=True)]
    rows = PromptBatch(model, PROMPTS, N_NEW)
    logits = [rows.first()] + [rows.step(torch.tensor(tokens)) for tokens in zip(*new, strict=True)]
    torch.testing.assert_close(torch.stack(logits, 1), torch.stack(expected), atol=1e-3, rtol=1e-4)


@torch.inference_mode()
def test_cached_targets_equal_the_full_pass_with_padded_sources(
    translating_model: Callable[..., EncoderDecoder], variant: Table
) -> None:
    model = translating_model(VOCABULARY, **variant)
    targets = torch.randint(0, VOCABULARY, (len(SOURCES), CONTEXT))
    targets[:, 0] = 1
    rows = TargetBatch(model, SOURCES, start_id=1, max_new_tokens=CONTEXT)
    logits = torch.stack([rows.first()] + [rows.step(targets[:, n]) for n in range(1, CONTEXT)], 1)
    for source, target, cached in zip(SOURCES, targets, logits, strict=True):
        tokens = torch.tensor([source])
        expected = model(tokens, torch.ones_like(tokens, dtype=torch.bool), target[None])[0]
        torch.testing.assert_close(cached, expected, atol=1e-3, rtol=1e-4)


@torch.inference_mode()
def test_remaining_rows_are_unchanged_after_others_leave(generating_model: Callable[..., DecoderOnly]) -> None:
    model = generating_model(VOCABULARY)
    rows, alone = PromptBatch(model, PROMPTS, N_NEW), PromptBatch(model, [PROMPTS[1]], N_NEW)
    rows.first()
    alone.first()
    new = continuation(0)
    for token in new[:3]:
        rows.step(torch.tensor([token] * 4))
        alone.step(torch.tensor([token]))
    rows.select(torch.tensor([0, 1]))  # first the longest rows leave, then one longer than the rest
    rows.step(torch.tensor([new[3]] * 2))
    alone.step(torch.tensor([new[3]]))
    rows.select(torch.tensor([1]))
    for token in new[4:]:
        torch.testing.assert_close(rows.step(torch.tensor([token])), alone.step(torch.tensor([token])))


@pytest.mark.parametrize("context_length", [1, 2, 3])
@torch.inference_mode()
def test_tiny_contexts_equal_the_full_pass(generating_model: Callable[..., DecoderOnly], context_length: int) -> None:
    model, new = generating_model(VOCABULARY, context_length=context_length), continuation(1)[:8]
    rows = PromptBatch(model, [[3, 4, 5, 6], [7]], 8)
    logits = torch.stack([rows.first()] + [rows.step(torch.tensor([token] * 2)) for token in new])
    expected = [read_in_full(model, prompt, new) for prompt in ([3, 4, 5, 6], [7])]
    torch.testing.assert_close(logits, torch.stack(expected, 1), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_reordered_beams_keep_their_source(translating_model: Callable[..., EncoderDecoder]) -> None:
    model = translating_model(VOCABULARY)

    def rows() -> TargetBatch:
        rows = TargetBatch(model, [SOURCES[0]], start_id=1, max_new_tokens=9)
        rows.first()
        rows.branch(3)
        rows.step(torch.tensor([5, 6, 7]))
        return rows

    reordered, places = rows(), torch.tensor([2, 2, 0])
    reordered.reorder(places)
    expected = rows().step(torch.tensor([8, 8, 8]))[places]
    torch.testing.assert_close(reordered.step(torch.tensor([8, 8, 8])), expected)


@pytest.mark.parametrize("training", [True, False])
def test_evaluating_restores_the_training_mode(generating_model: Callable[..., DecoderOnly], training: bool) -> None:
    model = generating_model().train(training)
    with evaluating(model):
        assert not model.training
    assert model.training == training
