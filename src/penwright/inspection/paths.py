"""Path attribution: which parts of a model pass information to which other parts, and with what effect.

An edge leads from a part (a head, a feed-forward network, the token or position vectors) to an input of a later part:
the query, key or value of a head, the input of a feed-forward network, or the output layer. To cut an edge, the
contribution of its first part is subtracted from the residual stream that this one input reads; all other inputs read
the whole stream. `effect` is the measured change of log p(outcome) (path patching: Goldowsky-Dill et al. 2023).
Measuring every edge would need one forward pass for each, so `estimate`, the gradient times the contribution, chooses
the edges to measure (edge attribution patching: Syed et al. 2023).
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import exp
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from penwright.inspection.forward_pass import ForwardPass, embeddings, scores
from penwright.inspection.gradients import AttributionTarget
from penwright.inspection.logit_attribution import BIASES, LONGEST_OUTCOME, read_out, readable_part, walk
from penwright.inspection.recording import (
    INPUTS,
    Edit,
    Recording,
    StackRecord,
    SublayerRecord,
    edited_logits,
    record,
)
from penwright.model import Model, evaluating
from penwright.model.attention import Attention, Kernel, KernelMask, repeat_kv, swap_kernels
from penwright.model.transformer import EncoderOnly
from penwright.views.ink import label


@dataclass(frozen=True)
class Edge:
    """An edge between two parts, and what it adds to the log-probability of the outcome, in nats."""

    source: str  # for example "decoder.0.3" (a head), "decoder.1.feed_forward" or "decoder.tokens"
    destination: str  # a head, a feed-forward network or "output"
    via: str  # "query", "key" or "value" of a head; "input" of a feed-forward network or the output layer
    estimate: float  # estimated effect: gradient times contribution
    effect: float  # log p(outcome) with the edge minus log p(outcome) without it


@dataclass(frozen=True)
class Paths:
    """The connections in a model that contribute most to an outcome on a text (its circuit)."""

    target: str  # the outcome
    position: int  # position of the token before the outcome; 0 for a label
    log_prob: float
    n_edges: int  # number of all edges; only the strongest are measured
    edges: tuple[Edge, ...]  # sorted by the absolute value of the effect, largest first

    def sentence(self, edge: Edge) -> str:
        """Return one sentence about an edge."""
        source = readable_part(edge.source)
        if edge.destination == "output":
            where = f"{source} directly to the output"
        elif edge.via == "input":
            where = f"{source} to {readable_part(edge.destination)}"
        else:
            where = f"{source} to the {edge.via} of {readable_part(edge.destination)}"
        before, after = _percent(exp(self.log_prob)), _percent(exp(self.log_prob - edge.effect))
        change = f"{'falls' if edge.effect >= 0 else 'rises'} from {before} to {after}"
        if before == after:
            change = f"hardly changes ({before})"
        return f"Without the path from {where}, the probability of “{label(self.target, LONGEST_OUTCOME)}” {change}."

    @property
    def explanation(self) -> str:
        """A sentence about the strongest edge."""
        return self.sentence(self.edges[0]) if self.edges else "No path was measured."

    def __str__(self) -> str:
        return self.explanation


def _percent(probability: float) -> str:
    """Return a probability in percent, with three significant digits."""
    return "less than 0.001%" if probability < 1e-5 else f"{f'{100 * probability:#.3g}'.rstrip('.')}%"


class _Site(NamedTuple):
    """An input of a model component, such as the keys of a head, that is computed from the residual stream."""

    sublayer: SublayerRecord | None  # the sublayer of the component; None for the output layer
    via: str
    head: int = 0

    @property
    def destination(self) -> str:
        if self.sublayer is None:
            return "output"
        last = self.head if self.sublayer.kind == "attention" else "feed_forward"
        return f"{self.sublayer.part}.{self.sublayer.layer}.{last}"


def paths(
    model: Model, reading: ForwardPass, objective: AttributionTarget, names: Sequence[str], n_edges: int = 20
) -> Paths:
    """Estimate the effect of every edge on an outcome; measure the `n_edges` edges with the largest estimates."""
    recording = record(model, reading, objective.position)
    gradients = _gradients(model, recording, objective)
    candidates: list[tuple[float, str, _Site]] = []
    with evaluating(model), torch.no_grad():
        for stack in recording.stacks:
            for sites, part_names, vectors in _sites(recording, stack):
                pulled = _pulled(model, sites, stack, vectors, objective, gradients)
                estimates = torch.einsum("cpd,spd->sc", vectors, pulled).cpu().double().tolist()
                for site, row in zip(sites, estimates, strict=True):
                    parts = list(zip(row, part_names, strict=True))
                    candidates += [(value, name, site) for value, name in parts[BIASES + 1 :]]
    chosen = sorted(candidates, key=lambda edge: -abs(edge[0]))[: max(0, n_edges)]
    log_prob = float(recording.logits.log_softmax(-1)[objective.outcome])
    effects = _measured(model, recording, objective, log_prob, [(name, site) for _, name, site in chosen])
    edges = [
        Edge(name, site.destination, site.via, estimate, effect)
        for (estimate, name, site), effect in zip(chosen, effects, strict=True)
    ]
    by_effect = sorted(edges, key=lambda edge: -abs(edge.effect))
    return Paths(names[objective.outcome], objective.position, log_prob, len(candidates), tuple(by_effect))


def _sites(
    recording: Recording, stack: StackRecord
) -> Iterator[tuple[list[_Site], list[str], Float[Tensor, "contributions positions d_model"]]]:
    """Yield groups of inputs that are computed from the same residual stream, with the contributions to that stream."""
    for sublayer, (names, vectors) in walk(stack):
        if sublayer is None:
            cross = recording.sublayers("cross") if stack is not recording.stacks[-1] else []
            heads = [(each, head) for each in cross for head in range(len(each.heads.outputs))]
            sites = [_Site(each, via, head) for each, head in heads for via in ("key", "value")]
            yield sites or [_Site(None, "input")], names, vectors
        elif sublayer.kind == "feed_forward":
            yield [_Site(sublayer, "input")], names, vectors
        else:
            wanted = ("query",) if sublayer.part == "cross" else INPUTS
            n_heads = len(sublayer.heads.outputs)
            yield [_Site(sublayer, via, head) for head in range(n_heads) for via in wanted], names, vectors


def _inputs(
    site: _Site, stack: StackRecord, x: Float[Tensor, "rows positions d_model"], model: Model, position: int
) -> Tensor:
    """Return the queries, keys, values, output, or logits at a position that a model component computes from `x`."""
    sublayer = site.sublayer
    if sublayer is None:
        return read_out(model, x if isinstance(model, EncoderOnly) else x[:, [position]])
    if sublayer.part == "cross" and site.via != "query":
        x = stack.stack.norm(x)  # cross-attention attends to the encoder's output after its final norm
    elif sublayer.residual.norm_first:
        x = sublayer.residual.norm(x)
    if not isinstance(sublayer.module, Attention):
        return sublayer.module(x)
    kept: list[tuple[Tensor, ...]] = []

    def kernel(queries: Tensor, keys: Tensor, values: Tensor, mask: KernelMask, dropout: float) -> Tensor:
        kept.append((queries, repeat_kv(keys, queries), repeat_kv(values, queries)))
        return queries

    with swap_kernels(sublayer.module, lambda name, old: kernel):
        sublayer.module(x, sublayer.module.keys_values(x, sublayer.rotation), KernelMask(), sublayer.rotation)
    return kept[0][INPUTS.index(site.via)][:, site.head]


def _gradients(model: Model, recording: Recording, objective: AttributionTarget) -> dict[tuple[int, str], Tensor]:
    """Return the gradients of log p(outcome) with respect to each feed-forward output, and each head's inputs."""
    kept: dict[tuple[int, str], Tensor] = {}

    def keep_inputs(sublayer: SublayerRecord, name: str, kernel: Kernel) -> Kernel:
        def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: KernelMask, dropout: float) -> Tensor:
            inputs = queries, repeat_kv(keys, queries), repeat_kv(values, queries)
            kept.update({(id(sublayer), via): each for via, each in zip(INPUTS, inputs, strict=True)})
            return kernel(*inputs, mask, dropout)

        return attend

    def keep_output(sublayer: SublayerRecord, module: nn.Module, given: Any, out: Tensor) -> None:
        kept[id(sublayer), "input"] = out

    def begin(module: nn.Module, given: Any, out: Tensor) -> Tensor:
        return out.detach().requires_grad_()

    with ExitStack() as stack, evaluating(model), torch.enable_grad():
        for table in embeddings(model).values():
            stack.callback(table.register_forward_hook(begin).remove)
        for sublayer in (each for part in recording.stacks for each in part.sublayers):
            if sublayer.kind == "attention":
                stack.enter_context(swap_kernels(sublayer.module, partial(keep_inputs, sublayer)))
            else:
                stack.callback(sublayer.module.register_forward_hook(partial(keep_output, sublayer)).remove)
        log_prob = scores(model, recording.reading, objective.position)[0].log_softmax(-1)[objective.outcome]
        gradients = torch.autograd.grad(log_prob, list(kept.values()))
    return {key: gradient[0] for key, gradient in zip(kept, gradients, strict=True)}


