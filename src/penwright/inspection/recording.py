"""Records of everything that a model computes for a text, and forward passes in which activations are replaced."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from penwright.inspection.forward_pass import ForwardPass, PartName, scores
from penwright.model import Model, evaluating
from penwright.model.attention import Attention, Kernel, KernelMask, repeat_kv, swap_kernels
from penwright.model.block import Block, Residual, Stack
from penwright.model.embedding import Embedding, Rotation
from penwright.model.layers import FeedForward
from penwright.model.transformer import EncoderDecoder, EncoderOnly

Kind = Literal["attention", "feed_forward"]
StackName = Literal["encoder", "decoder"]
INPUTS = ("query", "key", "value")
BATCH_TOKENS = 2048  # maximum number of tokens per batch; each row of a batch has one edit


@dataclass(eq=False)
class HeadsRecord:
    """The queries, keys, values and outputs of the heads of an attention layer; shared keys and values are repeated."""

    queries: Float[Tensor, "n_heads targets d_head"]
    keys: Float[Tensor, "n_heads sources d_head"]
    values: Float[Tensor, "n_heads sources d_head"]
    outputs: Float[Tensor, "n_heads targets d_head"]  # outputs of the heads before the output projection
    mask: KernelMask


@dataclass(eq=False)
class SublayerRecord:
    """An attention layer or a feed-forward network, with its residual connection."""

    part: PartName
    layer: int
    module: Attention | FeedForward
    residual: Residual
    before: Float[Tensor, "positions d_model"] = field(init=False)  # the residual stream before the sublayer
    read: Float[Tensor, "positions d_model"] = field(init=False)  # the sublayer's input; normalized in a pre-norm model
    output: Float[Tensor, "positions d_model"] = field(init=False)
    after: Float[Tensor, "positions d_model"] = field(init=False)  # the residual stream after the sublayer
    heads: HeadsRecord = field(init=False)  # set only for an attention sublayer
    rotation: Rotation | None = None
    hidden: Float[Tensor, "positions d_ff"] = field(init=False)  # set only for a feed-forward network

    @property
    def kind(self) -> Kind:
        """The kind of sublayer: "attention" or "feed_forward"."""
        return "attention" if isinstance(self.module, Attention) else "feed_forward"

    def head_outputs(self, position: int | None = None) -> Float[Tensor, "n_heads positions d_model"]:
        """Return what each head adds to the output, without the bias, at all positions or only at one."""
        assert isinstance(self.module, Attention)
        weight = self.module.output.weight
        heads = self.heads.outputs if position is None else self.heads.outputs[:, [position]]
        return torch.einsum("hpi,dhi->hpd", heads, weight.to(self.output).unflatten(1, (len(heads), -1)))


@dataclass(eq=False)
class StackRecord:
    """The embedding and all sublayers of an encoder or a decoder, in order."""

    name: StackName
    stack: Stack
    embedding: Embedding
    sublayers: list[SublayerRecord]
    token_vectors: Float[Tensor, "positions d_model"] = field(init=False)  # after scaling
    summed: Float[Tensor, "positions d_model"] = field(init=False)  # with positions, before the norm of the embedding
    embedded: Float[Tensor, "positions d_model"] = field(init=False)

    @property
    def output(self) -> Float[Tensor, "positions d_model"]:
        """The residual stream after the last sublayer, before the final norm."""
        return self.sublayers[-1].after


@dataclass(eq=False)
class Recording:
    """The record of a forward pass over one text."""

    reading: ForwardPass
    stacks: tuple[StackRecord, ...]  # the encoder, the decoder, or both; the last stack produces the logits
    logits: Float[Tensor, " outcomes"]  # logits at the requested position

    def sublayers(self, part: PartName, kind: Kind = "attention") -> list[SublayerRecord]:
        """Return the sublayers of this part and kind, by layer."""
        return [each for stack in self.stacks for each in stack.sublayers if (each.part, each.kind) == (part, kind)]


def record(model: Model, reading: ForwardPass, position: int) -> Recording:
    """Run the model once and record everything that it computes; `position` is that of the logits."""
    stacks = _stacks(model)
    with ExitStack() as recording:
        recording.enter_context(evaluating(model))
        recording.enter_context(torch.no_grad())
        for stack in stacks:
            recording.enter_context(_recorded(stack))
        logits = scores(model, reading, position)[0]
    return Recording(reading, stacks, logits)


def _stacks(model: Model) -> tuple[StackRecord, ...]:
    match model:
        case EncoderOnly():
            return (_stack("encoder", model.encoder, model.embedding),)
        case EncoderDecoder():
            encoder = _stack("encoder", model.encoder, model.source_embedding)
            return (encoder, _stack("decoder", model.decoder, model.target_embedding))
        case _:
            return (_stack("decoder", model.decoder, model.embedding),)


def _stack(name: StackName, stack: Stack, embedding: Embedding) -> StackRecord:
    sublayers = [each for layer, block in enumerate(stack.blocks) for each in _sublayers(name, layer, block)]
    return StackRecord(name, stack, embedding, sublayers)


def _sublayers(name: StackName, layer: int, block: nn.Module) -> Iterator[SublayerRecord]:
    assert isinstance(block, Block)
    yield SublayerRecord(name, layer, block.attention, block.attention_residual)
    if block.cross_attention is not None and block.cross_residual is not None:
        yield SublayerRecord("cross", layer, block.cross_attention, block.cross_residual)
    yield SublayerRecord(name, layer, block.feed_forward, block.feed_forward_residual)


@contextmanager
def _recorded(stack: StackRecord) -> Iterator[None]:
    """Fill the record during a forward pass inside the `with` block."""

    def embed(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        stack.token_vectors = (stack.embedding.tokens(given[0]) * stack.embedding.scale)[0]
        stack.embedded = out[0]

    def keep_sum(module: nn.Module, given: tuple[Any, ...]) -> None:
        stack.summed = given[0][0]

    hooks = [stack.embedding.register_forward_hook(embed), stack.embedding.norm.register_forward_pre_hook(keep_sum)]
    with ExitStack() as kernels:
        for each in stack.sublayers:
            hooks += _hooks(each)
            if each.kind == "attention":
                kernels.enter_context(swap_kernels(each.module, partial(_recording_kernel, each)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _hooks(to: SublayerRecord) -> list[torch.utils.hooks.RemovableHandle]:
    def keep_residual(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        to.before, to.after = given[0][0], out[0]

    def keep_output(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
        to.read, to.output = given[0][0], out[0]

    def keep_rotation(module: nn.Module, given: tuple[Any, ...]) -> None:
        to.rotation = cast(Rotation, given[3]) if len(given) > 3 else None

    def keep_hidden(module: nn.Module, given: tuple[Any, ...]) -> None:
        to.hidden = given[0][0]

    hooks = [to.residual.register_forward_hook(keep_residual), to.module.register_forward_hook(keep_output)]
    if isinstance(to.module, FeedForward):
        hooks.append(to.module.down.register_forward_pre_hook(keep_hidden))
    else:
        hooks.append(to.module.register_forward_pre_hook(keep_rotation))
    return hooks


def _recording_kernel(to: SublayerRecord, name: str, kernel: Kernel) -> Kernel:
    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: KernelMask, dropout: float) -> Tensor:
        out = kernel(queries, keys, values, mask, dropout)
        to.heads = HeadsRecord(queries[0], repeat_kv(keys, queries)[0], repeat_kv(values, queries)[0], out[0], mask)
        return out

    return attend


class Edit(NamedTuple):
    """A replacement of values in a sublayer's activation: its elements at `index` become `value`."""

    sublayer: SublayerRecord | None  # None: the output layer, whose logits the caller replaces
    activation: str  # residual (the stream before the sublayer), output, heads (their outputs), query, key or value
    index: Any
    value: Tensor


