"""Properties of every variant of the Transformer."""

from collections.abc import Callable
from math import sqrt

import pytest
import torch
from torch import Tensor, nn

from penwright.config import ModelSettings, Table, Task, merge
from penwright.model import Model, make_model
from penwright.model.attention import Attention, KernelMask, Mask
from penwright.model.block import Block, ForwardContext
from penwright.model.embedding import rotary_positions
from penwright.model.size import size_of
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly

VOCABULARY, LABELS = 23, 3
SMALL: Table = {
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 24,
    "context_length": 24,
    "zero_init_outputs": False,
}
VARIANTS: dict[str, Table] = {
    "modern": {},
    "sinusoidal": {"positions": {"type": "sinusoidal"}},
    "sinusoidal-halves": {"positions": {"type": "sinusoidal", "layout": "halves"}},
    "sinusoidal-tensor2tensor": {"positions": {"type": "sinusoidal", "layout": "tensor2tensor", "offset": 2}},
    "learned": {"positions": {"type": "learned"}},
    "no-positions": {"positions": {"type": "none"}},
    "layer-norm": {"norm": {"type": "layer"}},
    "layer-norm-biases": {"norm": {"type": "layer"}, "bias": True},
    "biases": {"bias": True, "output_bias": True},
    "post-norm": {"norm_position": "post"},
    "post-layer-norm": {"norm_position": "post", "norm": {"type": "layer"}, "bias": True},
    "relu": {"feed_forward": "relu"},
    "gelu": {"feed_forward": "gelu"},
    "gelu-tanh": {"feed_forward": "gelu_tanh"},
    "silu": {"feed_forward": "silu"},
    "relu-squared": {"feed_forward": "relu_squared"},
    "geglu": {"feed_forward": "geglu"},
    "grouped": {"n_kv_heads": 2},
    "multi-query": {"n_kv_heads": 1},
    "wide-heads": {"d_head": 6, "n_kv_heads": 2},
    "qk-norm": {"qk_norm": True},
    "qk-layer-norm": {"qk_norm": True, "norm": {"type": "layer"}, "bias": True},
    "window": {"window": 3},
    "tied-output": {"tie_embeddings": "output"},
    "untied": {"tie_embeddings": "none"},
    "scaled-embeddings": {"scale_embeddings": True},
    "embedding-norm": {"embedding_norm": True},
    "first-token-pooler": {"pooling": "first", "pooler": True},
    "shallow-decoder": {"n_decoder_layers": 1},
}
OUTSIDE_BLOCKS = {"positions", "tie_embeddings", "scale_embeddings", "embedding_norm", "pooling", "n_decoder_layers"}
BLOCKS = [name for name, changes in VARIANTS.items() if not changes.keys() & OUTSIDE_BLOCKS]
TASKS: tuple[Task, ...] = ("generate", "translate", "classify")
every_variant = pytest.mark.parametrize("variant", VARIANTS)
# the variants that differ in positions, masks, keys or values
ATTENTION = (
    "modern",
    "sinusoidal",
    "learned",
    "no-positions",
    "post-layer-norm",
    "grouped",
    "multi-query",
    "wide-heads",
)
ATTENTION += ("qk-layer-norm", "window", "first-token-pooler", "shallow-decoder")
every_attention = pytest.mark.parametrize("variant", ATTENTION)
every_task = pytest.mark.parametrize("task", TASKS)
REAL = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])


def settings_of(variant: str, changes: Table | None = None) -> ModelSettings:
    return ModelSettings.model_validate(merge(SMALL, VARIANTS[variant], changes or {}))


def build(task: Task, variant: str, changes: Table | None = None) -> Model:
    """Return a float64 model with random parameters in evaluation mode."""
    torch.manual_seed(1)
    model = make_model(task, VOCABULARY, settings_of(variant, changes), LABELS).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def random_tokens(batch: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(5))


def logits_of(model: Model) -> Tensor:
    tokens = random_tokens(2, 7)
    match model:
        case DecoderOnly():
            return model(tokens)
        case EncoderDecoder():
            return model(tokens, REAL, random_tokens(2, 5))
        case EncoderOnly():
            return model(tokens, REAL)


def decoder_of(variant: str) -> DecoderOnly:
    model = build("generate", variant)
    assert isinstance(model, DecoderOnly)
    return model


def translator_of(variant: str) -> EncoderDecoder:
    model = build("translate", variant)
    assert isinstance(model, EncoderDecoder)
    return model


def classifier_of(variant: str) -> EncoderOnly:
    model = build("classify", variant)
    assert isinstance(model, EncoderOnly)
    return model


