"""Estimates of parameters, FLOPs and training memory, without building the model."""

from functools import lru_cache
from typing import NamedTuple

from torch import nn

from penwright.config import LoraSettings, ModelSettings, Recipe, Task
from penwright.model import Model, make_model
from penwright.model.weights import shapes_only
from penwright.tokenizers import Tokenizer

ADAMW_BYTES = 16  # bytes per float32 parameter with AdamW: weight, gradient, two moments (with Muon, one)
COPY_BYTES = 4  # bytes per parameter of a copy of the weights in float32, such as their moving average
FROZEN_BYTES = 6  # bytes per frozen parameter: the weight in float32, and a copy in bfloat16 for matrix products
KEPT_LOGITS = 2**27  # maximum number of logits in memory, since the loss is computed in chunks
ACTIVATIONS_PER_LAYER = 20  # approximate number of vectors per token stored for the backward pass, with fused attention


class Size(NamedTuple):
    """The size of a model. Parameters are exact; a multiply-add counts as two FLOPs; memory is an estimate."""

    parameters: int
    matrix_parameters: int  # parameters in matrix products; the output layer counts, embedding tables do not
    flops_per_token: int  # FLOPs of one forward pass at full context; training costs three times as much
    training_bytes: int
    trained: int  # parameters that are trained; with LoRA, those of the adapters


def size_of(
    task: Task,
    vocab_size: int,
    settings: ModelSettings,
    batch_tokens: int = 0,
    n_labels: int = 2,
    lora: LoraSettings | None = None,
    *,
    recomputes: bool = False,
    n_copies: int = 0,
) -> Size:
    """Return the size of a model, computed from the shapes of its parameters.

    With `recomputes`, the memory is that of training with activation checkpointing. For `n_copies`, see `n_copies_of`.
    """
    parameters, tables, trained = _counted(task, vocab_size, settings, n_labels, lora)
    output = vocab_size * settings.d_model if task != "classify" and settings.tie_embeddings != "none" else 0
    matrices = parameters - tables + output
    layers = settings.n_layers + (settings.n_decoder_layers or settings.n_layers if task == "translate" else 0)
    attention = 4 * layers * settings.context_length * settings.n_heads * settings.d_head
    logits = 2 * min(batch_tokens * vocab_size, KEPT_LOGITS)
    # activation checkpointing stores the inputs of all blocks, and the activations of one block at a time
    vectors = layers + ACTIVATIONS_PER_LAYER if recomputes else layers * ACTIVATIONS_PER_LAYER
    activations = (batch_tokens * vectors * settings.d_model + logits) * 4
    copies = COPY_BYTES * n_copies * (trained if lora else parameters)
    weights = ADAMW_BYTES * trained + FROZEN_BYTES * (parameters - trained) + copies
    return Size(parameters, matrices, 2 * matrices + attention, weights + activations, trained)


def size_of_recipe(recipe: Recipe, vocab_size: int, n_labels: int, n_ranks: int = 1) -> Size:
    """Return the size of the model of a recipe. Its memory is that of training on each of `n_ranks` ranks, with DDP."""
    training, tuning = recipe.training, recipe.finetuning
    asked = (recipe.task, vocab_size, recipe.model, training.tokens_at_once // n_ranks, n_labels, recipe.lora)
    n_copies = n_copies_of(tuning.base_weight if tuning else 0.0, training.ema_decay)
    return size_of(*asked, recomputes=training.activation_checkpointing, n_copies=n_copies)


def n_copies_of(base_weight: float | None, ema_decay: float | None) -> int:
    """Return the number of copies of the saved weights that training holds, in addition to the weights themselves."""
    return 2 if base_weight else 1 if ema_decay else 0


@lru_cache(maxsize=256)  # cached, because planning calls this repeatedly, and each call builds modules
def _counted(
    task: Task, vocab_size: int, settings: ModelSettings, n_labels: int, lora: LoraSettings | None
) -> tuple[int, int, int]:
    """Count all parameters of a model, those of its embedding tables, and those that are trained."""
    with shapes_only():
        model = make_model(task, vocab_size, settings, n_labels, lora)
    tables = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding)}
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return sum(p.numel() for p in model.parameters()), sum(tables.values()), trained


def described(kind: str, model: Model, tokenizer: Tokenizer, more: str = "") -> str:
    """Describe a model and its tokenizer in one line."""
    n_parameters, settings = sum(parameter.numel() for parameter in model.parameters()), model.settings
    return (
        f"<{kind}: {n_parameters:,} parameters, {settings.n_layers} layers of {settings.d_model}, "
        f"context {settings.context_length:,}, vocabulary {tokenizer.vocab_size:,}{more}>"
    )