def _pulled(
    model: Model,
    sites: Sequence[_Site],
    stack: StackRecord,
    vectors: Float[Tensor, "contributions positions d_model"],
    objective: AttributionTarget,
    gradients: dict[tuple[int, str], Tensor],
) -> Float[Tensor, "sites positions d_model"]:
    """Return, for each input, the gradient of log p(outcome) with respect to the stream, through that input alone."""
    stream = vectors.sum(0)
    pulled = []
    for site in sites:
        with torch.enable_grad():
            x = stream.detach()[None].requires_grad_()
            made = _inputs(site, stack, x, model, objective.position)
            if site.sublayer is None:
                total = made[0, 0].log_softmax(-1)[objective.outcome]
            else:
                gradient = gradients[id(site.sublayer), site.via]
                total = (made[0] * (gradient[site.head] if site.sublayer.kind == "attention" else gradient)).sum()
            pulled.append(torch.autograd.grad(total, x)[0][0])
    return torch.stack(pulled)


def _measured(
    model: Model,
    recording: Recording,
    objective: AttributionTarget,
    log_prob: float,
    edges: Sequence[tuple[str, _Site]],
) -> list[float]:
    """Return the effect of each edge: log p(outcome) with the edge minus log p(outcome) without it."""
    edits: list[Edit | None] = [None] * len(edges)
    with evaluating(model), torch.no_grad():
        for stack in recording.stacks:
            for sites, names, vectors in _sites(recording, stack):
                for at, (name, site) in enumerate(edges):
                    if site in sites and name in names:
                        without = vectors.sum(0) - vectors[names.index(name)]
                        edits[at] = _cut(site, _inputs(site, stack, without[None], model, objective.position)[0])
    known = [edit for edit in edits if edit is not None]
    if not known:
        return []
    logits = torch.cat(list(edited_logits(model, recording.reading, known, objective.position)))
    for row, edit in enumerate(known):
        if edit.sublayer is None:
            logits[row] = edit.value[0]
    effects: list[float] = (log_prob - logits.log_softmax(-1)[:, objective.outcome]).tolist()
    return effects


def _cut(site: _Site, instead: Tensor) -> Edit:
    """Return the edit that replaces the queries, keys, values, output or logits of an edge's destination."""
    if site.sublayer is None or site.sublayer.kind == "feed_forward":
        return Edit(site.sublayer, "output", slice(None), instead)
    return Edit(site.sublayer, site.via, site.head, instead)
