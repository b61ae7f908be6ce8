"""Training losses. They are sums over the targets of a batch, not means, so every target has the same weight."""

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.data.batches import IGNORED, Batch, LabelledBatch, MaskedBatch, PairBatch, TextBatch
from penwright.model import Model
from penwright.model.attention import allow_cudnn_attention
from penwright.model.block import Stack
from penwright.model.quantized import Int8Linear
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly
from penwright.native.cross_entropy import compiled_cross_entropy, cross_entropy, targets_per_chunk


class Teachers(NamedTuple):
    """Teacher models for distillation: their averaged probabilities are soft targets (Hinton et al. 2015)."""

    models: Sequence[Model]
    weight: float  # weight of the soft targets in the loss, between 0 and 1; true targets have the remaining weight


class _SoftTargets(NamedTuple):
    """The sources of soft targets: label smoothing and, in distillation, teachers."""

    smoothing: float
    teachers: "_TeacherOutputs | None"

    def soft(self, rows: slice, dtype: torch.dtype) -> tuple[Tensor, float] | tuple[()]:
        """Return the teachers' probabilities for a slice of the targets, and their weight, or () without teachers."""
        return (self.teachers.probabilities(rows, dtype), self.teachers.weight) if self.teachers else ()


class _TeacherOutputs(NamedTuple):
    """The teachers' hidden states and output layers, from which probabilities are computed in chunks to save memory."""

    hidden: Sequence[tuple[Tensor, nn.Linear]]
    weight: float

    def probabilities(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """Return the mean probabilities of the teachers for a slice of the targets: [targets, vocab_size]."""
        logits = [
            F.linear(h[rows].to(dtype), o.weight.to(dtype)).float() + (0 if o.bias is None else o.bias)
            for h, o in self.hidden
        ]
        return torch.stack([each.softmax(-1) for each in logits]).mean(0)


class LossModule(nn.Module):
    """A model with its summed loss, as one module, because DDP and FSDP2 hook into the forward call of a module."""

    def __init__(self, model: Model, label_smoothing: float, teachers: Teachers | None):
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing
        self.teachers = teachers  # held in a tuple, so that teachers do not become submodules
        self.consistency = 0.0  # weight of the soft targets that two passes provide for each other; 0: one pass

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss in nats, summed over the targets of the batch."""
        compiled = batch.targets.is_cuda and any(each.is_compiled for each in _stacks(self.model))
        with allow_cudnn_attention(suits_cudnn(self.model, batch)):
            if self.consistency:
                return consistent_loss(self.model, batch, self.label_smoothing, self.consistency, compiled=compiled)
            return summed_loss(self.model, batch, self.label_smoothing, self.teachers, compiled=compiled)


def _stacks(model: Model) -> list[Stack]:
    return [module for module in model.children() if isinstance(module, Stack)]


def suits_cudnn(model: Model, batch: Batch) -> bool:
    """Return whether cuDNN's attention suits this training: all batches have the same shape, without masks or dropout.

    cuDNN builds a plan for each shape, and its dropout is untested here. Attention that is recomputed in the backward
    pass would use another kernel.
    """
    if not isinstance(model, DecoderOnly) or not isinstance(batch, TextBatch):
        return False
    settings, stack = model.settings, model.decoder
    is_masked = batch.segments is not None or (settings.window or inf) < batch.tokens.shape[1]
    return stack.has_fixed_shapes and not (is_masked or settings.attention_dropout or stack.recomputes)


def summed_loss(
    model: Model,
    batch: Batch,
    label_smoothing: float = 0.0,
    teachers: Teachers | None = None,
    *,
    compiled: bool = False,
) -> Float[Tensor, ""]:
    """Return the cross-entropy in nats, summed over the targets, with label smoothing (Szegedy et al. 2016).

    With `compiled`, the cross-entropy over the vocabulary runs as compiled code, which is faster on a GPU.
    """
    if isinstance(model, EncoderOnly) and isinstance(batch, MaskedBatch):
        return _masked_loss(model, batch, label_smoothing, compiled=compiled)
    if isinstance(model, EncoderOnly):
        return _label_loss(model, batch, label_smoothing, teachers)
    outputs = None
    if teachers is not None:
        with torch.no_grad():
            hidden = [
                (_hidden(each, batch), each.output) for each in teachers.models if not isinstance(each, EncoderOnly)
            ]
        outputs = _TeacherOutputs(hidden, teachers.weight)
    targets = batch.targets.flatten()
    return vocabulary_loss(_hidden(model, batch), model.output, targets, label_smoothing, outputs, compiled=compiled)


def consistent_loss(
    model: Model, batch: Batch, label_smoothing: float, weight: float, *, compiled: bool = False
) -> Float[Tensor, ""]:
    """Return the mean loss of two passes with different dropout, summed over the targets (R-Drop, Liang et al. 2021).

    The probabilities of each pass are soft targets of the other, with this weight, but pass no gradients. In
    experiments, this was better than the Kullback-Leibler divergences of the paper.
    """
    assert not isinstance(model, EncoderOnly), "encoders have no vocabulary loss for each pass"
    batch = batch.twice()
    hidden = _hidden(model, batch)
    other_pass = hidden.detach().roll(len(hidden) // 2, 0)
    targets, soft = batch.targets.flatten(), _TeacherOutputs([(other_pass, model.output)], weight)
    return vocabulary_loss(hidden, model.output, targets, label_smoothing, soft, compiled=compiled) / 2


def _hidden(model: Model, batch: Batch) -> Float[Tensor, "targets d_model"]:
    match model, batch:
        case DecoderOnly(), TextBatch():
            return model.hidden(batch.tokens, batch.segments).flatten(0, -2)
        case EncoderDecoder(), PairBatch():
            return model.hidden(batch.target, model.encode(batch.source, batch.source_is_token)).flatten(0, -2)
        case _:
            raise TypeError(f"{type(model).__name__} models do not accept a {type(batch).__name__}")


def _label_loss(
    model: EncoderOnly, batch: Batch, label_smoothing: float, teachers: Teachers | None
) -> Float[Tensor, ""]:
    if not isinstance(batch, LabelledBatch):
        raise TypeError(f"a classifier does not accept a {type(batch).__name__}")
    logits = model(batch.tokens, batch.is_token, batch.positions).float()
    loss = _loss_of_logits(model, logits, batch.targets, label_smoothing)
    if teachers is None:
        return loss
    with torch.no_grad():
        outputs = [each(batch.tokens, batch.is_token, batch.positions).float() for each in teachers.models]
    probs = torch.stack([_probabilities(model, each) for each in outputs]).mean(0)
    return (1 - teachers.weight) * loss + teachers.weight * _loss_of_logits(model, logits, probs)


def _probabilities(model: EncoderOnly, logits: Float[Tensor, "batch n_labels"]) -> Float[Tensor, "batch n_labels"]:
    """Return the probabilities of the labels, or the predicted scores of a regression model."""
    if model.settings.problem_type == "regression":
        return logits
    return logits.softmax(-1) if model.settings.problem_type == "single_label_classification" else logits.sigmoid()


def _loss_of_logits(
    model: EncoderOnly, logits: Float[Tensor, "batch n_labels"], targets: Tensor, label_smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Return the summed loss: cross-entropy, binary cross-entropy of each label, or half the squared error."""
    problem = model.settings.problem_type
    if targets.ndim == 1 or problem == "single_label_classification":
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=label_smoothing)
    if problem == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return F.mse_loss(logits, targets, reduction="sum") / 2


