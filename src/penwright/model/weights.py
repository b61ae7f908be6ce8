"""The weights of a model as named tensors; shared weights occur once."""

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from penwright.config import Task
from penwright.errors import PenwrightError

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
    """Adapt weights to another vocabulary. Each token gets the mean vector of the old tokens in its row of `pieces`."""
    tables = {f"{module}.weight" for module in VOCABULARY}
    tables |= {"output.weight", "output.bias"} if task != "classify" else set()
    first = torch.tensor([old[0] for old in pieces])
    several = [number for number, old in enumerate(pieces) if len(old) > 1]
    found = dict(weights)
    for name in tables & weights.keys():
        table = weights[name][first]
        for number in several:
            table[number] = weights[name][list(pieces[number])].float().mean(0)
        found[name] = table
    return found


@torch.no_grad()
def start_from(model: nn.Module, weights: Mapping[str, Tensor], origin: str, head: Collection[str] = ()) -> bool:
    """Copy the weights of another model, frozen weights included. Return whether `model` keeps a new head.

    Args:
        model: The model to start.
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
