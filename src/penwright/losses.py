"""Training losses. They are sums over the targets of a batch, not means, so every target has the same weight."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from penwright.data.batches import IGNORED, Batch, LabelledBatch, MaskedBatch, PairBatch, TextBatch
from penwright.model import Model
from penwright.model.quantized import Int8Linear
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly

# Logits per chunk, and minimum number of targets per chunk. On a CPU, chunks fit in the cache, unless the vocabulary is
# large: with fewer targets, reading the output matrix takes longer than multiplying by it (benchmarks/LOG.md).
CHUNK, FEWEST_TARGETS = {"cpu": 2**21, "cuda": 2**27}, 128


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

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss in nats, summed over the targets of the batch."""
        return summed_loss(self.model, batch, self.label_smoothing, self.teachers)


def summed_loss(
    model: Model, batch: Batch, label_smoothing: float = 0.0, teachers: Teachers | None = None
) -> Float[Tensor, ""]:
    """Return the cross-entropy in nats, summed over the targets, with label smoothing (Szegedy et al. 2016)."""
    if isinstance(model, EncoderOnly) and isinstance(batch, MaskedBatch):
        return _masked_loss(model, batch, label_smoothing)
    if isinstance(model, EncoderOnly):
        return _label_loss(model, batch, label_smoothing, teachers)
    outputs = None
    if teachers is not None:
        with torch.no_grad():
            hidden = [
                (_hidden(each, batch), each.output) for each in teachers.models if not isinstance(each, EncoderOnly)
            ]
        outputs = _TeacherOutputs(hidden, teachers.weight)
    return vocabulary_loss(_hidden(model, batch), model.output, batch.targets.flatten(), label_smoothing, outputs)


def _hidden(model: Model, batch: Batch) -> Float[Tensor, "targets d_model"]:
    match model, batch:
        case DecoderOnly(), TextBatch():
            return model.hidden(batch.tokens, batch.segments).flatten(0, -2)
        case EncoderDecoder(), PairBatch():
            return model.hidden(batch.target, model.encode(batch.source, batch.source_padding)).flatten(0, -2)
        case _:
            raise TypeError(f"{type(model).__name__} models do not accept a {type(batch).__name__}")


def _label_loss(
    model: EncoderOnly, batch: Batch, label_smoothing: float, teachers: Teachers | None
) -> Float[Tensor, ""]:
    if not isinstance(batch, LabelledBatch):
        raise TypeError(f"a classifier does not accept a {type(batch).__name__}")
    logits = model(batch.tokens, batch.padding, batch.positions).float()
    loss = _loss_of_logits(model, logits, batch.targets, label_smoothing)
    if teachers is None:
        return loss
    with torch.no_grad():
        outputs = [each(batch.tokens, batch.padding, batch.positions).float() for each in teachers.models]
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


def _masked_loss(model: EncoderOnly, batch: MaskedBatch, label_smoothing: float) -> Float[Tensor, ""]:
    """Return the loss of the masked tokens. The embedding matrix also serves as the output layer."""
    is_target = batch.targets != IGNORED
    hidden = model.hidden(batch.tokens, batch.padding)[is_target]
    return vocabulary_loss(hidden, model.embedding.tokens, batch.targets[is_target], label_smoothing)


def vocabulary_loss(
    hidden: Float[Tensor, "targets d_model"],
    output: nn.Linear | Int8Linear | nn.Embedding,
    targets: Int[Tensor, " targets"],
    label_smoothing: float = 0.0,
    teachers: _TeacherOutputs | None = None,
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy of output(hidden), computed in chunks to save memory.

    Targets equal to IGNORED do not count. `teachers` provide additional soft targets.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    loss: Float[Tensor, ""] = _VocabularyLoss.apply(  # type: ignore[no-untyped-call]  # torch declares no types
        hidden,
        output.weight,
        None if isinstance(output, nn.Embedding) else output.bias,
        targets,
        _SoftTargets(label_smoothing, teachers),
        dtype,
        torch.is_grad_enabled(),
    )
    return loss


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
        dtype: torch.dtype,
        with_gradient: bool,
    ) -> Tensor:
        """Return the summed loss, and save the gradients of hidden states, weight and bias."""
        with torch.autocast(hidden.device.type, enabled=False):
            chunk = max(FEWEST_TARGETS, CHUNK.get(hidden.device.type, CHUNK["cuda"]) // len(weight))
            matrix, loss = (
                weight.to(dtype),
                hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32)),
            )
            d_hidden = torch.empty_like(hidden, dtype=dtype) if with_gradient else None
            d_weight = torch.zeros_like(weight) if with_gradient and weight.requires_grad else None
            d_bias = torch.zeros_like(bias) if with_gradient and bias is not None and bias.requires_grad else None
            for begin in range(0, len(hidden), chunk):
                rows = slice(begin, begin + chunk)
                real = (targets[rows] != IGNORED).to(dtype)[:, None]
                states = hidden[rows].to(dtype) * real
                soft = aims.soft(rows, dtype)
                losses, gradient = _cross_entropy(states @ matrix.T, bias, targets[rows], aims.smoothing, *soft)
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
        return (*scaled, None, None, None, None)


def _cross_entropy(
    logits: Float[Tensor, "targets vocab_size"],
    bias: Float[Tensor, " vocab_size"] | None,
    targets: Int[Tensor, " targets"],
    smoothing: float,
    soft_targets: Float[Tensor, "targets vocab_size"] | None = None,
    weight: float = 0.0,
) -> tuple[Float[Tensor, " targets"], Float[Tensor, "targets vocab_size"]]:
    """Return the loss of each row, and the gradient in the dtype of the logits.

    `weight` is the share of `soft_targets` in the target distribution.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))  # bfloat16 is too coarse for sums
    log_probs = F.log_softmax(wide if bias is None else wide + bias, -1)
    index = targets.clamp(min=0)[:, None]  # ignored targets may have any valid index: their rows are masked out
    losses = (smoothing - 1) * log_probs.gather(1, index)
    if smoothing:
        losses -= smoothing * log_probs.mean(-1, keepdim=True)
    if soft_targets is not None:  # the loss is linear in the targets, so the two losses can be mixed
        losses = losses.lerp(-(soft_targets * log_probs).sum(-1, keepdim=True), weight)
    gradient = log_probs.exp_()
    if smoothing:
        gradient.sub_((1 - weight) * smoothing / logits.shape[-1])
    gradient.scatter_add_(1, index, torch.full_like(losses, (1 - weight) * (smoothing - 1)))
    if soft_targets is not None:
        gradient.sub_(soft_targets, alpha=weight)
    return losses[:, 0], gradient.to(logits.dtype)