def _masked_loss(
    model: EncoderOnly, batch: MaskedBatch, label_smoothing: float, *, compiled: bool
) -> Float[Tensor, ""]:
    """Return the loss of the masked tokens. The embedding matrix also serves as the output layer."""
    is_target = batch.targets != IGNORED
    hidden = model.hidden(batch.tokens, batch.is_token)[is_target]
    targets = batch.targets[is_target]
    return vocabulary_loss(hidden, model.embedding.tokens, targets, label_smoothing, compiled=compiled)


def vocabulary_loss(
    hidden: Float[Tensor, "targets d_model"],
    output: nn.Linear | Int8Linear | nn.Embedding,
    targets: Int[Tensor, " targets"],
    label_smoothing: float = 0.0,
    teachers: _TeacherOutputs | None = None,
    *,
    compiled: bool = False,
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy of output(hidden), computed in chunks to save memory.

    Targets equal to IGNORED do not count. `teachers` provide additional soft targets. With `compiled`, torch.compile
    fuses the work between the matrix products.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    loss: Float[Tensor, ""] = _VocabularyLoss.apply(  # type: ignore[no-untyped-call]  # torch declares no types
        hidden,
        output.weight,
        None if isinstance(output, nn.Embedding) else output.bias,
        targets,
        _SoftTargets(label_smoothing, teachers),
        _Computation(dtype, torch.is_grad_enabled(), compiled),
    )
    return loss


class _Computation(NamedTuple):
    """Options for computing the vocabulary loss."""

    dtype: torch.dtype  # dtype of the matrix products
    with_gradient: bool
    compiled: bool


class _VocabularyLoss(torch.autograd.Function):
    """Chunked cross-entropy that computes its gradients in the forward pass (after Wijmans et al. 2024).

    The matrix of all logits is by far the largest tensor of a training step. Reading the matrix again takes longer than
    the multiplication, so the gradients are computed while a chunk of logits is still in the cache.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        aims: _SoftTargets,
        how: _Computation,
    ) -> Tensor:
        """Return the summed loss, and save the gradients of hidden states, weight and bias."""
        dtype, with_gradient = how.dtype, how.with_gradient
        compute = compiled_cross_entropy() if how.compiled else cross_entropy
        with torch.autocast(hidden.device.type, enabled=False):
            chunk = targets_per_chunk(hidden, len(weight), compiled=how.compiled)
            matrix = weight.to(dtype)
            loss = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
            d_hidden = torch.empty_like(hidden, dtype=dtype) if with_gradient else None
            d_weight = torch.zeros_like(weight) if with_gradient and weight.requires_grad else None
            d_bias = torch.zeros_like(bias) if with_gradient and bias is not None and bias.requires_grad else None
            for begin in range(0, len(hidden), chunk):
                rows = slice(begin, begin + chunk)
                real = (targets[rows] != IGNORED).to(dtype)[:, None]
                states = hidden[rows].to(dtype) * real
                soft = aims.soft(rows, dtype)
                losses, gradient = compute(states @ matrix.T, bias, targets[rows], aims.smoothing, *soft)
                loss += losses @ real[:, 0].to(losses.dtype)
                if d_hidden is not None:
                    d_hidden[rows] = (gradient @ matrix) * real
                    if d_weight is not None:
                        d_weight += gradient.T @ states
                    if d_bias is not None:
                        d_bias += real[:, 0] @ gradient
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the saved gradients, scaled by the gradient of the loss."""
        scaled = [None if d is None else d * grads[0] for d in ctx.saved_tensors]
        return (*scaled, None, None, None)
