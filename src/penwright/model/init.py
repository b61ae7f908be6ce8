"""Initialization of parameters: balanced scales, sublayers that start with an output of zero, or bigram counts."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from penwright.config import ModelSettings
from penwright.model.attention import Attention
from penwright.model.feed_forward import FeedForward

if TYPE_CHECKING:
    from penwright.model.decoder_only import DecoderOnly

MOST_COUNTED = 5_000_000  # maximum number of tokens whose bigrams are counted
# Steps in which embeddings and output layer learn the bigrams, the first learning rate, and the tokens in each step.
BIGRAM_STEPS, BIGRAM_RATE, BIGRAM_ROWS = 80, 0.03, 2048


@torch.no_grad()
def initialise(model: nn.Module, settings: ModelSettings) -> None:
    """Initialize weights from N(0, 1/width) and biases to zero.

    The output weights of each sublayer are set to zero or divided by sqrt(2 * n_layers).
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    # initialize embeddings after linear layers, because an output layer may share their matrix
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        if isinstance(module, Attention | FeedForward):
            adding = module.output if isinstance(module, Attention) else module.down
            if settings.zero_init_outputs:
                nn.init.zeros_(adding.weight)
            else:
                adding.weight.div_(sqrt(2 * settings.n_layers))


def start_from_bigrams(model: "DecoderOnly", tokens: Integer[np.ndarray, " tokens"]) -> None:
    """Train the embeddings and the output layer to predict each token from the one before it.

    They learn from the counts of all bigrams at once, smoothed as by Witten and Bell (1991). This takes seconds, and
    saves the first part of training, in which a model learns little else. The output of each sublayer must be zero.
    """
    embedding, output, n = model.embedding, model.output, len(model.output.weight)
    counted = torch.from_numpy(tokens[:MOST_COUNTED].astype(np.int64))
    pairs = torch.stack([counted[:-1], counted[1:]])
    counts = torch.sparse_coo_tensor(pairs, torch.ones(pairs.shape[1]), (n, n), check_invariants=False).coalesce()
    seen, kinds = (torch.bincount(each, minlength=n).float() for each in (pairs[0], counts.indices()[0]))
    share, unigram = seen + 1, torch.bincount(counted, minlength=n) + 1.0
    share, unigram, rows = share / share.sum(), unigram / unigram.sum(), torch.arange(n)
    weights, generator = share, torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam([embedding.tokens.weight, output.weight], lr=BIGRAM_RATE, betas=(0.9, 0.95))
    for step in range(BIGRAM_STEPS):
        if n > BIGRAM_ROWS:
            drawn = share.multinomial(BIGRAM_ROWS, replacement=True, generator=generator)
            rows, times = drawn.unique(return_counts=True)
            weights = times / BIGRAM_ROWS
        if n > BIGRAM_ROWS or step == 0:
            smoothed = counts.index_select(0, rows).to_dense() + kinds[rows, None] * unigram
            targets = torch.where(seen[rows, None] > 0, smoothed / (seen + kinds)[rows, None], unigram)
        optimizer.param_groups[0]["lr"] = BIGRAM_RATE * (1 - step / BIGRAM_STEPS)
        logits = output(model.decoder.norm(embedding.norm(embedding.tokens.weight[rows] * embedding.scale)))
        F.cross_entropy(logits, targets, reduction="none").dot(weights).backward()
        optimizer.step()
        model.zero_grad()  # of the norms, too


class _WithoutInit(TorchFunctionMode):
    """A context in which the functions of torch.nn.init do nothing."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return given.get("tensor")
        return func(*args, **given)


@contextmanager
def no_init_weights() -> Iterator[None]:
    """Build models without initializing their weights inside the `with` block, because weights are loaded later."""
    with _WithoutInit():
        yield


@contextmanager
def shapes_only() -> Iterator[None]:
    """Build models on the meta device inside the `with` block, without allocating memory for their weights.

    Random weights and arithmetic on this device would be slow, since torch would import its compiler (1.5 s). So
    weights are not initialized, and positions are computed on the CPU.
    """
    with torch.device("meta"), no_init_weights():
        yield
