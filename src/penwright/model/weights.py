"""Functions that initialize, copy and load the weights of a model, as named tensors without duplicates."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Integer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from penwright.config import ModelSettings, Task
from penwright.errors import PenwrightError
from penwright.model.attention import Attention
from penwright.model.layers import FeedForward

if TYPE_CHECKING:
    from penwright.model.transformer import DecoderOnly

MOST_COUNTED = 5_000_000  # maximum number of tokens whose bigrams are counted
# Training on bigrams: the number of steps, the initial learning rate, and the number of tokens in each step.
BIGRAM_STEPS, BIGRAM_RATE, BIGRAM_ROWS = 80, 0.03, 2048
Convert = Callable[[Tensor, Tensor], Tensor]
ADAPTER = ".lora_B"  # suffix of the names of adapter weights
VOCABULARY = ("embedding.tokens", "source_embedding.tokens", "target_embedding.tokens")  # tables with a row per token
FITTED = ("mixture", "log_prior", "thresholds", "scale")  # parameters of classifiers that are computed, not trained
_DECODER = {"embedding": "embedding", "decoder": "encoder"}
_SOURCE = {"source_embedding": "embedding", "encoder": "encoder"}
_ENCODER = {"embedding": "embedding", "encoder": "encoder", "pooler": "pooler"}
CHANGES: Mapping[tuple[Task, Task], Mapping[str, str]] = {  # modules to keep for a new task, as {old name: new name}
    ("generate", "classify"): _DECODER,
    ("chat", "classify"): _DECODER,
    ("translate", "classify"): _SOURCE,
    ("encode", "classify"): _ENCODER,
    ("generate", "encode"): _DECODER,
    ("chat", "encode"): _DECODER,
    ("translate", "encode"): _SOURCE,
    ("classify", "encode"): _ENCODER,
}


@torch.no_grad()
def initialize(model: nn.Module, settings: ModelSettings) -> None:
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

    They learn from the counts of all bigrams at once, with Witten-Bell smoothing. This takes seconds, and
    replaces the first part of training, in which a model learns little else. The output of each sublayer must be zero.
    """
    embedding, output, n = model.embedding, model.output, len(model.output.weight)
    counted = torch.from_numpy(tokens[:MOST_COUNTED].astype(np.int64))
    pairs = torch.stack([counted[:-1], counted[1:]])
    counts = torch.sparse_coo_tensor(pairs, torch.ones(pairs.shape[1]), (n, n), check_invariants=False).coalesce()
    seen, kinds = (torch.bincount(ids, minlength=n).float() for ids in (pairs[0], counts.indices()[0]))
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
        model.zero_grad()  # optimizer.zero_grad() would keep the gradients of the norms


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
    """Skip the initialization of weights inside the `with` block, for models whose weights are loaded later."""
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


def freeze_embeddings(model: nn.Module) -> None:
    """Exclude the token embeddings from training, together with an output layer that shares their matrix."""
    for name, parameter in model.named_parameters():
        if name.removesuffix(".weight") in VOCABULARY:
            parameter.requires_grad_(False)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that a run saves, by name and without copying. Shared parameters appear only once.

    With LoRA, these are the adapters and the head. The frozen weights equal those of the base model.
    """
    parameters = dict(model.named_parameters())
    has_adapters = any(name.endswith(ADAPTER) for name in parameters)
    return {
        name: parameter.detach()
        for name, parameter in parameters.items()
        if parameter.requires_grad or name in FITTED or not has_adapters
    }


def weights_for(task: Task, before: Task, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a model's weights for a model that is trained for another task; omit the head.

    Fitted parameters are left out, because they depend on the training texts.

    Raises PenwrightError if a model for this task cannot start from these weights.
    """
    renamed = CHANGES.get((before, task))
    weights = {name: tensor for name, tensor in weights.items() if name not in FITTED}
    if task == before or {task, before} == {"generate", "chat"}:
        return weights
    if renamed is None:
        raise PenwrightError(f"a model that was trained to {before} cannot be trained to {task}: train a new one")
    parts = {name: name.partition(".") for name in weights}
    return {f"{renamed[first]}.{rest}": weights[name] for name, (first, _, rest) in parts.items() if first in renamed}


def with_vocabulary(weights: Mapping[str, Tensor], pieces: Sequence[Sequence[int]], task: Task) -> dict[str, Tensor]:
    """Adapt weights to another vocabulary.

    For each token of the new vocabulary, `pieces` lists tokens of the old one. The new token gets their mean vector.
    """
    tables = {f"{module}.weight" for module in VOCABULARY}
    tables |= {"output.weight", "output.bias"} if task != "classify" else set()
    first = torch.tensor([old[0] for old in pieces])
    several = [number for number, old in enumerate(pieces) if len(old) > 1]
    adapted = dict(weights)
    for name in tables & weights.keys():
        table = weights[name][first]
        for number in several:
            table[number] = weights[name][list(pieces[number])].float().mean(0)
        adapted[name] = table
    return adapted


@torch.no_grad()
def start_from(model: nn.Module, weights: Mapping[str, Tensor], origin: str, head: Collection[str] = ()) -> bool:
    """Copy the weights of another model, frozen weights included. Return whether `model` keeps a new head.

    Args:
        model: The model to initialize.
        weights: The weights of the other model, under the names that `model` uses.
        origin: The origin of the weights, for messages.
        head: The modules that keep their initial weights if the other model lacks them.

    Raises:
        PenwrightError: If names or shapes do not match.
    """
    named = {name: parameter.detach() for name, parameter in model.named_parameters() if ".lora_" not in name}
    own = {name: parameter for name, parameter in named.items() if name not in FITTED}
    new = {name for name in own.keys() - weights.keys() if name.split(".")[0] in head}
    _copy({name: parameter for name, parameter in own.items() if name not in new}, weights, origin)
    return bool(new)


@torch.no_grad()
def load_weights(
    model: nn.Module, weights: Mapping[str, Tensor], origin: str, convert: Convert = lambda tensor, _: tensor
) -> None:
    """Copy weights into the model; raise PenwrightError if names or shapes do not match.

    `convert` adapts each tensor to its parameter, for example to a sharded parameter.
    """
    _copy(weights_of(model), weights, origin, convert)


def _copy(
    own: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    origin: str,
    convert: Convert = lambda tensor, _: tensor,
) -> None:
    if missing := sorted(own.keys() - weights.keys()):
        raise PenwrightError(f"{origin} lacks {', '.join(missing[:5])}: it belongs to a different model")
    if superfluous := sorted(weights.keys() - own.keys()):
        raise PenwrightError(f"{origin} has {', '.join(superfluous[:5])}, which this model does not have")
    for name, parameter in own.items():
        if parameter.shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)}, but {tuple(parameter.shape)} in this model"
            raise PenwrightError(f"{origin}: {name} has the shape {shapes}")
        parameter.copy_(convert(weights[name], parameter))