@pytest.mark.parametrize("variant", BLOCKS)
@pytest.mark.parametrize("cross_attention", [False, True], ids=["self", "cross"])
def test_gradients_of_a_block_match_finite_differences(variant: str, cross_attention: bool) -> None:
    torch.manual_seed(2)
    settings = settings_of(variant)
    block = Block(settings, cross_attention=cross_attention).double()
    positions = torch.arange(4)[None]
    rotary = rotary_positions(settings)
    mask = Mask(causal=True, window=settings.window).resolve(positions, 4)
    context = ForwardContext(positions, 4, mask, rotary.double()(positions) if rotary else None)
    names = [name for name, _ in block.named_parameters()]

    def run(x: Tensor, source: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        encoded = block.cross_attention.keys_values(source) if block.cross_attention is not None else None
        return torch.func.functional_call(block, named, (x, context, None, encoded))

    x, source = (torch.randn(2, 4, 16, dtype=torch.float64, requires_grad=True) for _ in range(2))
    parameters = [nn.Parameter(p + 0.1 * torch.randn_like(p)) for p in block.parameters()]
    assert torch.autograd.gradcheck(run, (x, source, *parameters), fast_mode=True)


@every_variant
@every_task
def test_gradients_reach_every_parameter(task: Task, variant: str) -> None:
    model = build(task, variant)
    logits_of(model).square().sum().backward()
    unreached = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert unreached == []


@every_attention
@every_task
def test_fused_kernel_computes_softmax_of_scaled_scores(task: Task, variant: str) -> None:
    model = build(task, variant)
    fused = logits_of(model)
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    seen: list[Tensor] = []
    for attention in attentions:
        attention.kernel = explicit_kernel(seen)
    torch.testing.assert_close(logits_of(model), fused)
    assert len(seen) == len(attentions)
    for weights in seen:
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def explicit_kernel(seen: list[Tensor]) -> Callable[[Tensor, Tensor, Tensor, KernelMask, float], Tensor]:
    """Return the attention kernel of the paper, which appends its weights to `seen`."""

    def kernel(queries: Tensor, keys: Tensor, values: Tensor, mask: KernelMask, _: float) -> Tensor:
        shared = queries.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
        scores = queries @ keys.mT / sqrt(queries.shape[-1])
        allowed = torch.ones_like(scores, dtype=torch.bool)
        allowed = allowed.tril() if mask.is_causal else allowed
        allowed = allowed if mask.allowed is None else allowed & mask.allowed
        seen.append(scores.masked_fill(~allowed, -torch.inf).softmax(-1))
        return seen[-1] @ values

    return kernel


@every_attention
def test_decoder_only_sees_no_future(variant: str) -> None:
    model, tokens = decoder_of(variant), random_tokens(2, 9)
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % VOCABULARY
    torch.testing.assert_close(model(changed)[:, :5], model(tokens)[:, :5])
    assert not torch.allclose(model(changed)[:, 5], model(tokens)[:, 5])


@every_attention
def test_decoder_sees_no_future_target_but_the_whole_source(variant: str) -> None:
    model, source, target = translator_of(variant), random_tokens(2, 7), random_tokens(2, 6)
    real = torch.ones_like(source, dtype=torch.bool)
    changed = target.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % VOCABULARY
    expected = model(source, real, target)
    torch.testing.assert_close(model(source, real, changed)[:, :4], expected[:, :4])
    other = source.clone()
    other[:, -1] = (other[:, -1] + 1) % VOCABULARY
    assert not torch.allclose(model(other, real, target)[:, 0], expected[:, 0])


@every_attention
def test_packed_documents_do_not_attend_to_each_other(variant: str) -> None:
    model, tokens = decoder_of(variant), random_tokens(1, 9)
    segments = torch.tensor([[0] * 4 + [1] * 5])
    packed = model(tokens, segments)
    torch.testing.assert_close(packed[:, :4], model(tokens[:, :4]))
    changed = tokens.clone()
    changed[:, :4] = (changed[:, :4] + 1) % VOCABULARY
    torch.testing.assert_close(model(changed, segments)[:, 4:], packed[:, 4:])


@pytest.mark.parametrize("variant", ["modern", "no-positions", "window", "grouped"])
def test_packed_documents_equal_single_ones_with_relative_positions(variant: str) -> None:
    model, tokens = decoder_of(variant), random_tokens(1, 9)
    packed = model(tokens, torch.tensor([[0] * 4 + [1] * 5]))
    torch.testing.assert_close(packed[:, 4:], model(tokens[:, 4:]))


@every_attention
def test_source_padding_does_not_change_a_translation(variant: str) -> None:
    model, source, target = translator_of(variant), random_tokens(2, 7), random_tokens(2, 5)
    padded = model(source, REAL, target)
    torch.testing.assert_close(padded[1:], model(source[1:, :4], REAL[1:, :4], target[1:]))


@every_attention
def test_padding_does_not_change_a_classification(variant: str) -> None:
    model, tokens = classifier_of(variant), random_tokens(2, 7)
    torch.testing.assert_close(model(tokens, REAL)[1:], model(tokens[1:, :4], REAL[1:, :4]))


@every_attention
def test_padding_does_not_change_the_encoded_tokens(variant: str) -> None:
    model, tokens = classifier_of(variant), random_tokens(2, 7)
    alone = model.hidden(tokens[1:, :4], REAL[1:, :4])
    torch.testing.assert_close(model.hidden(tokens, REAL)[1:, :4], alone)


@every_attention
@every_task
def test_fully_padded_row_gives_no_nan(task: Task, variant: str) -> None:
    model, tokens, nothing = build(task, variant), random_tokens(2, 5), torch.zeros(2, 5, dtype=torch.bool)
    match model:
        case DecoderOnly():
            logits = model(torch.zeros_like(tokens))
        case EncoderDecoder():
            logits = model(tokens, nothing, torch.zeros_like(tokens))
        case EncoderOnly():
            logits = model(tokens, nothing)
    logits.square().sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@every_attention
def test_cached_decoder_only_equals_the_full_pass(variant: str) -> None:
    model, tokens = decoder_of(variant), random_tokens(2, 9)
    cache, parts = model.new_cache(batch=2, capacity=9), []
    for part in tokens.split([4, 1, 1, 3], dim=1):
        parts.append(model(part, cache=cache))
        cache.advance(part.shape[1])
    torch.testing.assert_close(torch.cat(parts, 1), model(tokens))


@every_attention
def test_cached_decoder_only_equals_the_full_pass_for_ragged_rows(variant: str) -> None:
    model, lengths, tokens = decoder_of(variant), torch.tensor([5, 2, 4]), random_tokens(3, 8)
    cache = model.new_cache(batch=3, capacity=8)
    model(tokens[:, :5], cache=cache)  # the rest of the shorter rows is padding
    cache.advance(lengths)
    for step in range(3):
        at = lengths + step
        logits = model(tokens[torch.arange(3), at][:, None], cache=cache)
        cache.advance(1)
        for row in range(3):
            torch.testing.assert_close(logits[row, 0], model(tokens[row : row + 1, : at[row] + 1])[0, -1])


@every_attention
def test_cached_encoder_decoder_equals_the_full_pass(variant: str) -> None:
    model, source, target = translator_of(variant), random_tokens(2, 7), random_tokens(2, 5)
    encoded = model.encode(source, REAL)
    cache, parts = model.new_cache(batch=2, capacity=5), []
    for part in target.split([2, 1, 2], dim=1):
        parts.append(model.output(model.hidden(part, encoded, cache)))
        cache.advance(part.shape[1])
    torch.testing.assert_close(torch.cat(parts, 1), model(source, REAL, target))


@every_attention
def test_selected_rows_continue_from_their_cache(variant: str) -> None:
    model, source, target = translator_of(variant), random_tokens(2, 7), random_tokens(2, 5)
    encoded, cache, rows = model.encode(source, REAL), model.new_cache(batch=2, capacity=5), torch.tensor([1, 1, 0])
    model.hidden(target[:, :4], encoded, cache)
    cache.advance(4)
    cache.select(rows)
    found = model.output(model.hidden(target[rows, 4:], encoded.select(rows), cache))
    torch.testing.assert_close(found[:, 0], model(source, REAL, target)[rows, -1])


@every_variant
@every_task
def test_size_of_predicts_the_number_of_parameters(task: Task, variant: str) -> None:
    model = make_model(task, VOCABULARY, settings_of(variant), LABELS)
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert size_of(task, VOCABULARY, settings_of(variant), n_labels=LABELS).parameters == expected


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "feed_forward_dropout"])
@every_task
def test_each_dropout_acts_only_in_training(task: Task, kind: str) -> None:
    model = build(task, "modern", {kind: 0.5})
    without = logits_of(build(task, "modern"))
    torch.testing.assert_close(logits_of(model), without)
    model.train()
    assert not torch.allclose(logits_of(model), without)


@pytest.mark.parametrize("variant", ["modern", "sinusoidal", "no-positions", "window"])
@every_task
def test_texts_beyond_the_training_context_give_finite_logits(task: Task, variant: str) -> None:
    model = build(task, variant)
    tokens = random_tokens(1, 3 * model.settings.context_length)
    real = torch.ones_like(tokens, dtype=torch.bool)
    match model:
        case DecoderOnly():
            logits = model(tokens)
        case EncoderDecoder():
            logits = model(tokens, real, tokens)
        case EncoderOnly():
            logits = model(tokens, real)
    assert logits.isfinite().all()


@pytest.mark.parametrize("variant", ["modern", "biases", "post-layer-norm", "qk-norm"])
@every_task
def test_zero_initialized_blocks_learn_in_every_parameter(task: Task, variant: str) -> None:
    torch.manual_seed(3)
    settings = settings_of(variant, {"zero_init_outputs": True})
    model = make_model(task, VOCABULARY, settings, LABELS)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        logits = logits_of(model)
        nn.functional.cross_entropy(
            logits.flatten(0, -2), torch.zeros(logits[..., 0].numel(), dtype=torch.long)
        ).backward()
        optimizer.step()
    assert [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])] == []