def edited_logits(model: Model, reading: ForwardPass, edits: Sequence[Edit], position: int) -> Iterator[Tensor]:
    """Yield logits at a position in batches, with a row for each edit."""
    rows = max(1, BATCH_TOKENS // max(len(reading.source), len(reading.target)))
    for start in range(0, len(edits), rows):
        chunk = edits[start : start + rows]
        with evaluating(model), torch.no_grad(), _edited(chunk):
            yield scores(model, reading, position, rows=len(chunk))


@contextmanager
def _edited(edits: Sequence[Edit]) -> Iterator[None]:
    """Inside the `with` block, apply each edit to its own row of the batch."""
    by_sublayer: dict[int, list[tuple[int, Edit]]] = {}
    for row, edit in enumerate(edits):
        by_sublayer.setdefault(id(edit.sublayer), []).append((row, edit))
    with ExitStack() as stack:
        for rows in by_sublayer.values():
            sublayer, activation, *_ = rows[0][1]
            if sublayer is None:
                continue
            if activation == "residual":
                stack.callback(sublayer.residual.register_forward_pre_hook(partial(_edit_stream, rows)).remove)
            elif activation == "output":
                stack.callback(sublayer.module.register_forward_hook(partial(_edit_output, rows)).remove)
            else:
                stack.enter_context(swap_kernels(sublayer.module, partial(_editing_kernel, rows)))
        yield


def _replaced(rows: Sequence[tuple[int, Edit]], x: Tensor) -> Tensor:
    x = x.clone()
    for row, edit in rows:
        x[row][edit.index] = edit.value
    return x


def _edit_stream(rows: Sequence[tuple[int, Edit]], module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return (_replaced(rows, given[0]), *given[1:])


def _edit_output(rows: Sequence[tuple[int, Edit]], module: nn.Module, given: Any, out: Tensor) -> Tensor:
    return _replaced(rows, out)


def _editing_kernel(rows: Sequence[tuple[int, Edit]], name: str, kernel: Kernel) -> Kernel:
    def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: KernelMask, dropout: float) -> Tensor:
        if rows[0][1].activation == "heads":
            return _replaced(rows, kernel(queries, keys, values, mask, dropout))
        inputs = zip(INPUTS, (queries, repeat_kv(keys, queries), repeat_kv(values, queries)), strict=True)
        queries, keys, values = (_replaced([each for each in rows if each[1].activation == v], x) for v, x in inputs)
        return kernel(queries, keys, values, mask, dropout)

    return attend
